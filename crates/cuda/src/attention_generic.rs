//! Attention by its whole definition: every layout, mask and form of scores. On tensor cores for sixteen-bit types and the
//! head dims of most models, `attention_general_{type}_{head_dim}.cu`; else any storage type and head dims up to 256,
//! `attention_generic.cu`.

use plimsoll_graph::DType;
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
/// Rows that a block keeps on tensor cores.
const TILE_ROWS: usize = 64;
/// Floats from row to row of a tile of scores' gradients.
const DISTANCE_STRIDE: usize = 40;

const _: () = assert!(OWN_ROWS == DISTANCE_TILE, "each block of queries has its sums over distances");

pub(crate) fn attention(op: &Attention, call: &Call) -> Result<(), RuntimeError> {
    let inputs = |index| call.input(index);
    let problem = Problem::new(op, call, op.operands(), &inputs, &inputs)?;
    let (out, lse) = (call.output(0), call.output(1));
    let args = problem.args(&problem.operands).ptr(out.ptr).ptr(lse.ptr);
    problem.launch("attention_forward", op.heads.query, problem.queries, problem.kernels.forward_bytes, args)
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
    let shared_bytes = problem.kernels.gradient_bytes;
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
    kernels: Kernels,
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
            kernels: Kernels::new(dtype, head_dim).ok_or_else(|| call.unsupported(dtype))?,
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
        let Kernels { module, suffix, own_rows, .. } = &self.kernels;
        let tiles = if tokens == 0 { 0 } else { tokens / own_rows + self.sequences + 2 };
        let grid = (heads as u32, tiles as u32, 1);
        self.call.launch(module, &format!("{kernel}{suffix}"), grid, THREADS, shared_bytes as u32, args)
    }
}

/// The kernels for a storage type and a head dim.
struct Kernels {
    module: &'static str,
    /// What stands behind their names.
    suffix: String,
    /// Rows that a block keeps.
    own_rows: usize,
    forward_bytes: usize,
    gradient_bytes: usize,
}

impl Kernels {
    /// `None` for types that no kernel computes on.
    fn new(dtype: DType, head_dim: usize) -> Option<Self> {
        if let Some(module) = tensor_core_module(dtype, head_dim) {
            let (forward_bytes, gradient_bytes) = tensor_core_bytes(head_dim);
            return Some(Self { module, suffix: String::new(), own_rows: TILE_ROWS, forward_bytes, gradient_bytes });
        }
        Some(Self {
            module: MODULE,
            suffix: format!("_{}", type_suffix(dtype)?),
            own_rows: OWN_ROWS,
            forward_bytes: forward_bytes(head_dim),
            gradient_bytes: gradient_bytes(head_dim),
        })
    }
}

fn tensor_core_module(dtype: DType, head_dim: usize) -> Option<&'static str> {
    Some(match (dtype, head_dim) {
        (DType::BF16, 64) => "attention_general_bf16_64",
        (DType::BF16, 128) => "attention_general_bf16_128",
        (DType::F16, 64) => "attention_general_f16_64",
        (DType::F16, 128) => "attention_general_f16_128",
        _ => return None,
    })
}

/// Shared memory of the forward kernel and of the gradients' on tensor cores, as `attention_general.cuh` divides it: the
/// block's own rows, two stages of the other side's, the bias that each of these needs, and for gradients a tile of those of
/// each warp's scores, or two numbers for each row of a stage.
fn tensor_core_bytes(head_dim: usize) -> (usize, usize) {
    let (forward_rows, gradient_rows, alignment) = (64, 32, 1024);
    let (row_bytes, float) = (2 * head_dim, size_of::<f32>());
    let biases = |others: usize| 2 * (TILE_ROWS + others) * float;
    let forward = (TILE_ROWS + 4 * forward_rows) * row_bytes + biases(forward_rows);
    let distances = TILE_ROWS * DISTANCE_STRIDE * float;
    let gradient = (2 * TILE_ROWS + 4 * gradient_rows) * row_bytes + biases(gradient_rows) + distances;
    (forward + alignment, gradient + alignment)
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
        for head_dim in [64, 128] {
            let (forward, gradient) = tensor_core_bytes(head_dim);
            assert!(forward.max(gradient) <= 99 * 1024, "head dim {head_dim}");
        }
    }
}
