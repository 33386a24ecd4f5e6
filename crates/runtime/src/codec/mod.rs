//! Weights in few bits: from numbers to codes and scales, and back.
//!
//! What lies where is [`BlockFormat`]'s; which numbers codes stand for is [`Code`](plimsoll_graph::Code)'s. Decoding
//! multiplies in float32, `number(code)·scale`, and a nested scale is `number(code)·scale` and then, rounded apart, `+
//! offset`: as bitsandbytes computes both. Loops are written so that the compiler turns them into vector instructions.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{CodedWeight, round_row_to_e4m3};
pub(crate) use decode::{decode_blocks, nested_scale};
pub use encode::{encode, nest, nested_pairs};

use plimsoll_graph::{BlockFormat, WeightFormat};

/// What a weight of normally distributed numbers is off by once decoded: the root of the mean square, relative to that
/// of the numbers, for rows of 4,096.
pub const RELATIVE_ERRORS: [(WeightFormat, f64); 3] =
    [(WeightFormat::Nf4, 0.0917), (WeightFormat::E4m3, 0.0265), (WeightFormat::Int8, 0.0087)];

/// Bytes of the codes of so many elements, which are whole bytes.
pub(crate) fn code_bytes(format: &BlockFormat, elements: usize) -> usize {
    elements * format.code.bits() / 8
}
