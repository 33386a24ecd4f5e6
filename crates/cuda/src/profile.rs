//! The card's own figures: measured at first use, stored on disk from then on.

mod cases;
mod file;
mod measure;
mod sustained;

use std::path::PathBuf;
use std::sync::Arc;

use plimsoll_plan::CardRates;
use plimsoll_runtime::{Backend, RuntimeError};

use crate::CudaBackend;

/// What is known of a card, and where it is stored.
#[derive(Debug, Clone)]
pub struct Profile {
    pub rates: Arc<CardRates>,
    /// `None` where there is no folder to keep it in.
    pub file: Option<PathBuf>,
    /// Whether it was measured just now.
    pub fresh: bool,
}

impl CudaBackend {
    /// The card's figures: those on disk if they are of this card, driver, libraries and kernels, else measured
    /// now, which takes some seconds and up to half a GiB of the card. With `anew`, always measured.
    /// Must come before the arena is taken.
    pub fn profile(&mut self, anew: bool) -> Result<Profile, RuntimeError> {
        let key = self.device().profile_key();
        let stored = file::CardFile::of_user(self.name(), &key);
        let known = if anew { None } else { stored.read() };
        if let Some(rates) = known {
            return Ok(Profile { rates: Arc::new(rates), file: stored.path(), fresh: false });
        }
        let rates = measure::measure(self)?;
        if !rates.is_sound() {
            return Err(RuntimeError::Device { reason: format!("{}: rates make no sense: {rates:?}", self.name()) });
        }
        stored.write(&rates);
        Ok(Profile { rates: Arc::new(rates), file: stored.path(), fresh: true })
    }
}
