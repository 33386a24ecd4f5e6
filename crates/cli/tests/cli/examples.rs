//! The runs under `examples/` can be planned: in full size for the card that each is meant for, the small ones for a CPU.

use std::path::{Path, PathBuf};

use crate::support::World;

fn examples(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(folder);
    let entries = folder.read_dir().expect("there are examples").filter_map(Result::ok).map(|entry| entry.path());
    let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|end| end == "yaml")).collect();
    files.sort();
    files
}

#[test]
fn every_example_fits() {
    let world = World::bare("");
    let plan = |file: &Path, device: &str| {
        world.run(&["plan", file.to_str().expect("UTF-8"), "--device", device, "--json"]).ok().json()
    };
    let full = examples("");
    assert_eq!(full.len(), 5, "{full:?}");
    for file in &full {
        let name = file.file_name().expect("a file").to_string_lossy();
        let device = match &name[..2] {
            "r0" => "RTX 5090",
            "r3" => "RTX 3060",
            "r4" => "A100 80GB",
            _ => "RTX A5000",
        };
        let report = plan(file, device);
        assert_eq!(report["fits"], true, "{name} on {device}");
    }
    for file in examples("small") {
        assert_eq!(plan(&file, "cpu")["fits"], true, "{}", file.display());
    }
}
