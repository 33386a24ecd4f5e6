//! Which group is seen when, from any cursor on.

mod epochs;
mod iteration;
mod mixture;
mod permutation;
mod stored;
mod streamed;

pub use epochs::Order;
pub(crate) use epochs::{SplitMix64, epoch_key, mix};
pub use iteration::{Cursor, SourceCursor};
pub(crate) use iteration::{Iteration, Located, Next};
pub(crate) use mixture::MIXTURE_BYTES;
pub(crate) use permutation::Permutation;
pub(crate) use stored::{Stored, StoredIteration};
pub(crate) use streamed::StreamIteration;
