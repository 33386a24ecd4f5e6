//! Keys and values kept for sequences that grow a few tokens at a time, or that stay as they are while others grow beside
//! them, and attention over them.
//!
//! A cache `[places · capacity, k heads | v heads]` has `capacity` rows for each sequence. The token at position `p`
//! of the sequence at place `s` lies in row `s·capacity + p mod capacity`: where a window bounds what is seen, the
//! newest tokens take the places of those that have left it. A row of the micro-batch whose place is negative belongs
//! to no sequence.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, rows_of, same_as};
use crate::ops::{Heads, QkvLayout};
use crate::{GraphError, Value, Work};

/// Inputs `rows, cache, places [N], positions [N]`; output `cache` with the rows' keys and values. The rows are
/// `qkv [N, q heads | k heads | v heads]`, or `kv [N, k heads | v heads]` where keys come apart from queries. No two
/// rows may have the same place and the same position mod `capacity`.
#[derive(Debug, Clone, PartialEq)]
pub struct CacheWrite {
    pub heads: Heads,
    pub layout: QkvLayout,
    pub capacity: usize,
}

/// Inputs `rows, cache, places [N], positions [N]`, then with `bias` a table `[q heads, distances] f32`. The rows are
/// `qkv` as [`CacheWrite`] has them, or queries alone `[N, q heads]`. Output `[N, q heads]`: what each row takes from
/// the cached keys of its place from the first to the one at its position, or from the last `window` of them. Scores
/// are as in [`Attention`](crate::ops::Attention); with `bias = z` they have the table's entry of their head at
/// `key position - position + z` added. Rows that belong to no sequence have zeros.
///
/// Rows that come with keys of their own stand at their own positions; others at that of the last key they see. A row
/// sees at most `capacity` positions, so where there is no window, positions are below `capacity`; with one, a
/// sequence has at most `capacity - window + 1` rows in a micro-batch.
#[derive(Debug, Clone, PartialEq)]
pub struct CachedAttention {
    pub heads: Heads,
    pub layout: QkvLayout,
    pub window: Option<usize>,
    pub scale: f32,
    pub softcap: Option<f32>,
    /// The column of distance zero.
    pub bias: Option<usize>,
    pub capacity: usize,
}

impl CachedAttention {
    /// The first position that the row at `position` sees.
    pub fn first_seen(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }

    /// Columns of the rows that it reads.
    pub fn row_cols(&self) -> usize {
        if self.layout == QkvLayout::Fused { self.heads.fused_cols() } else { self.heads.query_cols() }
    }
}

impl CacheWrite {
    /// Columns of the rows that it reads, of which keys and values are the last.
    pub fn row_cols(&self) -> usize {
        if self.layout == QkvLayout::Fused { self.heads.fused_cols() } else { 2 * self.heads.kv_cols() }
    }
}

/// Rows, cache, places and positions must belong together.
fn check(
    op: &'static str,
    inputs: &[&Value],
    (heads, layout): (&Heads, QkvLayout),
    row_cols: usize,
    capacity: usize,
) -> Result<(), GraphError> {
    let invalid = |reason| GraphError::Invalid { op, reason };
    if layout == QkvLayout::Separate {
        return Err(invalid("keys and values share rows of a cache".to_owned()));
    }
    let (rows, cached) = (inputs[0].shape.rows(), inputs[1].shape.rows());
    expect_shape(op, inputs, 0, &[rows, row_cols])?;
    expect_shape(op, inputs, 1, &[cached, 2 * heads.kv_cols()])?;
    expect_shape(op, inputs, 2, &[rows])?;
    expect_shape(op, inputs, 3, &[rows])?;
    if capacity == 0 || !cached.is_multiple_of(capacity) {
        return Err(invalid(format!("a cache of {cached} rows is not made of places of {capacity}")));
    }
    Ok(())
}

impl OpRule for CacheWrite {
    fn name(&self) -> &'static str {
        "cache_write"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 4)?;
        check(self.name(), inputs, (&self.heads, self.layout), self.row_cols(), self.capacity)?;
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

    fn launches(&self, _io: &Io) -> usize {
        1
    }
}

impl OpRule for CachedAttention {
    fn name(&self) -> &'static str {
        "cached_attention"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 4 + usize::from(self.bias.is_some()))?;
        check(self.name(), inputs, (&self.heads, self.layout), self.row_cols(), self.capacity)?;
        if let Some(zero) = self.bias {
            let distances = inputs[4].shape.cols();
            expect_shape(self.name(), inputs, 4, &[self.heads.query, distances])?;
            let seen = self.window.unwrap_or(self.capacity);
            if zero >= distances || zero + 1 < seen {
                let reason = format!("{seen} distances up to column {zero} do not lie in a bias of {distances}");
                return Err(GraphError::Invalid { op: self.name(), reason });
            }
        }
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

    fn launches(&self, _io: &Io) -> usize {
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
            let op = CachedAttention { window, capacity, ..plain(heads) };
            let outputs = op.outputs(&[&qkv, &cache, &ids, &ids]);
            assert_eq!(outputs.is_ok(), valid, "{rows} rows, {op:?}: {outputs:?}");
        }
    }

    /// A place of eight needs the distances from -7 to 0.
    #[test]
    fn a_bias_has_every_distance_that_is_seen() {
        let heads = Heads { query: 4, kv: 4, head_dim: 8 };
        let input = |shape: &[usize], dtype, extent| output(shape, dtype, Role::Input, extent);
        let q = input(&[5, heads.query_cols()], DType::F32, Extent::TOKENS);
        let ids = input(&[5], DType::I32, Extent::TOKENS);
        let cache = input(&[16, 2 * heads.kv_cols()], DType::F32, Extent::Fixed);
        for (distances, zero, valid) in [(15, 7, true), (8, 7, true), (15, 6, false), (8, 8, false)] {
            let table = input(&[4, distances], DType::F32, Extent::Fixed);
            let layout = QkvLayout::FusedKeyValue;
            let op = CachedAttention { layout, bias: Some(zero), capacity: 8, ..plain(heads) };
            let outputs = op.outputs(&[&q, &cache, &ids, &ids, &table]);
            assert_eq!(outputs.is_ok(), valid, "{distances} with zero at {zero}: {outputs:?}");
        }
    }

    fn plain(heads: Heads) -> CachedAttention {
        let layout = QkvLayout::Fused;
        CachedAttention { heads, layout, window: None, scale: 1.0, softcap: None, bias: None, capacity: 9 }
    }

    #[test]
    fn a_window_hides_what_has_left_it() {
        let op = |window| CachedAttention { window, ..plain(Heads { query: 1, kv: 1, head_dim: 2 }) };
        assert_eq!([0, 3, 8].map(|at| op(None).first_seen(at)), [0, 0, 0]);
        assert_eq!([0, 3, 8].map(|at| op(Some(4)).first_seen(at)), [0, 0, 5]);
    }
}
