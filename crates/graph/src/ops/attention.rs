//! Attention over flat tokens: sequences lie one behind another and never see each other. Scores exist a tile at a time.

use crate::op::{Io, OpRule, expect_inputs, expect_shape, output, rows_of, same_as};
use crate::{BackendTraits, Backward, DType, Extent, GraphError, Node, Role, Value, ValueId, Work};

/// How a fused row `[q heads | k heads | v heads]` is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    pub query: usize,
    pub kv: usize,
    pub head_dim: usize,
}

impl Heads {
    pub fn fused_cols(&self) -> usize {
        self.query_cols() + 2 * self.kv_cols()
    }

    pub fn query_cols(&self) -> usize {
        self.query * self.head_dim
    }

    pub fn kv_cols(&self) -> usize {
        self.kv * self.head_dim
    }
}

/// In how many operands queries, keys and values come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QkvLayout {
    /// `qkv`: one row holds all three. Queries and keys have the same boundaries.
    Fused,
    /// `q, kv`: keys and values share rows.
    FusedKeyValue,
    /// `q, k, v`.
    Separate,
}

/// Which keys of its sequence a query sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mask {
    /// Itself and those before it; with `window = w`, itself and the `w - 1` before it.
    Causal { window: Option<usize> },
    /// All of them: an encoder's attention, or one into another stream's tokens.
    Full,
}

/// Queries and keys a backend's scratch holds scores for at one time.
pub const QUERY_TILE: usize = 64;
pub const KEY_TILE: usize = 64;

/// Queries that have sums over distances of their own where blocks of threads work side by side.
pub const DISTANCE_TILE: usize = 16;

/// Inputs: the operands of `layout`, then `cu_seqlens` of the queries and, unless `Fused`, `cu_seqlens` of the keys, then
/// with `bias` a table `[q heads, max_length + max_keys - 1] f32`. Outputs `out [N, q·head_dim], lse [N, q]`.
///
/// A score is `scale·q·k`, through `c·tanh(s / c)` with `softcap = c`, plus the table's entry of the query's head at
/// `key position - query position + max_length - 1`; `lse` is the log-sum-exp of a query's scores. Sequence `i` of the
/// queries sees sequence `i` of the keys. A query that sees no key has zeros and an `lse` of zero.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    pub heads: Heads,
    pub layout: QkvLayout,
    pub mask: Mask,
    pub scale: f32,
    pub softcap: Option<f32>,
    pub bias: bool,
    /// Longest sequence of queries.
    pub max_length: usize,
    /// Longest sequence of keys.
    pub max_keys: usize,
}

impl Attention {
    /// Causal attention over fused rows, as decoders have it.
    pub fn causal(heads: Heads, scale: f32, window: Option<usize>, max_length: usize) -> Self {
        let (layout, mask) = (QkvLayout::Fused, Mask::Causal { window });
        Self { heads, layout, mask, scale, softcap: None, bias: false, max_length, max_keys: max_length }
    }

    /// Whether it is of the kind that the fastest kernels are made for: fused rows, causal, plain scores.
    pub fn is_plain_causal(&self) -> bool {
        let causal = matches!(self.mask, Mask::Causal { .. });
        self.layout == QkvLayout::Fused && causal && self.softcap.is_none() && !self.bias
    }

    pub fn window(&self) -> Option<usize> {
        match self.mask {
            Mask::Causal { window } => window,
            Mask::Full => None,
        }
    }

    /// Operands that queries, keys and values come in.
    pub fn operands(&self) -> usize {
        match self.layout {
            QkvLayout::Fused => 1,
            QkvLayout::FusedKeyValue => 2,
            QkvLayout::Separate => 3,
        }
    }

    /// How many boundaries there are: the queries', and the keys' where they have their own.
    pub fn boundaries(&self) -> usize {
        if self.layout == QkvLayout::Fused { 1 } else { 2 }
    }

    /// Entries of the bias for one head.
    pub fn distances(&self) -> usize {
        self.max_length + self.max_keys - 1
    }

