//! A card's figures on disk. Processes may share the folder: a file appears whole or not at all, and one that
//! belongs to another driver or other kernels, or holds nonsense, is measured again.

use std::path::PathBuf;

use plimsoll_plan::CardRates;
use serde::{Deserialize, Serialize};

use crate::cache::{hash, put, user_folder};

#[derive(Serialize, Deserialize)]
struct Content {
    /// Everything the figures depend on.
    key: String,
    rates: CardRates,
}

/// The place of one card's figures.
pub(super) struct CardFile {
    path: Option<PathBuf>,
    key: String,
}

impl CardFile {
    /// `$XDG_CACHE_HOME/plimsoll/cards/NAME-HASH.json`.
    pub(super) fn of_user(name: &str, key: &str) -> Self {
        Self::in_folder(user_folder("cards"), name, key)
    }

    fn in_folder(folder: Option<PathBuf>, name: &str, key: &str) -> Self {
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let file = format!("{plain}-{:016x}.json", hash(key.as_bytes()));
        Self { path: folder.map(|folder| folder.join(file)), key: key.to_owned() }
    }

    pub(super) fn path(&self) -> Option<PathBuf> {
        self.path.clone()
    }

    pub(super) fn read(&self) -> Option<CardRates> {
        let text = std::fs::read(self.path.as_ref()?).ok()?;
        let content: Content = serde_json::from_slice(&text).ok()?;
        (content.key == self.key && content.rates.is_sound()).then_some(content.rates)
    }

    /// Figures that cannot be stored are measured again the next time, nothing else.
    pub(super) fn write(&self, rates: &CardRates) {
        let content = Content { key: self.key.clone(), rates: rates.clone() };
        if let (Some(path), Ok(text)) = (&self.path, serde_json::to_vec_pretty(&content)) {
            let _ = put(path, &text);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use plimsoll_plan::{AttentionRate, ProductGrid, Sustained};

    use super::*;

    fn rates() -> CardRates {
        let grid = ProductGrid { rows: vec![1, 2], cols: vec![3], inner: vec![4], flops_per_s: vec![1e12, 0.1 + 0.2] };
        CardRates {
            products16: grid.clone(),
            products32: grid,
            products8: None,
            attention: vec![AttentionRate { length: 512, forward_flops_per_s: 2e14, gradient_flops_per_s: 1e14 }],
            operators: BTreeMap::from([("add".to_owned(), 3e12)]),
            copy_bytes_per_s: 1e12,
            to_device_bytes_per_s: 5e10,
            from_device_bytes_per_s: 5e10,
            launch_s: 1.5e-6,
            late_bytes: 1 << 20,
            multiprocessors: 132,
            recorded_bytes_per_launch: 700.0,
            sustained: Sustained {
                products_flops_per_s: 6e14,
                products8_flops_per_s: None,
                attention_share: 0.75,
                moving_share: 0.9,
                rates: BTreeMap::from([("gated".to_owned(), 3e12)]),
            },
        }
    }

    #[test]
    fn figures_come_back_to_the_bit_under_their_key_alone() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = |key: &str| CardFile::in_folder(Some(folder.path().join("cards")), "NVIDIA H200", key);
        assert_eq!(file("driver 580").read(), None);
        file("driver 580").write(&rates());
        assert_eq!(file("driver 580").read(), Some(rates()));
        assert_eq!(file("driver 590").read(), None);
    }

    #[test]
    fn a_file_that_makes_no_sense_counts_as_none() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = CardFile::in_folder(Some(folder.path().to_owned()), "card", "key");
        file.write(&rates());
        let path = file.path().expect("a folder was given");
        let whole = std::fs::read_to_string(&path).expect("written");
        for spoilt in ["", "{}", &whole[..whole.len() / 2], &whole.replace("1.5e-6", "-1.0"), "null"] {
            std::fs::write(&path, spoilt).expect("writable");
            assert_eq!(file.read(), None, "{spoilt}");
        }
    }

    #[test]
    fn processes_that_write_at_once_leave_a_whole_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = || CardFile::in_folder(Some(folder.path().to_owned()), "card", "key");
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| (0..20).for_each(|_| file().write(&rates())));
            }
            for _ in 0..200 {
                let read = file().read();
                assert!(read.is_none() || read == Some(rates()));
            }
        });
        assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 1, "one file and nothing else");
    }
}
