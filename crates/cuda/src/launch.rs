//! How kernels of ours are launched. On Hopper and later, blocks of a kernel may be placed while the kernel before it in the
//! stream is ending, so that its start-up is over when its turn comes. It does nothing earlier than it would otherwise: its
//! first statement (`wait_for_previous_kernel` in `kernels/plimsoll.cuh`) waits until the kernel before has ended and its
//! writes are seen. Behind anything else in the stream (copies, fills, graphs, events) it starts in turn, and so does
//! whatever else follows it, the kernels of cuBLASLt among them.
//!
//! This counts on one stream for everything that touches the arena: a kernel that had to wait for another stream would
//! have to be launched in turn.

use std::ffi::c_void;

use cudarc::driver::sys;

/// The first compute capability whose kernels wait, as in `kernels/plimsoll.cuh`.
const CAPABILITY_MIN: (u32, u32) = (9, 0);
/// The first driver that keeps the early placing in recorded schedules.
const DRIVER_MIN: i32 = 12_030;

/// A kernel's blocks: how many, threads of each, and their dynamic shared memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Blocks {
    pub grid: (u32, u32, u32),
    pub threads: u32,
    pub shared_bytes: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placing {
    /// While the kernel before is ending.
    Early,
    /// Once what comes before in the stream is done.
    InTurn,
}

/// Blocks for each multiprocessor from which on they find places as others end.
const MANY: usize = 4;
/// Multiprocessors for each block of a kernel that leaves most of them to the next one.
const FEW: usize = 4;

impl Placing {
    /// Whether one kernel's blocks may be placed behind another's, whose number of blocks is `before` (`None`: it is none of
    /// ours). Blocks that are all placed at once may crowd on the multiprocessors that the kernel before has left free, and
    /// stay there while others idle. They do not where they are many more than places, or nearly all are free.
    pub(crate) fn behind(self, before: Option<usize>, blocks: usize, multiprocessors: usize) -> Self {
        let spreads = blocks >= MANY * multiprocessors || before.is_some_and(|before| before * FEW <= multiprocessors);
        if spreads { self } else { Self::InTurn }
    }

    pub(crate) fn of(capability: (u32, u32), driver_version: i32) -> Self {
        if capability >= CAPABILITY_MIN && driver_version >= DRIVER_MIN { Self::Early } else { Self::InTurn }
    }

    /// Queues a kernel.
    ///
    /// # Safety
    /// The function's module is loaded, stream and context live, and there is a pointer to an argument for each of the
    /// kernel's parameters. The kernel was compiled for this card, so that it waits where it has to.
    pub(crate) unsafe fn launch(
        self,
        function: sys::CUfunction,
        blocks: Blocks,
        stream: sys::CUstream,
        arguments: &mut [*mut c_void],
    ) -> Result<(), cudarc::driver::DriverError> {
        let mut value = sys::CUlaunchAttributeValue { pad: [0; 64] };
        value.programmaticStreamSerializationAllowed = 1;
        let id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        let mut early = sys::CUlaunchAttribute { id, pad: [0; 4], value };
        let config = sys::CUlaunchConfig {
            gridDimX: blocks.grid.0,
            gridDimY: blocks.grid.1,
            gridDimZ: blocks.grid.2,
            blockDimX: blocks.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: blocks.shared_bytes,
            hStream: stream,
            attrs: &raw mut early,
            numAttrs: u32::from(self == Self::Early),
        };
        // SAFETY: the caller's word; the driver copies configuration and arguments before it returns.
        unsafe {
            sys::cuLaunchKernelEx(&raw const config, function, arguments.as_mut_ptr(), std::ptr::null_mut()).result()
        }
    }
}

