//! Scores of candidates inside a sequence, and losses over the order in which they put them, with the gradients.

use plimsoll_graph::ops::{LIST_STATS, ListLoss, Ranking};
use plimsoll_runtime::RuntimeError;

use crate::call::{Args, Call, two_types, type_suffix};

const MODULE: &str = "ranking";
const BLOCK: u32 = 256;
const WARP: u32 = 32;
/// A thread for each candidate of a list; there are seldom more.
const LIST_BLOCK: u32 = 128;

pub(crate) fn list_loss(op: &ListLoss, call: &Call) -> Result<(), RuntimeError> {
    let (hidden, weight, marks) = (call.input(0), call.input(1), call.input(2));
    let (boundaries, scale) = (call.input(3), call.input(4).ptr);
    let Some(suffix) = type_suffix(hidden.dtype).filter(|_| hidden.dtype == weight.dtype) else {
        return Err(call.unsupported(weight.dtype));
    };
    call.carry_over(&call.input(5), &call.output(0))?;
    call.carry_over(&call.input(6), &call.output(1))?;
    let (sequences, cols) = (boundaries.rows as u32 - 1, hidden.cols as u32);
    let lists = Lists::new(call, hidden.rows, sequences as usize)?;
    let per_sequence = (sequences, 1, 1);
    let ranking = match op.ranking {
        Ranking::ListMle => 0,
        Ranking::ListNet => 1,
        Ranking::Pairwise => 2,
    };

    let args = Args::new().ptr(marks.ptr).ptr(boundaries.ptr).ptr(lists.places).ptr(lists.counts);
    call.launch(MODULE, "list_candidates", per_sequence, WARP, 0, args)?;
    let found = |args: Args| args.ptr(boundaries.ptr).ptr(lists.places).ptr(lists.counts);
    let args = found(Args::new().ptr(hidden.ptr).ptr(weight.ptr)).ptr(lists.scores).u32(cols);
    call.launch(MODULE, &format!("list_scores_{suffix}"), per_sequence, BLOCK, 0, args)?;
    let args = found(Args::new().ptr(marks.ptr))
        .ptr(lists.scores)
        .ptr(lists.ranks)
        .ptr(lists.gradients)
        .ptr(lists.sums)
        .ptr(lists.totals)
        .u32(ranking)
        .u32(op.top.unwrap_or(u32::MAX))
        .ptr(scale);
    call.launch(MODULE, "list_order", per_sequence, LIST_BLOCK, 0, args)?;
    let args = Args::new().ptr(lists.totals).u32(sequences).ptr(scale).ptr(call.output(0).ptr).ptr(call.output(1).ptr);
    call.launch(MODULE, "list_totals", (u32::from(sequences > 0), 1, 1), 1, 0, args)?;
    if let Some(before) = op.weight_grad_input() {
        let dw = call.output(3);
        call.carry_over(&call.input(before), &dw)?;
        let kernel = format!("list_weight_grad_{}", two_types(call, hidden.dtype, dw.dtype)?);
        let args = found(Args::new().ptr(hidden.ptr)).ptr(lists.gradients).ptr(dw.ptr).u32(sequences).u32(cols);
        call.launch(MODULE, &kernel, (cols.div_ceil(BLOCK), 1, 1), BLOCK, 0, args)?;
    }
    if op.grad.is_some() {
        // Last, because it may be written over `hidden`.
        let d_hidden = call.output(2);
        call.zero(d_hidden.ptr, d_hidden.bytes())?;
        let args = found(Args::new().ptr(weight.ptr)).ptr(lists.gradients).ptr(d_hidden.ptr).u32(cols);
        call.launch(MODULE, &format!("list_hidden_grad_{suffix}"), per_sequence, BLOCK, 0, args)?;
    }
    Ok(())
}

/// How the workspace is divided. What is known of a sequence's candidates lies one behind another from where the sequence
/// begins.
struct Lists {
    sums: u64,
    totals: u64,
    counts: u64,
    scores: u64,
    gradients: u64,
    ranks: u64,
    places: u64,
}

impl Lists {
    fn new(call: &Call, tokens: usize, sequences: usize) -> Result<Self, RuntimeError> {
        let (start, bytes) = call.workspace();
        let mut used = 0;
        let mut take = |count: usize, size: usize| {
            let at = start + used as u64;
            used += count * size;
            at
        };
        // Doubles first, so that all of them are aligned.
        let lists = Self {
            sums: take(tokens, size_of::<f64>()),
            totals: take(sequences * LIST_STATS, size_of::<f64>()),
            counts: take(sequences, size_of::<i32>()),
            scores: take(tokens, size_of::<f32>()),
            gradients: take(tokens, size_of::<f32>()),
            ranks: take(tokens, size_of::<i32>()),
            places: take(tokens, size_of::<i32>()),
        };
        if used > bytes {
            return Err(call.error(format!("needs {used} bytes of workspace, {bytes} were planned")));
        }
        Ok(lists)
    }
}
