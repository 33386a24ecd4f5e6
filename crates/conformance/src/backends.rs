use plimsoll_cpu::CpuBackend;
use plimsoll_cuda::CudaBackend;
use plimsoll_runtime::Backend;

/// Set to a card's number, such as `0`, the suite runs on that card too.
const CUDA_VARIABLE: &str = "CONFORMANCE_CUDA";

/// Whether the suite is to run on a card.
pub fn card_asked_for() -> bool {
    std::env::var_os(CUDA_VARIABLE).is_some()
}

/// Every backend the suite holds to the reference. A new one is added here and nowhere else.
pub fn backends() -> Vec<Box<dyn Backend>> {
    let mut backends: Vec<Box<dyn Backend>> =
        vec![Box::new(CpuBackend::new(Some(1))), Box::new(CpuBackend::new(Some(2)))];
    if let Ok(ordinal) = std::env::var(CUDA_VARIABLE) {
        let ordinal = ordinal.parse().unwrap_or_else(|_| panic!("{CUDA_VARIABLE}={ordinal} is no card's number"));
        let cuda = CudaBackend::new(ordinal).unwrap_or_else(|e| panic!("{e}"));
        // Cases are small; so may be what the products use.
        backends.push(Box::new(cuda.with_matmul_workspace(1 << 20)));
    }
    backends
}
