//! Flash attention: on tensor cores where scores are plain and causal, for the usual head dims in 16-bit types,
//! `attention_{type}_{head_dim}.cu`; everything else is [`attention_generic`](crate::attention_generic)'s.

use plimsoll_graph::DType;
use plimsoll_graph::ops::{Attention, AttentionGrad, Heads};
use plimsoll_runtime::RuntimeError;

use crate::attention_generic;
use crate::call::{Args, Call, Operand};

pub(crate) fn attention(op: &Attention, call: &Call) -> Result<(), RuntimeError> {
    let (qkv, bounds, out, lse) = (call.input(0), call.input(1), call.output(0), call.output(1));
    let Some(kernels) = Kernels::choose(op, &qkv, &bounds, call) else { return attention_generic::attention(op, call) };
    let args = Args::new().ptr(qkv.ptr).ptr(bounds.ptr).ptr(out.ptr).ptr(lse.ptr);
    kernels.launch("attention_forward", op.heads.query, kernels.forward_bytes, args)
}

/// The queries' gradients come first: their kernel also leaves `Σ d_out·out`, which the keys' kernel reads.
pub(crate) fn attention_grad(grad: &AttentionGrad, call: &Call) -> Result<(), RuntimeError> {
    let op = &grad.0;
    let (qkv, out, lse) = (call.input(0), call.input(1), call.input(2));
    let (d_out, bounds, d_qkv) = (call.input(3), call.input(4), call.output(0));
    let Some(kernels) = Kernels::choose(op, &qkv, &bounds, call) else {
        return attention_generic::attention_grad(grad, call);
    };
    let (queries, keys) = (kernels.for_queries(), kernels.for_keys());
    let (delta, planned) = call.workspace();
    let needed = qkv.rows * op.heads.query * size_of::<f32>();
    if planned < needed {
        return Err(call.error(format!("needs {needed} bytes of workspace, {planned} were planned")));
    }
    let args = Args::new().ptr(qkv.ptr).ptr(out.ptr).ptr(lse.ptr).ptr(d_out.ptr);
    let args = args.ptr(bounds.ptr).ptr(d_qkv.ptr).ptr(delta);
    queries.launch("attention_grad_queries", op.heads.query, queries.gradient_bytes, args)?;
    let args = Args::new().ptr(qkv.ptr).ptr(lse.ptr).ptr(d_out.ptr).ptr(bounds.ptr).ptr(d_qkv.ptr).ptr(delta);
    keys.launch("attention_grad_keys", op.heads.kv, keys.gradient_bytes, args)
}

/// The kernels for one type and head dim, and how they divide their work.
#[derive(Clone, Copy)]
struct Kernels<'a> {
    op: &'a Attention,
    call: &'a Call<'a>,
    module: &'static str,
    tokens: usize,
    sequences: usize,
    /// Queries or keys of a block.
    rows: usize,
    threads: u32,
    forward_bytes: usize,
    gradient_bytes: usize,
    /// Blocks of half the size, two on a multiprocessor. The bits are the same.
    small: bool,
    /// Blocks that stay, one on each multiprocessor, and take one piece of work after another.
    persistent: bool,
}

impl<'a> Kernels<'a> {
    /// `None` where only the generic kernels do.
    fn choose(op: &'a Attention, qkv: &Operand, bounds: &Operand, call: &'a Call) -> Option<Self> {
        let Heads { query, kv, head_dim } = op.heads;
        if !op.is_plain_causal() || kv == 0 || !query.is_multiple_of(kv) {
            return None;
        }
        let module = tensor_core_module(qkv.dtype, head_dim)?;
        let capability = call.compute_capability();
        let persistent = blocks_persist(head_dim, capability);
        let (forward_bytes, gradient_bytes) =
            if persistent { persistent_bytes(head_dim) } else { tensor_core_bytes(head_dim, capability) };
        Some(Self {
            op,
            call,
            module,
            tokens: qkv.rows,
            sequences: bounds.rows - 1,
            rows: 128,
            threads: if persistent { 384 } else { 256 },
            forward_bytes,
            gradient_bytes,
            small: false,
            persistent,
        })
    }

    /// A block of queries waits for them once and has little to do then; where there is room for two, the one multiplies
    /// while the other waits.
    fn for_queries(self) -> Self {
        let room = matches!(self.call.compute_capability(), (9..=11, _)) && !self.persistent;
        if room { self.halved() } else { self }
    }

    /// Few key heads make few blocks, and those that many queries see take longest: then smaller ones end sooner. Blocks
    /// that stay are worth more than that unless half of the multiprocessors would have none.
    fn for_keys(self) -> Self {
        let (blocks, multiprocessors) =
            (self.op.heads.kv * self.tokens.div_ceil(self.rows), self.call.sm_count() as usize);
        let few = if self.persistent { 2 * blocks < multiprocessors } else { 2 * blocks < 3 * multiprocessors };
        let suits = few && has_large_blocks(self.call.compute_capability());
        if suits { self.halved() } else { self }
    }

