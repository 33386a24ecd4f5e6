//! Matrix products through cuBLASLt: descriptors and algorithm kept per shape, scratch from the
//! step's workspace. Nothing here allocates device memory.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::rc::Rc;

use cudarc::cublaslt::{result, sys};
use plimsoll_graph::DType;

use crate::descriptor::{MatrixLayout, Operation, Preference, blas_error, data_type};
use crate::device::Device;
use crate::error::CudaError;

/// Algorithms that the heuristic is asked for; the first may be of no use here.
const CANDIDATES: usize = 8;
/// Addresses are multiples of at least this, so that claiming no more makes the choice of an algorithm,
/// and with it every bit of the result, independent of where the plan put a buffer.
const ALIGNMENT_MAX: u64 = 64;
/// Sums that are split among blocks meet in float32 in the workspace: exact as unsplit ones, and in a fixed order.
const REDUCTION_IN_FLOAT32: u32 = 2;

/// Where products of codes with scales for rows and columns are, and since which version of the library.
const CAPABILITY_CODES: (u32, u32) = (9, 0);
const VERSION_CODES: usize = 120_900;

/// A row-major matrix in memory, read as it lies or transposed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Factor {
    pub ptr: u64,
    /// Elements from one row to the next.
    pub stride: usize,
    pub transposed: bool,
}

impl Factor {
    pub(crate) fn new(ptr: u64, stride: usize) -> Self {
        Self { ptr, stride, transposed: false }
    }

    pub(crate) fn transposed(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }
}

/// What the product is added to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Onto {
    Nothing,
    /// A matrix of the result's shape, stride and type; the result itself, if it is to be summed into.
    Matrix(u64),
}

/// `result [rows, cols] = onto + α·left [rows, depth]·right [depth, cols] (+ bias)`, all row-major.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    pub rows: usize,
    pub cols: usize,
    pub depth: usize,
    pub alpha: f32,
    pub left: Factor,
    pub right: Factor,
    /// Storage of both factors.
    pub dtype: DType,
    pub result: u64,
    pub result_stride: usize,
    pub result_dtype: DType,
    pub onto: Onto,
    /// One number per column, of the result's type.
    pub bias: Option<u64>,
}

/// Scales of factors that are codes of eight bits, and how their products are summed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Codes {
    /// One for each row of `left`.
    pub left_scales: u64,
    /// One for each column of `right`.
    pub right_scales: u64,
    /// Whether tensor cores may keep sums in fewer bits between their steps.
    pub fast: bool,
}

/// A factor of exactly one lets the library round a product to the result's sixteen bits before it adds it, in memory, to
/// what is there: of an addend a thousandth of the product's size a fifth arrives. With any other factor sums are made in
/// float32 and rounded once. What this one takes off an addend is far below what sixteen bits hold.
const NEARLY_ONE: f32 = 1.0 - f32::EPSILON / 2.0;

/// Whether the product added the bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bias {
    Done,
    /// No algorithm adds one here; the caller must.
    Left,
}

/// Everything an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    rows: usize,
    cols: usize,
    depth: usize,
    left: (usize, bool),
    right: (usize, bool),
    result_stride: usize,
    dtypes: (DType, DType),
    /// Whether sums of codes are fast.
    codes: Option<bool>,
    onto: bool,
    bias: bool,
    alignments: [u32; 3],
    workspace_bytes: usize,
}

/// The library's handle and what it has answered so far.
pub(crate) struct Blas {
    handle: sys::cublasLtHandle_t,
    prepared: RefCell<HashMap<Key, Option<Rc<Prepared>>>>,
}

impl Blas {
    /// Whether the library multiplies codes of eight bits with a scale for each row and column on such a card: from
    /// CUDA 12.9 on, and on Hopper alone. (On others it has a scale for a whole matrix, or for every 32 codes.)
    pub(crate) fn multiplies_codes(capability: (u32, u32)) -> bool {
        // SAFETY: asks for a number; whoever asks has required the library.
        capability == CAPABILITY_CODES && unsafe { sys::cublasLtGetVersion() } >= VERSION_CODES
    }

