//! Devices that are not there, or not as they should be. Every case holds with and without a GPU in the machine: the
//! driver, if there is one, is set to show none.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::support::{SHAPE, Said, World};

/// A bench of a tiny model on a machine that shows no GPU, with `folder` searched for libraries first.
fn bench(device: &str, folder: Option<&Path>) -> Said {
    let world = World::bare(&format!("{SHAPE}data: {{max_length: 32}}\nbatch: {{sequences: 4}}\n"));
    let mut command = world.command(&["bench", "run.yaml", "--json", "--steps", "1", "--device", device]);
    command.env("CUDA_VISIBLE_DEVICES", "").env("XDG_CACHE_HOME", world.path("cache"));
    if let Some(folder) = folder {
        command.env("PLIMSOLL_CUDA_PATH", folder);
    }
    let said = Said::from(command.output().expect("runs"));
    assert_eq!(world.names("."), ["run.yaml"], "nothing is left behind");
    said
}

/// Asked for nothing, the program takes the CPU and says why in one line.
#[test]
fn the_way_to_the_cpu_is_explained() {
    let said = bench("auto", None).ok();
    let notes: Vec<&str> = said.stderr.lines().collect();
    assert_eq!(notes.len(), 1, "{}", said.stderr);
    assert!(notes[0].starts_with("running on the CPU: no NVIDIA "), "{}", said.stderr);
    assert_eq!(said.json()["device"], "cpu");
}

/// Asked for a GPU that is not there, it does not run on something else.
#[test]
fn a_gpu_that_is_not_there_is_an_error() {
    for device in ["cuda", "cuda:0", "cuda:7"] {
        let said = bench(device, None);
        assert_eq!(said.code, Some(2), "{}", said.stderr);
        assert_eq!(said.stdout, "");
        assert!(said.stderr.starts_with("error: --device: "), "{}", said.stderr);
        assert!(said.stderr.lines().last().is_some_and(|line| line.starts_with("hint: ")), "{}", said.stderr);
    }
}

const LIBRARIES: [&str; 4] = ["libcuda.so.1", "libnvrtc.so.13", "libcublasLt.so.13", "libnvidia-ml.so.1"];

/// Folders that look like an installation and hold none.
#[test]
fn libraries_that_are_none_are_refused() {
    let folders = tempfile::tempdir().expect("a temporary folder");
    let make = |name: &str, fill: &dyn Fn(PathBuf)| {
        let folder = folders.path().join(name);
        std::fs::create_dir(&folder).expect("just made");
        LIBRARIES.iter().for_each(|library| fill(folder.join(library)));
        folder
    };
    let some_library = loaded_library();
    let cases = [
        make("empty", &|_| {}),
        make("text", &|path| std::fs::write(path, "no library at all").expect("writable")),
        make("folders", &|path| std::fs::create_dir(path).expect("writable")),
        make("cut", &|path| std::fs::write(path, b"\x7fELF\x02\x01\x01").expect("writable")),
        make("another", &|path| std::fs::copy(&some_library, path).map(|_| ()).expect("writable")),
        folders.path().join("missing"),
    ];
    for folder in cases {
        let said = bench("cuda:0", Some(&folder));
        assert_eq!(said.code, Some(2), "{}: {}", folder.display(), said.stderr);
        assert!(said.stderr.starts_with("error: --device: "), "{}: {}", folder.display(), said.stderr);
        assert!(!said.stderr.contains("internal error"), "{}: {}", folder.display(), said.stderr);
        bench("auto", Some(&folder)).ok();
    }
}

/// A real library that is not what its name will say.
fn loaded_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let files = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    let found = files.into_iter().find(|file| file.contains("libgcc_s.so") || file.contains("libm.so"));
    PathBuf::from(found.expect("every Rust program has one of them"))
}

