//! `device`: where to train, or what to plan for.

use super::kind::Range;
use super::reader::Reader;
use super::schema::{number, rate, size, text};
use super::section::{Field, Keys, section};
use crate::failure::Failure;

section! {
    /// A GPU by its figures, to plan for.
    pub struct DeviceFigures {
        /// What to call it; `GPU` if unset.
        name: Option<String> = text();
        /// Memory that a process can use.
        memory_bytes as "memory": u64 = size();
        /// Sixteen-bit products with float32 sums, in TFLOP/s that large products really reach.
        tflops: f64 = number(Range::ABOVE_ZERO);
        /// Memory bandwidth that copies really reach, as in 400GB/s.
        bandwidth_bytes_per_s as "bandwidth": u64 = rate();
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum DeviceChoice {
    /// A device of this machine, or a card of the table.
    Named(String),
    Figures(DeviceFigures),
}

impl Field for DeviceChoice {
    fn read_field(section: &Reader<'_>, name: &str) -> Result<Self, Failure> {
        match section.given(name)? {
            Some(figures) => DeviceFigures::read(&figures).map(Self::Figures),
            None => String::read_field(section, name).map(Self::Named),
        }
    }
}