    pub(crate) fn new() -> Result<Self, CudaError> {
        let handle = result::create_handle().map_err(blas_error("cublasLtCreate"))?;
        Ok(Self { handle, prepared: RefCell::default() })
    }

    /// Queues the product on the compute stream. An empty one leaves the result as it is.
    pub(crate) fn run(&self, device: &Device, product: &Product, workspace: (u64, usize)) -> Result<Bias, CudaError> {
        self.run_with(device, product, None, workspace)?.ok_or_else(|| CudaError::Blas {
            call: "cublasLtMatmulAlgoGetHeuristic",
            reason: format!("nothing for {product:?}"),
        })
    }

    /// The same of factors that are codes, with scales for their rows and columns. `None` where the library has nothing.
    pub(crate) fn run_codes(
        &self,
        device: &Device,
        product: &Product,
        codes: Codes,
        workspace: (u64, usize),
    ) -> Result<Option<Bias>, CudaError> {
        self.run_with(device, product, Some(codes), workspace)
    }

    fn run_with(
        &self,
        device: &Device,
        product: &Product,
        codes: Option<Codes>,
        workspace: (u64, usize),
    ) -> Result<Option<Bias>, CudaError> {
        if product.rows == 0 || product.cols == 0 || product.depth == 0 {
            return Ok(Some(Bias::Done));
        }
        let prepared = |product: &Product| self.prepared(product.key(codes, workspace.1));
        if let Some(prepared) = prepared(product)? {
            self.execute(device, product, codes, &prepared, workspace)?;
            return Ok(Some(Bias::Done));
        }
        let plain = Product { bias: None, ..*product };
        match (product.bias, prepared(&plain)?) {
            (Some(_), Some(prepared)) => {
                self.execute(device, &plain, codes, &prepared, workspace)?;
                Ok(Some(Bias::Left))
            }
            _ => Ok(None),
        }
    }

    fn prepared(&self, key: Key) -> Result<Option<Rc<Prepared>>, CudaError> {
        if let Some(known) = self.prepared.borrow().get(&key) {
            return Ok(known.clone());
        }
        let prepared = Prepared::new(self.handle, &key)?.map(Rc::new);
        self.prepared.borrow_mut().insert(key, prepared.clone());
        Ok(prepared)
    }