/// Compiles one of `fakes/` under the name by which it is looked for.
fn compile(source: &str, library: &str, definitions: &[&str], folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/fakes").join(source);
    let status = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", &format!("-Wl,-soname,{library}"), "-o"])
        .arg(folder.join(library))
        .args(definitions)
        .arg(source)
        .status();
    assert!(status.expect("a C compiler, as the build needs one").success(), "{library}");
}

/// A whole installation around a driver that goes wrong as defined.
fn installation(definitions: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    compile("driver.c", "libcuda.so", definitions, folder.path());
    compile("management.c", "libnvidia-ml.so.1", &[], folder.path());
    for (library, function) in [("libnvrtc.so", "nvrtcCompileProgram"), ("libcublasLt.so", "cublasLtMatmul")] {
        // Any library that has the function by which it is known.
        let name = format!("-DcuInit={function}");
        compile("driver.c", library, &[&name], folder.path());
    }
    folder
}

#[test]
fn drivers_that_cannot_be_used_say_why() {
    let check = |definitions: &[&str], device: &str, code: i32, expected: &str| {
        let said = bench(device, Some(installation(definitions).path()));
        assert_eq!((said.code, said.stderr.as_str()), (Some(code), expected), "{definitions:?}");
    };
    check(
        &["-DVERSION=11080"],
        "cuda:0",
        2,
        "error: --device: the NVIDIA driver supports CUDA 11.8 at most, at least 12.0 is needed\n\
         hint: install driver 525 or newer\n",
    );
    check(
        &["-DINIT=100"],
        "cuda:0",
        2,
        "error: --device: no NVIDIA GPU is visible: no CUDA-capable device is detected (CUDA_ERROR_NO_DEVICE)\n\
         hint: check `nvidia-smi` and CUDA_VISIBLE_DEVICES\n",
    );
    check(
        &["-DCOUNT=0"],
        "cuda:0",
        2,
        "error: --device: no NVIDIA GPU is visible: the driver lists none\n\
         hint: check `nvidia-smi` and CUDA_VISIBLE_DEVICES\n",
    );
    check(
        &["-DCOUNT=2"],
        "cuda:5",
        2,
        "error: --device: GPU 5 does not exist; there are 2 visible\nhint: use --device cuda:0 or cuda:1\n",
    );
    check(
        &["-DRETAIN=2"],
        "cuda:0",
        3,
        "error: the GPU is full: cuDevicePrimaryCtxRetain found no memory; in use by python (pid 4711) with 12.00 GiB\n\
         hint: stop the processes that hold the memory, or choose another GPU with --device\n",
    );
}

/// A driver alone is not enough; what is missing is named with the way to get it. (Where the system has the libraries,
/// the next thing that is missing is named: a GPU.)
#[test]
fn a_driver_without_its_libraries_is_recognised() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    compile("driver.c", "libcuda.so", &["-DCOUNT=0"], folder.path());
    let said = bench("cuda:0", Some(folder.path()));
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(!said.stderr.contains("NVIDIA driver ("), "{}", said.stderr);
    let missing = ["NVRTC (libnvrtc.so.13", "cuBLASLt (libcublasLt.so.13", "no NVIDIA GPU is visible"];
    assert!(missing.iter().any(|what| said.stderr.contains(what)), "{}", said.stderr);
    assert!(said.stderr.contains("pip install nvidia-") || said.stderr.contains("nvidia-smi"), "{}", said.stderr);
}

#[test]
fn the_cpu_takes_over_from_drivers_that_cannot_be_used() {
    for (definition, why) in [
        ("-DVERSION=11080", "the NVIDIA driver supports CUDA 11.8 at most, at least 12.0 is needed"),
        ("-DCOUNT=0", "no NVIDIA GPU is visible: the driver lists none"),
        (
            "-DRETAIN=2",
            "the GPU is full: cuDevicePrimaryCtxRetain found no memory; in use by python (pid 4711) with 12.00 GiB",
        ),
    ] {
        let said = bench("auto", Some(installation(&[definition]).path())).ok();
        assert_eq!(said.stderr, format!("running on the CPU: {why}\n"));
    }
}
