//! cuBLASLt's descriptors, each freed by whoever holds it.

use cudarc::cublaslt::{result, sys};
use plimsoll_graph::DType;

use crate::error::CudaError;

pub(crate) fn data_type(dtype: DType) -> Option<sys::cudaDataType_t> {
    match dtype {
        DType::F32 => Some(sys::cudaDataType_t::CUDA_R_32F),
        DType::BF16 => Some(sys::cudaDataType_t::CUDA_R_16BF),
        DType::F16 => Some(sys::cudaDataType_t::CUDA_R_16F),
        DType::E4m3 => Some(sys::cudaDataType_t::CUDA_R_8F_E4M3),
        _ => None,
    }
}

pub(crate) fn blas_error(call: &'static str) -> impl FnOnce(result::CublasError) -> CudaError {
    move |error| CudaError::Blas { call, reason: format!("{:?}", error.0) }
}

/// An address that is not null and aligned as any is. It is never read.
const SOMEWHERE: u64 = 1 << 20;

/// What is done with the two factors.
pub(crate) struct Operation(pub(crate) sys::cublasLtMatmulDesc_t);

impl Operation {
    /// `bias` names the type of the bias, if one is added.
    pub(crate) fn new(
        left_transposed: bool,
        right_transposed: bool,
        bias: Option<sys::cudaDataType_t>,
    ) -> Result<Self, CudaError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        // Float32 factors are multiplied as float32, not as TF32.
        let (compute, scale) = (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F);
        let operation =
            Self(result::create_matmul_desc(compute, scale).map_err(blas_error("cublasLtMatmulDescCreate"))?);
        let transpose = |transposed: bool| -> i32 { i32::from(transposed) };
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &transpose(right_transposed))?;
        operation.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &transpose(left_transposed))?;
        if let Some(dtype) = bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32;
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue)?;
            operation.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &(dtype as u32))?;
        }
        Ok(operation)
    }

    /// Factors are codes with a scale for each row of the left and each column of the right one. Where these lie is told
    /// with each product; the heuristic is told a place that says nothing, for its choice must not depend on addresses.
    pub(crate) fn take_codes(&self, fast: bool) -> Result<(), CudaError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let vectors = sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F as i32;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &vectors)?;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &vectors)?;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &i8::from(fast))?;
        self.set_scales(SOMEWHERE, SOMEWHERE)
    }

    /// Factors are exchanged (see `Blas::launch`), so the library's first one is the right one.
    pub(crate) fn set_scales(&self, left: u64, right: u64) -> Result<(), CudaError> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &right)?;
        self.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &left)
    }

    pub(crate) fn set<T: Copy>(
        &self,
        attribute: sys::cublasLtMatmulDescAttributes_t,
        value: &T,
    ) -> Result<(), CudaError> {
        // SAFETY: the attribute takes a number of `T`'s size, which is copied.
        unsafe {
            result::set_matmul_desc_attribute(self.0, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
        }
        .map_err(blas_error("cublasLtMatmulDescSetAttribute"))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { result::destroy_matmul_desc(self.0) };
    }
}

/// A column-major matrix.
pub(crate) struct MatrixLayout(pub(crate) sys::cublasLtMatrixLayout_t);

impl MatrixLayout {
    pub(crate) fn new(dtype: sys::cudaDataType_t, rows: usize, cols: usize, stride: usize) -> Result<Self, CudaError> {
        result::create_matrix_layout(dtype, rows as u64, cols as u64, stride as i64)
            .map(Self)
            .map_err(blas_error("cublasLtMatrixLayoutCreate"))
    }
}

impl Drop for MatrixLayout {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { result::destroy_matrix_layout(self.0) };
    }
}

/// What an algorithm may use.
pub(crate) struct Preference(pub(crate) sys::cublasLtMatmulPreference_t);

impl Preference {
    pub(crate) fn new() -> Result<Self, CudaError> {
        result::create_matmul_pref().map(Self).map_err(blas_error("cublasLtMatmulPreferenceCreate"))
    }

    pub(crate) fn set<T: Copy>(
        &self,
        attribute: sys::cublasLtMatmulPreferenceAttributes_t,
        value: &T,
    ) -> Result<(), CudaError> {
        // SAFETY: the attribute takes a number of `T`'s size, which is copied.
        unsafe {
            result::set_matmul_pref_attribute(self.0, attribute, std::ptr::from_ref(value).cast(), size_of::<T>())
        }
        .map_err(blas_error("cublasLtMatmulPreferenceSetAttribute"))
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
    }
}
