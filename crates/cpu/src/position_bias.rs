//! A bias of attention scores by the distance between key and query, learned for buckets of distances.

use plimsoll_runtime::RuntimeError;

use crate::args::{Call, Matrix};

pub(crate) fn position_bias(call: &Call) -> Result<(), RuntimeError> {
    let (table, out): (Matrix, Matrix) = (call.input(0)?, call.output(0)?);
    let buckets = buckets(call, table.rows)?;
    call.workers.for_each(out.rows, |_, head| {
        // SAFETY: each task writes its own head's row; buckets were checked to be in the table.
        let row = unsafe { std::slice::from_raw_parts_mut(out.row(head), out.cols) };
        for (entry, &bucket) in row.iter_mut().zip(buckets) {
            // SAFETY: as above.
            *entry = unsafe { *table.row(bucket as usize).add(head) };
        }
    });
    Ok(())
}

/// Each task adds up the distances of one head, in order.
pub(crate) fn position_bias_grad(call: &Call) -> Result<(), RuntimeError> {
    let (d_bias, old, table): (Matrix, Matrix, Matrix) = (call.input(0)?, call.input(2)?, call.output(0)?);
    let buckets = buckets(call, table.rows)?;
    call.carry_over(old, table);
    call.workers.for_each(d_bias.rows, |_, head| {
        // SAFETY: each task has its own head's column; buckets were checked to be in the table.
        let row = unsafe { std::slice::from_raw_parts(d_bias.row(head), d_bias.cols) };
        for (entry, &bucket) in row.iter().zip(buckets) {
            // SAFETY: as above.
            unsafe { *table.row(bucket as usize).add(head) += entry };
        }
    });
    Ok(())
}

fn buckets<'a>(call: &Call<'a>, count: usize) -> Result<&'a [i32], RuntimeError> {
    // SAFETY: nobody writes to buckets while a step runs.
    let buckets = unsafe { call.input::<i32>(1)?.slice() };
    match buckets.iter().find(|&&bucket| bucket < 0 || bucket as usize >= count) {
        Some(bad) => Err(call.error(format!("bucket {bad} is outside the table of {count}"))),
        None => Ok(buckets),
    }
}
