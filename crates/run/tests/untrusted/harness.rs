//! One input, read in a folder of its own, and what came of it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Once;

use crate::allocations::most_held;
use crate::damage::{Random, damaged};
use crate::targets::Target;

/// The input of a seed.
pub fn input(target: &Target, seed: u64) -> Vec<u8> {
    let name = target.name.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    damaged(&(target.seeds)(), target.words, &mut Random::new(seed ^ name.rotate_left(32)))
}

pub fn try_case(target: &Target, seed: u64, folder: &Path) -> Result<(), String> {
    try_bytes(target, &input(target, seed), folder)
}

/// Reads the bytes as this kind of file.
pub fn try_bytes(target: &Target, bytes: &[u8], folder: &Path) -> Result<(), String> {
    let mut outcome = Ok(());
    let held = most_held(|| {
        outcome = catch_unwind(AssertUnwindSafe(|| (target.read)(folder, bytes))).map_err(|panic| {
            let text =
                panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
            format!("it panics: {}", text.unwrap_or("for no reason"))
        });
    });
    outcome?;
    if held > target.mib_max << 20 {
        return Err(format!("it holds {} MiB, more than {}", held >> 20, target.mib_max));
    }
    Ok(())
}

/// Panics of decoders are caught where they happen, and would still be printed, thousands of them.
pub fn be_quiet_about_decoders() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let say = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !plimsoll_data::decoding_untrusted() {
                say(info);
            }
        }));
    });
}
