//! What an operator's execution takes: the work it does, by what bounds it, and the scratch a backend needs for it.

use crate::DType;

/// Work of one execution with a full micro-batch, by what bounds it. A planner turns it into time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Work {
    /// Passes over memory, at the rate measured for the operator.
    Memory { flops: f64, bytes: f64 },
    /// Matrix products.
    Product(Product),
    /// Attention over sequences of the given length; `plain` where the fastest kernels are made for it. `key_rows` are the
    /// keys of all heads.
    Attention { flops: f64, bytes: f64, length: usize, key_rows: usize, gradient: bool, plain: bool },
}

/// One or more products `[rows, inner]·[inner, cols]` of one shape.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Product {
    pub flops: f64,
    pub bytes: f64,
    pub dtype: DType,
    /// Rows, columns and depth of one of them.
    pub shape: [usize; 3],
    /// The side that grows with the micro-batch, all products together.
    pub tokens: usize,
    /// Where one side is so short that reading the other bounds the product: the name its rate is measured under.
    pub low_rank: Option<&'static str>,
}

impl Work {
    /// A single pass over memory.
    pub fn memory(flops: f64, bytes: f64) -> Vec<Work> {
        vec![Work::Memory { flops, bytes }]
    }

    pub fn flops(&self) -> f64 {
        match *self {
            Work::Memory { flops, .. } | Work::Attention { flops, .. } => flops,
            Work::Product(product) => product.flops,
        }
    }

    /// Bytes read and written if nothing is cached.
    pub fn bytes(&self) -> f64 {
        match *self {
            Work::Memory { bytes, .. } | Work::Attention { bytes, .. } => bytes,
            Work::Product(product) => product.bytes,
        }
    }
}

/// All the work of one execution.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    pub flops: f64,
    pub bytes: f64,
}

impl Cost {
    pub fn of(work: &[Work]) -> Self {
        let sum = |part: fn(&Work) -> f64| work.iter().map(part).sum();
        Self { flops: sum(Work::flops), bytes: sum(Work::bytes) }
    }
}

/// Memory in which one thread of the CPU brings parts of a product's operands into the order it reads them in.
/// The backend's block sizes follow from it.
pub const CPU_PACKING_BYTES: usize = 896 << 10;

/// Scratch that a GPU's matrix-product library may use in each product.
pub const GPU_PRODUCT_SCRATCH_BYTES: usize = 32 << 20;

/// Two blocks of threads on each multiprocessor of the largest cards. The same for all of them, so that sums have one
/// order whatever the card.
pub const GPU_PARTIAL_ROWS: usize = 256;

/// Enough for the threads of most machines. Not their number, so that sums have one order for any number of threads.
pub const CPU_PARTIAL_ROWS: usize = 32;

/// Tensors that a GPU updates in one launch.
pub const GPU_UPDATES_PER_LAUNCH: usize = 72;

/// The few facts about a backend that an operator's scratch memory depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendTraits {
    /// Threads that need scratch of their own (CPU); 1 where scratch lives on the chip.
    pub workers: usize,
    /// Parts that a long sum is divided into, however many threads there are, each with its partial result in scratch.
    pub partial_rows: usize,
    /// Scratch the matrix-product library asks for in each product.
    pub matmul_workspace_bytes: usize,
    /// Whether products take codes of eight bits as they are; elsewhere these are decoded first.
    pub multiplies_codes: bool,
}

impl BackendTraits {
    /// The CPU with so many threads.
    pub fn cpu(threads: usize) -> Self {
        Self {
            workers: threads,
            partial_rows: CPU_PARTIAL_ROWS,
            matmul_workspace_bytes: threads * CPU_PACKING_BYTES,
            multiplies_codes: false,
        }
    }

    pub fn gpu() -> Self {
        Self {
            workers: 1,
            partial_rows: GPU_PARTIAL_ROWS,
            matmul_workspace_bytes: GPU_PRODUCT_SCRATCH_BYTES,
            multiplies_codes: true,
        }
    }

    /// Partial results of a sum over tokens.
    pub fn sum_parts(&self) -> usize {
        self.partial_rows
    }
}
