//! Every kernel compiles for every architecture that is supported. Needs NVRTC, but no GPU; without NVRTC
//! it checks nothing, unless PLIMSOLL_REQUIRE_NVRTC=1 says that it must be there.

use plimsoll_cuda::{CudaError, compile_all};

const ARCHITECTURES: [&str; 5] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_120"];

#[test]
fn kernels_compile_for_every_architecture() {
    for arch in ARCHITECTURES {
        match compile_all(arch) {
            Ok(compiled) => {
                for module in compiled {
                    assert!(module.cubin.starts_with(b"\x7fELF"), "{} for {arch} is no machine code", module.module);
                    assert!(!module.log.contains("warning"), "{} for {arch}:\n{}", module.module, module.log);
                }
            }
            Err(error @ CudaError::Missing { .. }) => {
                let required = std::env::var("PLIMSOLL_REQUIRE_NVRTC").is_ok_and(|value| value == "1");
                assert!(!required, "{error}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
    }
}
