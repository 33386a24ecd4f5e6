use plimsoll_cpu::CpuBackend;
use plimsoll_runtime::Backend;

/// Every backend the suite holds to the reference. A new one is added here and nowhere else.
pub fn backends() -> Vec<Box<dyn Backend>> {
    vec![Box::new(CpuBackend::new(Some(1))), Box::new(CpuBackend::new(Some(2)))]
}
