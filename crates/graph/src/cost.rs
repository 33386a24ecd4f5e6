/// Which part of a device an operator keeps busy; rates differ by an order of magnitude.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    Matmul,
    Attention,
    Vector,
}

/// Work of one execution with a full micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    pub unit: Unit,
    pub flops: f64,
    /// Bytes read and written if nothing is cached.
    pub bytes: f64,
}

impl Cost {
    pub fn vector(flops: f64, bytes: f64) -> Self {
        Self { unit: Unit::Vector, flops, bytes }
    }

    pub fn matmul(flops: f64, bytes: f64) -> Self {
        Self { unit: Unit::Matmul, flops, bytes }
    }
}

/// Room in which one thread of the CPU brings parts of a product's operands into the order it reads them in.
/// The backend's block sizes follow from it.
pub const CPU_PACKING_BYTES: usize = 896 << 10;

/// The few facts about a backend that an operator's scratch memory depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Threads that need scratch of their own (CPU); 1 where scratch lives on the chip.
    pub workers: usize,
    /// Parts that a long sum is divided into, however many threads there are (GPU), each with its
    /// partial result in scratch; 0 where every worker keeps one part (CPU).
    pub partial_rows: usize,
    /// Scratch the matrix-product library asks for in each product.
    pub matmul_workspace_bytes: usize,
}

impl Target {
    /// The CPU with so many threads.
    pub fn cpu(threads: usize) -> Self {
        Self { workers: threads, partial_rows: 0, matmul_workspace_bytes: threads * CPU_PACKING_BYTES }
    }

    /// Partial results of a sum over tokens.
    pub fn sum_parts(&self) -> usize {
        self.workers.max(self.partial_rows)
    }
}