    fn execute(
        &self,
        device: &Device,
        product: &Product,
        codes: Option<Codes>,
        prepared: &Prepared,
        workspace: (u64, usize),
    ) -> Result<(), CudaError> {
        if let Some(bias) = product.bias {
            prepared.operation.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias)?;
        }
        if let Some(codes) = codes {
            prepared.operation.set_scales(codes.left_scales, codes.right_scales)?;
        }
        self.launch(device, product, prepared, workspace)
    }

    fn launch(
        &self,
        device: &Device,
        product: &Product,
        prepared: &Prepared,
        workspace: (u64, usize),
    ) -> Result<(), CudaError> {
        let (onto, beta) = match product.onto {
            Onto::Nothing => (product.result, 0.0),
            Onto::Matrix(at) if product.result_dtype == DType::F32 => (at, 1.0),
            Onto::Matrix(at) => (at, NEARLY_ONE),
        };
        let alpha = product.alpha;
        let address = |at: u64| at as *mut c_void;
        // Column-major with the factors exchanged is row-major: resultᵀ = rightᵀ·leftᵀ.
        // SAFETY: the descriptors fit the product, whose matrices lie in checked regions of the arena.
        unsafe {
            result::matmul(
                self.handle,
                prepared.operation.0,
                std::ptr::from_ref(&alpha).cast(),
                std::ptr::from_ref(&beta).cast(),
                address(product.right.ptr),
                prepared.right.0,
                address(product.left.ptr),
                prepared.left.0,
                address(onto),
                prepared.result.0,
                address(product.result),
                prepared.result.0,
                &raw const prepared.algorithm,
                address(workspace.0),
                workspace.1,
                device.compute_stream().cast(),
            )
        }
        .map_err(blas_error("cublasLtMatmul"))
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Product {
    fn key(&self, codes: Option<Codes>, workspace_bytes: usize) -> Key {
        let alignment = |at: u64| (at | ALIGNMENT_MAX).trailing_zeros();
        let result = match self.onto {
            Onto::Nothing => self.result,
            Onto::Matrix(onto) => self.result | onto,
        };
        Key {
            rows: self.rows,
            cols: self.cols,
            depth: self.depth,
            left: (self.left.stride, self.left.transposed),
            right: (self.right.stride, self.right.transposed),
            result_stride: self.result_stride,
            dtypes: (self.dtype, self.result_dtype),
            codes: codes.map(|codes| codes.fast),
            onto: self.onto != Onto::Nothing,
            bias: self.bias.is_some(),
            alignments: [self.left.ptr, self.right.ptr, result].map(alignment),
            workspace_bytes,
        }
    }
}

/// Descriptors of one kind of product, and the algorithm that does it.
struct Prepared {
    operation: Operation,
    left: MatrixLayout,
    right: MatrixLayout,
    result: MatrixLayout,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Prepared {
    /// `None` where the library has no algorithm.
    fn new(handle: sys::cublasLtHandle_t, key: &Key) -> Result<Option<Self>, CudaError> {
        let (Some(dtype), Some(result_dtype)) = (data_type(key.dtypes.0), data_type(key.dtypes.1)) else {
            return Ok(None);
        };
        // As the library sees it, a row-major matrix is its own transpose.
        let oriented = |rows: usize, cols: usize, (stride, transposed): (usize, bool)| {
            let (rows, cols) = if transposed { (cols, rows) } else { (rows, cols) };
            MatrixLayout::new(dtype, cols, rows, stride)
        };
        let left = oriented(key.rows, key.depth, key.left)?;
        let right = oriented(key.depth, key.cols, key.right)?;
        let result = MatrixLayout::new(result_dtype, key.cols, key.rows, key.result_stride)?;
        let operation = Operation::new(key.left.1, key.right.1, key.bias.then_some(result_dtype))?;
        if let Some(fast) = key.codes {
            operation.take_codes(fast)?;
        }
        let algorithm = algorithm(handle, key, &operation, [&right, &left, &result])?;
        Ok(algorithm.map(|algorithm| Self { operation, left, right, result, algorithm }))
    }
}

/// The most promising one that the library's heuristic names. Timing the others gains nothing: see docs/measurements.md.
fn algorithm(
    handle: sys::cublasLtHandle_t,
    key: &Key,
    operation: &Operation,
    [right, left, result]: [&MatrixLayout; 3],
) -> Result<Option<sys::cublasLtMatmulAlgo_t>, CudaError> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let preference = Preference::new()?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &(key.workspace_bytes as u64))?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &REDUCTION_IN_FLOAT32)?;
    let [left_alignment, right_alignment, result_alignment] = key.alignments.map(|bits| 1u32 << bits);
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &right_alignment)?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &left_alignment)?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &result_alignment)?;
    preference.set(Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &result_alignment)?;
    // SAFETY: plain numbers, for which zeros are valid.
    let mut found: [sys::cublasLtMatmulHeuristicResult_t; CANDIDATES] = unsafe { std::mem::zeroed() };
    let mut count = 0;
    // SAFETY: all descriptors live, and there is room for as many answers as are asked for.
    let status = unsafe {
        sys::cublasLtMatmulAlgoGetHeuristic(
            handle,
            operation.0,
            right.0,
            left.0,
            result.0,
            result.0,
            preference.0,
            CANDIDATES as i32,
            found.as_mut_ptr(),
            &raw mut count,
        )
    };
    match status {
        sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS => {}
        sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED => return Ok(None),
        other => {
            let reason = format!("{other:?} for {key:?}");
            return Err(CudaError::Blas { call: "cublasLtMatmulAlgoGetHeuristic", reason });
        }
    }
    let usable = |found: &&sys::cublasLtMatmulHeuristicResult_t| {
        found.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && found.workspaceSize <= key.workspace_bytes
    };
    Ok(found[..count as usize].iter().find(usable).map(|found| found.algo))
}