    /// Sums over distances that one head has before they are added up. A sequence of `q` queries and `k` keys has
    /// `q + k - 1` distances; those of all sequences lie one behind another, sequence `i` at `q_start + k_start`. Where
    /// each tile of queries has sums of its own (`per_tile`), a tile of [`DISTANCE_TILE`] has `k + DISTANCE_TILE - 1` of
    /// them, those of sequence `i` from [`Attention::tile_sums_at`].
    pub fn distance_sums(&self, queries: usize, keys: usize, sequences: usize, per_tile: bool) -> usize {
        if per_tile { self.tile_sums_at(queries, keys, sequences) } else { queries + keys }
    }

    /// Where the sums of a sequence's tiles begin. All before it have `ceil(q / 16)·(k + 15)` of them, which is at most
    /// `q·max_keys / 16 + q + k + 15` for each: no sequence reaches into the next, and nobody has to count.
    pub fn tile_sums_at(&self, q_start: usize, k_start: usize, sequence: usize) -> usize {
        q_start * self.max_keys / DISTANCE_TILE + q_start + k_start + DISTANCE_TILE * sequence
    }

    /// Columns of each operand.
    fn operand_cols(&self) -> Vec<usize> {
        let (q, kv) = (self.heads.query_cols(), self.heads.kv_cols());
        match self.layout {
            QkvLayout::Fused => vec![q + 2 * kv],
            QkvLayout::FusedKeyValue => vec![q, 2 * kv],
            QkvLayout::Separate => vec![q, kv, kv],
        }
    }

    /// Checks operands, boundaries and bias, which stand at these places among the inputs.
    fn check(&self, name: &'static str, inputs: &[&Value], boundaries_at: usize) -> Result<(), GraphError> {
        for (index, cols) in self.operand_cols().into_iter().enumerate() {
            // Keys and values have one number of rows.
            let rows = inputs[index.min(1)].shape.rows();
            expect_shape(name, inputs, index, &[rows, cols])?;
        }
        for index in boundaries_at..boundaries_at + self.boundaries() {
            if !matches!(inputs[index].extent, Extent::Boundaries(_)) {
                let reason = format!("input {index} with {:?} has no boundaries", inputs[index].extent);
                return Err(GraphError::Invalid { op: name, reason });
            }
        }
        if self.bias {
            let at = boundaries_at + self.boundaries();
            expect_shape(name, inputs, at, &[self.heads.query, self.distances()])?;
        }
        Ok(())
    }

    /// Score entries per head over a full micro-batch.
    fn pairs(&self, tokens: usize) -> f64 {
        let length = self.max_length as f64;
        match self.mask {
            Mask::Full => tokens as f64 * self.max_keys as f64,
            Mask::Causal { window } => {
                let window = window.map_or(length, |w| w as f64).min(length);
                let per_sequence = window * (window + 1.0) / 2.0 + (length - window) * window;
                tokens as f64 * per_sequence / length
            }
        }
    }

    fn work(&self, io: &Io, flops_per_pair: f64, gradient: bool) -> Vec<Work> {
        let flops = flops_per_pair * self.pairs(io.inputs[0].shape.rows()) * self.heads.query_cols() as f64;
        let (length, plain) = (self.max_length, self.is_plain_causal());
        let key_rows = self.heads.kv * io.inputs[self.operands().min(2) - 1].shape.rows();
        vec![Work::Attention { flops, bytes: io.bytes(), length, key_rows, gradient, plain }]
    }

    /// Tiles of scores and of float32 partial results, per worker.
    fn tile_bytes(&self, traits: &BackendTraits) -> usize {
        let tiles = 2 * QUERY_TILE * KEY_TILE + 6 * QUERY_TILE.max(KEY_TILE) * self.heads.head_dim + 4 * QUERY_TILE;
        traits.workers * tiles * 4
    }
}

