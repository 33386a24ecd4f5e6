//! Devices that are not there, or not as they should be. Every case holds with and without a GPU in the machine: the
//! driver, if there is one, is told to show none.

use std::path::{Path, PathBuf};

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

/// A card that cannot be planned for is not a budget problem, and a mode beside another costs what it says.
#[test]
fn both_modes_are_shown_for_a_card() {
    let world = World::bare(&format!("{SHAPE}data: {{max_length: 32}}\nbatch: {{sequences: 4}}\n"));
    let json = |mode: &str| {
        world.run(&["plan", "run.yaml", "--json", "--device", "RTX 4090", "--gpu", "2GiB", "--mode", mode]).ok().json()
    };
    let compiled = json("compiled");
    let bytes = |path: &str| compiled["modes"][path].as_u64().expect("a size");
    let recorded = compiled["gpu"]["categories"]["recorded"].as_u64().expect("a size");
    assert!(recorded > 0);
    assert_eq!(bytes("compiled_bytes"), compiled["gpu"]["planned_bytes"].as_u64().expect("a size"));
    assert_eq!(bytes("compiled_bytes"), bytes("eager_bytes") + recorded);
}