    fn halved(self) -> Self {
        let head_dim = self.op.heads.head_dim;
        let own_rows_saved = 2 * (self.rows / 2) * row_bytes(head_dim);
        let gradient_bytes = tensor_core_bytes(head_dim, self.call.compute_capability()).1 - own_rows_saved;
        Self { rows: self.rows / 2, threads: 128, gradient_bytes, small: true, persistent: false, ..self }
    }

    /// Blocks for `heads` heads, and at least as many tiles of rows as there can be: each sequence, and
    /// each stretch of rows outside of them, may begin one more. Those not needed end at once.
    fn launch(&self, kernel: &str, heads: usize, shared_bytes: usize, args: Args) -> Result<(), RuntimeError> {
        let Attention { heads: Heads { query, kv, .. }, scale, .. } = *self.op;
        let sequences = self.sequences;
        let tiles = self.tokens / self.rows + sequences + 2;
        let args = args.i32(sequences as i32).i32(self.tokens as i32).i32(query as i32).i32(kv as i32);
        let window = self.op.window().map_or(i32::MAX, |w| i32::try_from(w).unwrap_or(i32::MAX));
        let args = args.f32(scale).i32(window);
        let kernel = if self.small { format!("{kernel}_small") } else { kernel.to_owned() };
        let grid = match (self.tokens, self.persistent) {
            (0, _) => (0, 1, 1),
            (_, true) => ((heads * tiles).min(self.call.sm_count() as usize) as u32, 1, 1),
            (_, false) => (heads as u32, tiles as u32, 1),
        };
        self.call.launch(self.module, &kernel, grid, self.threads, shared_bytes as u32, args)
    }
}

fn tensor_core_module(dtype: DType, head_dim: usize) -> Option<&'static str> {
    Some(match (dtype, head_dim) {
        (DType::BF16, 64) => "attention_bf16_64",
        (DType::BF16, 80) => "attention_bf16_80",
        (DType::BF16, 96) => "attention_bf16_96",
        (DType::BF16, 128) => "attention_bf16_128",
        (DType::F16, 64) => "attention_f16_64",
        (DType::F16, 80) => "attention_f16_80",
        (DType::F16, 96) => "attention_f16_96",
        (DType::F16, 128) => "attention_f16_128",
        _ => return None,
    })
}

/// A head's row in shared memory: panels of 64 columns.
fn row_bytes(head_dim: usize) -> usize {
    head_dim.div_ceil(64) * 128
}

/// Cards of these generations have 163 KiB of shared memory and more for a block, others 99.
fn has_large_blocks(capability: (u32, u32)) -> bool {
    matches!(capability, (8, 0 | 7) | (9..=11, _))
}

/// Hopper, for whole panels.
fn blocks_persist(head_dim: usize, capability: (u32, u32)) -> bool {
    capability == (9, 0) && head_dim.is_multiple_of(64)
}

/// Tiles are aligned to so many bytes.
const ALIGNMENT: usize = 1024;

/// Shared memory of the forward kernel and of the gradients' where blocks stay, as `attention_hopper_forward.cuh` and
/// `attention_hopper_gradient.cuh` divide it: everything twice, and what both sides tell each other.
fn persistent_bytes(head_dim: usize) -> (usize, usize) {
    let (item, ring) = (16, 32);
    let row_bytes = row_bytes(head_dim);
    let forward = 6 * 128 * row_bytes + 2 * item + 3 * ring;
    let statistics = 2 * 2 * 128 * size_of::<f32>();
    let gradient = (4 * 128 + 4 * 64) * row_bytes + statistics + 2 * item + 2 * ring;
    (forward + ALIGNMENT, gradient + ALIGNMENT)
}

/// Shared memory of the forward kernel and of the gradients', as `attention.cuh` divides it: tiles of rows
/// in panels of 128 bytes, the block's own and two stages of the other side's.
fn tensor_core_bytes(head_dim: usize, capability: (u32, u32)) -> (usize, usize) {
    let row_bytes = row_bytes(head_dim);
    let forward = (128 + 2 * 2 * 64) * row_bytes;
    let step = if has_large_blocks(capability) { 64 } else { 32 };
    let statistics = 2 * 2 * step * size_of::<f32>();
    let gradient = (2 * 128 + 2 * 2 * step) * row_bytes + statistics;
    (forward + ALIGNMENT, gradient + ALIGNMENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a block may have at most, by generation.
    #[test]
    fn shared_memory_fits_every_card() {
        for (capability, most_kib) in [((8, 0), 163), ((8, 6), 99), ((8, 9), 99), ((9, 0), 227), ((12, 0), 99)] {
            for head_dim in [64, 80, 96, 128] {
                let (forward, gradient) = tensor_core_bytes(head_dim, capability);
                assert!(forward.max(gradient) <= most_kib * 1024, "{capability:?}, head dim {head_dim}");
                let (forward, gradient) = persistent_bytes(head_dim);
                let stays = blocks_persist(head_dim, capability);
                assert!(!stays || forward.max(gradient) <= most_kib * 1024, "{capability:?}, head dim {head_dim}");
            }
        }
    }
}
