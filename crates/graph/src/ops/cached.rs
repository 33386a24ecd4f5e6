//! Keys and values kept for sequences that grow a few tokens at a time, and attention over them.
//!
//! A cache `[places · capacity, k heads | v heads]` has `capacity` rows for each sequence. The token at position `p` of the
//! sequence at place `s` lies in row `s·capacity + p mod capacity`: where a window bounds what is seen, the newest tokens
//! take the places of those that have left it. A row of the micro-batch whose place is negative belongs to no sequence.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, rows_of, same_as};
use crate::ops::Heads;
use crate::{GraphError, Value, Work};

/// Inputs `qkv [N, q heads | k heads | v heads], cache, places [N], positions [N]`; output `cache` with the rows' keys and
/// values. No two rows may have the same place and the same position mod `capacity`.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheWrite {
    pub heads: Heads,
    pub capacity: usize,
}

/// Inputs as [`CacheWrite`] has them, the cache with the rows' own keys and values in it. Output `[N, q heads]`: what each
/// row takes from those of its sequence up to itself, or from the last `window` of them. Scores are as in
/// [`Attention`](crate::ops::Attention). Rows that belong to no sequence have zeros.
///
/// A row sees at most `capacity` positions, so where there is no window, positions are below `capacity`; with one, a
/// sequence has at most `capacity - window + 1` rows in a micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct CachedAttention {
    pub heads: Heads,
    pub window: Option<usize>,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub capacity: usize,
}

impl CachedAttention {
    /// The first position that the row at `position` sees.
    pub fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// Rows, cache, places and positions must belong together.
fn check(op: &'static str, inputs: &[&Value], heads: &Heads, capacity: usize) -> Result<(), GraphError> {
    expect_inputs(op, inputs, 4)?;
    let (rows, cached) = (inputs[0].shape.rows(), inputs[1].shape.rows());
    expect_shape(op, inputs, 0, &[rows, heads.fused_cols()])?;
    expect_shape(op, inputs, 1, &[cached, 2 * heads.kv_cols()])?;
    expect_shape(op, inputs, 2, &[rows])?;
    expect_shape(op, inputs, 3, &[rows])?;
    if capacity == 0 || !cached.is_multiple_of(capacity) {
        let reason = format!("a cache of {cached} rows is not made of places of {capacity}");
        return Err(GraphError::Invalid { op, reason });
    }
    Ok(())
}

impl OpRule for CacheWrite {
    fn name(&self) -> &'static str {
        "cache_write"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        check(self.name(), inputs, &self.heads, self.capacity)?;
        Ok(vec![same_as(inputs[1])])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::Must { output: 0, input: 1 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        let row_bytes = 2 * self.heads.kv_cols() * io.inputs[0].dtype().bytes();
        Work::memory(0.0, 2.0 * (io.inputs[0].shape.rows() * row_bytes) as f64)
    }

    fn writes_some_columns(&self) -> bool {
        true
    }

    fn launches(&self) -> usize {
        1
    }
}

impl OpRule for CachedAttention {
    fn name(&self) -> &'static str {
        "cached_attention"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        check(self.name(), inputs, &self.heads, self.capacity)?;
        if self.window.is_some_and(|window| window == 0 || window > self.capacity) {
            let reason = format!("a window of {:?} does not fit places of {}", self.window, self.capacity);
            return Err(GraphError::Invalid { op: self.name(), reason });
        }
        Ok(vec![rows_of(inputs[0], self.heads.query_cols(), inputs[0].dtype())])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        let pairs = io.inputs[0].shape.rows() * self.window.unwrap_or(self.capacity);
        Work::memory(4.0 * pairs as f64 * self.heads.query_cols() as f64, io.bytes())
    }

    fn launches(&self) -> usize {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::output;
    use crate::{DType, Extent, Role};

    #[test]
    fn caches_hold_whole_places_and_windows() {
        let heads = Heads { query: 4, kv: 2, head_dim: 8 };
        let input = |shape: &[usize], dtype, extent| output(shape, dtype, Role::Input, extent);
        let qkv = input(&[5, heads.fused_cols()], DType::F32, Extent::TOKENS);
        let ids = input(&[5], DType::I32, Extent::TOKENS);
        for (rows, capacity, window, valid) in [
            (24, 8, None, true),
            (24, 8, Some(8), true),
            (24, 8, Some(9), false),
            (24, 8, Some(0), false),
            (24, 7, None, false),
            (24, 0, None, false),
        ] {
            let cache = input(&[rows, 2 * heads.kv_cols()], DType::F32, Extent::Fixed);
            let op = CachedAttention { heads, window, scale: 1.0, softcap: None, capacity };
            let outputs = op.outputs(&[&qkv, &cache, &ids, &ids]);
            assert_eq!(outputs.is_ok(), valid, "{rows} rows, {op:?}: {outputs:?}");
        }
    }

    #[test]
    fn a_window_hides_what_has_left_it() {
        let heads = Heads { query: 1, kv: 1, head_dim: 2 };
        let op = |window| CachedAttention { heads, window, scale: 1.0, softcap: None, capacity: 9 };
        assert_eq!([0, 3, 8].map(|at| op(None).first_seen(at)), [0, 0, 0]);
        assert_eq!([0, 3, 8].map(|at| op(Some(4)).first_seen(at)), [0, 0, 5]);
    }
}
