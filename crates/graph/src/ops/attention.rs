//! Causal attention over flat tokens: sequences lie one behind another and never see each other.
//! Scores exist a tile at a time.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, output, rows_of};
use crate::{Backward, Cost, DType, GraphError, Node, Role, Target, Unit, Value};

/// How one fused row `[q heads | k heads | v heads]` is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    pub query: usize,
    pub kv: usize,
    pub head_dim: usize,
}

impl Heads {
    pub fn fused_cols(&self) -> usize {
        (self.query + 2 * self.kv) * self.head_dim
    }

    pub fn query_cols(&self) -> usize {
        self.query * self.head_dim
    }
}

/// Queries and keys a backend's scratch holds scores for at one time.
pub const QUERY_TILE: usize = 64;
pub const KEY_TILE: usize = 64;

/// Inputs `qkv, cu_seqlens`; outputs `out [N, q·head_dim], lse [N, q]` (log-sum-exp of the scaled scores).
/// With `window = w`, a query sees itself and the `w - 1` tokens before it.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    pub heads: Heads,
    pub scale: f32,
    pub window: Option<usize>,
    /// Longest sequence, for the cost.
    pub max_length: usize,
}

impl Attention {
    /// Score entries per head over a full micro-batch.
    fn pairs(&self, tokens: usize) -> f64 {
        let length = self.max_length as f64;
        let window = self.window.map_or(length, |w| w as f64).min(length);
        let per_sequence = window * (window + 1.0) / 2.0 + (length - window) * window;
        tokens as f64 * per_sequence / length
    }

    /// Tiles of scores and of float32 partial results, per worker.
    fn tile_bytes(&self, target: &Target) -> usize {
        let tiles = 2 * QUERY_TILE * KEY_TILE + 6 * QUERY_TILE.max(KEY_TILE) * self.heads.head_dim + 4 * QUERY_TILE;
        target.workers * tiles * 4
    }
}

impl OpRule for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 2)?;
        let rows = inputs[0].shape.rows();
        expect_shape(self.name(), inputs, 0, &[rows, self.heads.fused_cols()])?;
        let lse = output(&[rows, self.heads.query], DType::F32, Role::Activation, inputs[0].extent);
        Ok(vec![rows_of(inputs[0], self.heads.query_cols(), inputs[0].dtype), lse])
    }

    fn cost(&self, io: &Io) -> Cost {
        let pairs = self.pairs(io.inputs[0].shape.rows());
        let flops = 4.0 * pairs * self.heads.query_cols() as f64;
        Cost { unit: Unit::Attention, flops, bytes: io.bytes() }
    }

    fn workspace_bytes(&self, _io: &Io, target: &Target) -> usize {
        self.tile_bytes(target)
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let Some(d_out) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let inputs = [node.inputs[0], node.outputs[0], node.outputs[1], d_out, node.inputs[1]];
        let d_qkv = pass.emit_one(AttentionGrad(self.clone()), &inputs, node.inputs[0])?;
        pass.accumulate(node.inputs[0], d_qkv)
    }
}

/// Inputs `qkv, out, lse, d_out, cu_seqlens`; output `d_qkv`. Scores are rebuilt tile by tile.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionGrad(pub Attention);

impl OpRule for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 5)?;
        let rows = inputs[0].shape.rows();
        expect_shape(self.name(), inputs, 3, &[rows, self.0.heads.query_cols()])?;
        Ok(vec![rows_of(inputs[0], self.0.heads.fused_cols(), inputs[0].dtype)])
    }

    fn aliases(&self) -> Vec<Alias> {
        Vec::new()
    }

    fn cost(&self, io: &Io) -> Cost {
        let flops = 10.0 * self.0.pairs(io.inputs[0].shape.rows()) * self.0.heads.query_cols() as f64;
        Cost { unit: Unit::Attention, flops, bytes: io.bytes() }
    }

    /// The tiles, and `Σ d_out·out` for every token and head.
    /// Where blocks of threads hand results on (GPU), also `Σ d_out·out` of every query and head.
    fn workspace_bytes(&self, io: &Io, target: &Target) -> usize {
        let handed_on = if target.partial_rows > 0 { io.inputs[0].shape.rows() * self.0.heads.query * 4 } else { 0 };
        self.0.tile_bytes(target) + handed_on
    }
}
