//! Attention by its whole definition, `attention_generic.cu`: every layout, mask and form of scores, any storage type, head
//! dims up to 256.

use plimsoll_graph::ops::{Attention, AttentionGrad, DISTANCE_TILE, Heads, Mask, QkvLayout};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, Operand, type_suffix};

const MODULE: &str = "attention_generic";
const THREADS: u32 = 128;
/// Rows that a block keeps and rows that it walks over.
const OWN_ROWS: usize = 16;
const OTHER_ROWS: usize = 32;
/// Results lie in eight registers per row, 32 columns to each.
const HEAD_DIM_MAX: usize = 256;
const BIAS_THREADS: usize = 256;

const _: () = assert!(OWN_ROWS == DISTANCE_TILE, "each block of queries has its sums over distances");

pub(crate) fn attention(op: &Attention, call: &Call) -> Result<(), RuntimeError> {
    let inputs = |index| call.input(index);
    let problem = Problem::new(op, call, op.operands(), &inputs, &inputs)?;
    let (out, lse) = (call.output(0), call.output(1));
    let args = problem.args(&problem.operands).ptr(out.ptr).ptr(lse.ptr);
    problem.launch("attention_forward", op.heads.query, problem.queries, forward_bytes(op.heads.head_dim), args)
}

/// The queries' gradients come first: their kernel also leaves `Σ d_out·out`, which the keys' kernel reads, and the sums
/// that make the bias' gradient.
pub(crate) fn attention_grad(grad: &AttentionGrad, call: &Call) -> Result<(), RuntimeError> {
    let op = &grad.0;
    let problem =
        Problem::new(op, call, grad.boundaries_at(), &|index| call.input(index), &|index| call.output(index))?;
    let out_at = grad.out_at();
    let [out, lse, d_out] = [out_at, out_at + 1, out_at + 2].map(|index| call.input(index).ptr);
    let heads = op.heads.query;
    let queries = call.input(0).planned_rows;
    let keys = call.input(op.operands().min(2) - 1).planned_rows;
    let sequences = call.input(grad.boundaries_at()).planned_rows - 1;
    let sums_per_head = if op.bias { op.distance_sums(queries, keys, sequences, true) } else { 0 };
    let (delta, planned) = call.workspace();
    let needed = (queries + sums_per_head) * heads * size_of::<f32>();
    if planned < needed {
        return Err(call.error(format!("needs {needed} bytes of workspace, {planned} were planned")));
    }
    let sums = delta + (queries * heads * size_of::<f32>()) as u64;
    let shared_bytes = gradient_bytes(op.heads.head_dim);
    let args = problem.args(&problem.gradients).ptr(out).ptr(lse).ptr(d_out).ptr(delta).ptr(sums);
    let args = args.u64(sums_per_head as u64).i32(op.max_keys as i32);
    problem.launch("attention_grad_queries", heads, problem.queries, shared_bytes, args)?;
    let args = problem.args(&problem.gradients).ptr(lse).ptr(d_out).ptr(delta);
    problem.launch("attention_grad_keys", op.heads.kv, problem.keys, shared_bytes, args)?;
    if !op.bias {
        return Ok(());
    }
    let d_bias = call.output(op.operands());
    let args = Args::new().ptr(sums).ptr(problem.bounds[0]).ptr(problem.bounds[1]).ptr(d_bias.ptr);
    let args = args.i32(problem.sequences as i32).i32(op.max_length as i32).i32(op.distances() as i32);
    let args = args.i32(op.max_keys as i32).u64(sums_per_head as u64);
    let grid = (op.distances().div_ceil(BIAS_THREADS) as u32, heads as u32, 1);
    call.launch(MODULE, "attention_grad_bias", grid, BIAS_THREADS as u32, 0, args)
}

/// Where queries, keys and values begin, and the elements from row to row of queries and of the others.
type Places = [u64; 5];

/// What the kernels take, and how the work is divided.
struct Problem<'a> {
    op: &'a Attention,
    call: &'a Call<'a>,
    suffix: &'static str,
    operands: Places,
    gradients: Places,
    /// Of the queries' and the keys' sequences.
    bounds: [u64; 2],
    bias: u64,
    sequences: usize,
    /// Tokens in use on either side.
    queries: usize,
    keys: usize,
}