impl OpRule for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let (operands, boundaries) = (self.operands(), self.boundaries());
        expect_inputs(self.name(), inputs, operands + boundaries + usize::from(self.bias))?;
        self.check(self.name(), inputs, operands)?;
        let rows = inputs[0].shape.rows();
        let lse = output(&[rows, self.heads.query], DType::F32, Role::Activation, inputs[0].extent);
        Ok(vec![rows_of(inputs[0], self.heads.query_cols(), inputs[0].dtype()), lse])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        self.work(io, 4.0, false)
    }

    fn workspace_bytes(&self, _io: &Io, traits: &BackendTraits) -> usize {
        self.tile_bytes(traits)
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(d_out) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let operands = &node.inputs[..self.operands()];
        let mut inputs = operands.to_vec();
        inputs.extend([node.outputs[0], node.outputs[1], d_out]);
        inputs.extend(&node.inputs[self.operands()..]);
        let mut of: Vec<ValueId> = operands.to_vec();
        of.extend(node.inputs.last().filter(|_| self.bias));
        let gradients = pass.emit_all(AttentionGrad(self.clone()), &inputs, &of)?;
        for (value, gradient) in of.into_iter().zip(gradients) {
            pass.accumulate(value, gradient)?;
        }
        Ok(())
    }
}

/// Inputs: the operands, `out, lse, d_out`, then boundaries and bias as in the forward pass; outputs the gradient of each
/// operand, then with a bias that of its table. Scores are rebuilt tile by tile.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionGrad(pub Attention);

impl AttentionGrad {
    /// Position of `out` among the inputs; `lse` and `d_out` follow, then boundaries and bias.
    pub fn out_at(&self) -> usize {
        self.0.operands()
    }

    pub fn boundaries_at(&self) -> usize {
        self.0.operands() + 3
    }
}

impl OpRule for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let op = &self.0;
        expect_inputs(self.name(), inputs, self.boundaries_at() + op.boundaries() + usize::from(op.bias))?;
        op.check(self.name(), inputs, self.boundaries_at())?;
        let (rows, query_cols) = (inputs[0].shape.rows(), op.heads.query_cols());
        for index in [self.out_at(), self.out_at() + 2] {
            expect_shape(self.name(), inputs, index, &[rows, query_cols])?;
        }
        let gradient = |operand: &&Value| rows_of(operand, operand.shape.cols(), operand.dtype());
        let mut outputs: Vec<Value> = inputs[..op.operands()].iter().map(gradient).collect();
        if op.bias {
            let table = inputs[inputs.len() - 1];
            outputs.push(Value { role: Role::Activation, ..same_as(table) });
        }
        Ok(outputs)
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        self.0.work(io, 10.0, true)
    }

    /// The tiles. Where blocks of threads hand results on (GPU), also `Σ d_out·out` of every query and head. With a bias,
    /// the sums over distances, which are then added in order.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        let op = &self.0;
        let (queries, keys) = (io.inputs[0].shape.rows(), io.inputs[op.operands().min(2) - 1].shape.rows());
        let sequences = io.inputs[self.boundaries_at()].shape.rows() - 1;
        let blocks = traits.partial_rows > 0;
        let handed_on = if blocks { queries } else { 0 };
        let sums = if op.bias { op.distance_sums(queries, keys, sequences, blocks) } else { 0 };
        op.tile_bytes(traits) + (handed_on + sums) * op.heads.query * 4
    }

    fn launches(&self, _io: &Io) -> usize {
        4 + usize::from(self.0.bias)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_sequences_lie_apart() {
        let heads = Heads { query: 2, kv: 1, head_dim: 8 };
        let op = Attention { bias: true, max_keys: 130, ..Attention::causal(heads, 1.0, None, 200) };
        for lengths in
            [[(0usize, 5usize), (1, 130), (200, 0)], [(63, 1), (64, 64), (65, 130)], [(200, 130), (1, 1), (128, 129)]]
        {
            let (mut q_start, mut k_start) = (0, 0);
            for (sequence, (queries, keys)) in lengths.into_iter().enumerate() {
                let begin = op.tile_sums_at(q_start, k_start, sequence);
                let needed = queries.div_ceil(DISTANCE_TILE) * (keys + DISTANCE_TILE - 1);
                (q_start, k_start) = (q_start + queries, k_start + keys);
                assert!(begin + needed <= op.tile_sums_at(q_start, k_start, sequence + 1), "{queries} x {keys}");
            }
        }
    }
}
