//! What a checkpoint consists of, and how damage is found.

use std::collections::BTreeMap;
use std::io;
use std::path::{Component, Path};

use plimsoll_files::{Checksum, NewFolder, Summed, sum_file};
use serde::{Deserialize, Serialize};

pub(super) const MANIFEST_FILE: &str = "manifest.json";
const FORMAT: u32 = 1;

/// Size and checksum of each file, and a checksum over that list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u32,
    files: BTreeMap<String, FileSum>,
    checksum: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileSum {
    bytes: u64,
    xxh3_128: String,
}

impl From<Summed> for FileSum {
    fn from(sum: Summed) -> Self {
        Self { bytes: sum.bytes, xxh3_128: format!("{:032x}", sum.xxh3) }
    }
}

/// Why a checkpoint cannot be used: the file, and what is wrong with it.
pub(super) struct Damage {
    pub file: String,
    pub reason: String,
}

impl Manifest {
    pub fn new(files: impl IntoIterator<Item = (String, Summed)>) -> Self {
        let files = files.into_iter().map(|(name, sum)| (name, sum.into())).collect();
        let checksum = checksum_of(&files);
        Self { format: FORMAT, files, checksum }
    }

    pub fn write(&self, folder: &NewFolder) -> io::Result<()> {
        folder.write(MANIFEST_FILE, &self.to_bytes()).map(|_| ())
    }

    fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }

    fn read(folder: &Path) -> Result<Self, String> {
        let bytes = std::fs::read(folder.join(MANIFEST_FILE)).map_err(|error| error.to_string())?;
        let manifest: Self = serde_json::from_slice(&bytes).map_err(|_| "it is not a manifest".to_owned())?;
        if manifest.format != FORMAT {
            return Err(format!("its format is {}, this version reads {FORMAT}", manifest.format));
        }
        // Written in one way only, so any other byte is damage.
        if manifest.checksum != checksum_of(&manifest.files) || manifest.to_bytes() != bytes {
            return Err("its content does not match its checksum".to_owned());
        }
        Ok(manifest)
    }

    /// Reads every file and compares.
    pub fn verify(folder: &Path) -> Result<(), Damage> {
        let manifest = Self::read(folder).map_err(|reason| Damage { file: MANIFEST_FILE.to_owned(), reason })?;
        for (name, expected) in &manifest.files {
            let damage = |reason: String| Damage { file: name.clone(), reason };
            // A manifest from elsewhere could name what has no end.
            if Path::new(name).components().any(|part| !matches!(part, Component::Normal(_))) {
                return Err(damage("it lies outside the folder".to_owned()));
            }
            let path = folder.join(name);
            let found = std::fs::metadata(&path).map_err(|error| damage(error.to_string()))?;
            if !found.is_file() {
                return Err(damage("it is no file".to_owned()));
            }
            // The size first: a file that is too short need not be read.
            let bytes = found.len();
            if bytes != expected.bytes {
                return Err(damage(format!("it has {bytes} bytes, {} were written", expected.bytes)));
            }
            let found = sum_file(&path).map_err(|error| damage(error.to_string()))?;
            if FileSum::from(found) != *expected {
                return Err(damage("its content does not match its checksum".to_owned()));
            }
        }
        Ok(())
    }
}

fn checksum_of(files: &BTreeMap<String, FileSum>) -> String {
    let mut sum = Checksum::default();
    sum.update(&serde_json::to_vec(files).expect("plain data"));
    format!("{:032x}", sum.finish().xxh3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_an_end_are_not_read() {
        let here = tempfile::tempdir().expect("a folder");
        std::os::unix::fs::symlink("/dev/zero", here.path().join("zero")).expect("a link");
        for (name, reason) in
            [("/dev/zero", "outside"), ("../x", "outside"), ("a/../../x", "outside"), ("zero", "no file")]
        {
            let empty = Checksum::default().finish();
            let manifest = Manifest::new([(name.to_owned(), empty)]);
            std::fs::write(here.path().join(MANIFEST_FILE), manifest.to_bytes()).expect("written");
            let Err(damage) = Manifest::verify(here.path()) else { panic!("{name} is taken for sound") };
            assert_eq!(damage.file, name);
            assert!(damage.reason.contains(reason), "{}", damage.reason);
        }
    }
}