impl<'a> Problem<'a> {
    /// With the boundaries at `boundaries_at`; where there are no gradients, the operands stand for them.
    fn new(
        op: &'a Attention,
        call: &'a Call,
        boundaries_at: usize,
        operand: &dyn Fn(usize) -> Operand,
        gradient: &dyn Fn(usize) -> Operand,
    ) -> Result<Self, RuntimeError> {
        let Heads { query, kv, head_dim } = op.heads;
        if kv == 0 || !query.is_multiple_of(kv) || head_dim > HEAD_DIM_MAX {
            let reason = format!("{query} query heads on {kv} key heads of {head_dim} have no kernel");
            return Err(call.error(format!("{reason}; head dims may be up to {HEAD_DIM_MAX}")));
        }
        let dtype = operand(0).dtype;
        let bounds = [boundaries_at, boundaries_at + op.boundaries() - 1].map(|index| call.input(index));
        Ok(Self {
            op,
            call,
            suffix: type_suffix(dtype).ok_or_else(|| call.unsupported(dtype))?,
            operands: places(op, operand),
            gradients: places(op, gradient),
            bounds: bounds.map(|bounds| bounds.ptr),
            bias: if op.bias { call.input(boundaries_at + op.boundaries()).ptr } else { 0 },
            sequences: bounds[0].rows - 1,
            queries: operand(0).rows,
            keys: operand(op.operands().min(2) - 1).rows,
        })
    }

    /// The kernels' first argument, word by word.
    fn args(&self, gradients: &Places) -> Args {
        let Attention { heads, mask, scale, softcap, max_length, .. } = *self.op;
        let (causal, window) = match mask {
            Mask::Causal { window } => (1, window.map_or(i32::MAX, |w| i32::try_from(w).unwrap_or(i32::MAX))),
            Mask::Full => (0, i32::MAX),
        };
        let pair = |low: usize, high: usize| low as u32 as u64 | (high as u32 as u64) << 32;
        let mut words = [0; 19];
        words[..3].copy_from_slice(&[self.bounds[0], self.bounds[1], self.bias]);
        words[3] = pair(self.sequences, self.queries);
        words[4] = pair(self.keys, heads.query);
        words[5] = pair(heads.kv, heads.head_dim);
        words[6] = pair(causal, window as usize);
        words[7] = pair(max_length, self.op.distances());
        words[8] = pair(scale.to_bits() as usize, softcap.unwrap_or(0.0).to_bits() as usize);
        words[9..14].copy_from_slice(&self.operands);
        words[14..].copy_from_slice(gradients);
        Args::with_table(&[words], 1)
    }

    /// Blocks for `heads` heads, and at least as many tiles of rows as there can be: each sequence, and each stretch of
    /// rows outside of them, may begin one more. Those not needed end at once.
    fn launch(
        &self,
        kernel: &str,
        heads: usize,
        tokens: usize,
        shared_bytes: usize,
        args: Args,
    ) -> Result<(), RuntimeError> {
        let tiles = if tokens == 0 { 0 } else { tokens / OWN_ROWS + self.sequences + 2 };
        let kernel = format!("{kernel}_{}", self.suffix);
        self.call.launch(MODULE, &kernel, (heads as u32, tiles as u32, 1), THREADS, shared_bytes as u32, args)
    }
}

fn places(op: &Attention, operand: &dyn Fn(usize) -> Operand) -> Places {
    let (q, kv) = (op.heads.query_cols(), op.heads.kv_cols());
    let [q_at, k_at, v_at] = match op.layout {
        QkvLayout::Fused => [(0, 0), (0, q), (0, q + kv)],
        QkvLayout::FusedKeyValue => [(0, 0), (1, 0), (1, kv)],
        QkvLayout::Separate => [(0, 0), (1, 0), (2, 0)],
    };
    let at = |(index, column)| operand(index).at(0, column);
    [at(q_at), at(k_at), at(v_at), operand(q_at.0).cols as u64, operand(k_at.0).cols as u64]
}

/// Rows lie in shared memory as floats with one column to spare.
fn row_bytes(head_dim: usize) -> usize {
    (head_dim + 1) * size_of::<f32>()
}

fn forward_bytes(head_dim: usize) -> usize {
    (OWN_ROWS + 2 * OTHER_ROWS) * row_bytes(head_dim)
}

/// Also a tile of scores' gradients.
fn gradient_bytes(head_dim: usize) -> usize {
    2 * (OWN_ROWS + OTHER_ROWS) * row_bytes(head_dim) + OWN_ROWS * row_bytes(OTHER_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a block may have at most where it may have least.
    #[test]
    fn shared_memory_fits_every_card() {
        assert!(gradient_bytes(HEAD_DIM_MAX).max(forward_bytes(HEAD_DIM_MAX)) <= 99 * 1024);
    }
}