impl Blocks {
    pub(crate) fn count(&self) -> usize {
        [self.grid.0, self.grid.1, self.grid.2].map(|n| n as usize).iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_would_crowd_start_in_turn() {
        let behind = |before, blocks| Placing::Early.behind(before, blocks, 132);
        assert_eq!(behind(Some(100), 132), Placing::InTurn);
        assert_eq!(behind(None, 264), Placing::InTurn);
        assert_eq!(behind(Some(100), 4096), Placing::Early);
        assert_eq!(behind(Some(1), 132), Placing::Early);
        assert_eq!(Placing::InTurn.behind(Some(1), 4096, 132), Placing::InTurn);
    }

    const FIRST_STATEMENT: &str = "wait_for_previous_kernel();";

    #[test]
    fn early_from_hopper_on_with_a_driver_that_records_it() {
        assert_eq!(Placing::of((9, 0), 12_030), Placing::Early);
        assert_eq!(Placing::of((12, 0), 13_000), Placing::Early);
        assert_eq!(Placing::of((8, 9), 13_000), Placing::InTurn);
        assert_eq!(Placing::of((9, 0), 12_020), Placing::InTurn);
    }

    fn kernel_files() -> Vec<(String, String)> {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        let files = std::fs::read_dir(folder).expect("the folder is part of the crate");
        files
            .map(|entry| {
                let path = entry.expect("readable").path();
                let text = std::fs::read_to_string(&path).expect("text");
                (path.file_name().expect("a file").to_string_lossy().into_owned(), without_comments(&text))
            })
            .collect()
    }

    /// One line for what a backslash goes on with.
    fn without_comments(text: &str) -> String {
        let lines: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
        lines.join("\n").replace("\\\n", "")
    }

    /// What stands behind each `__global__`, or behind the macro that has it.
    fn definitions(text: &str) -> Vec<String> {
        let text = text.replace("#define PLIMSOLL_EXPORT extern \"C\" __global__ void", "");
        let behind = |word| text.split(word).skip(1).map(str::to_owned);
        behind("__global__").chain(behind("PLIMSOLL_EXPORT")).collect()
    }

    fn waits_first(definition: &str) -> bool {
        definition.split_once('{').is_some_and(|(_, body)| body.trim_start().starts_with(FIRST_STATEMENT))
    }

    /// A kernel that began before its turn would read what is not there yet, and one that never waited would let the next
    /// one begin beside the one before.
    #[test]
    fn every_kernel_waits_before_anything_else() {
        let mut kernels = 0;
        for (name, text) in kernel_files() {
            for definition in definitions(&text) {
                let head: String = definition.chars().take(80).collect();
                assert!(waits_first(&definition), "{name}: `{FIRST_STATEMENT}` must come first in {head}");
                kernels += 1;
            }
        }
        assert!(kernels > 100, "only {kernels} kernels were found");
    }

    #[test]
    fn kernels_that_do_not_wait_are_found() {
        let found = |text: &str| {
            definitions(&without_comments(text)).iter().map(|definition| waits_first(definition)).collect::<Vec<_>>()
        };
        assert_eq!(found("PLIMSOLL_EXPORT a(int x) {\n    wait_for_previous_kernel();\n    b(x);\n}\n"), [true]);
        assert_eq!(
            found("    PLIMSOLL_EXPORT a##s(T x) {   \\\n        wait_for_previous_kernel();   \\\n    }\n"),
            [true]
        );
        assert_eq!(found("PLIMSOLL_EXPORT a(int* x) {\n    *x = 1;\n    wait_for_previous_kernel();\n}\n"), [false]);
        assert_eq!(found("extern \"C\" __global__ void a() {\n    // wait_for_previous_kernel();\n}\n"), [false]);
        assert_eq!(
            found("__global__ void a() {}\nPLIMSOLL_EXPORT b() { wait_for_previous_kernel(); }\n"),
            [false, true]
        );
    }

    /// Reads that count on memory staying as it is while the kernel lives may be moved before the wait, and find what lay in
    /// a cache. Weights in few bits, which are read so, come by copies.
    #[test]
    fn nothing_is_read_through_a_cache_that_is_not_coherent() {
        for (name, text) in kernel_files() {
            for word in ["__restrict__", "__ldg", "ld.global.nc"] {
                assert!(!text.contains(word) || (&*name, word) == ("stored.cuh", "ld.global.nc"), "{name} has {word}");
            }
        }
    }
}
