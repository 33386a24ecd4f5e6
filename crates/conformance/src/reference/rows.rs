use plimsoll_graph::ops::SplitRows;

use super::Array;

/// The last token of each sequence; `None` if it is empty.
fn last_tokens(cu_seqlens: &Array) -> Vec<Option<usize>> {
    cu_seqlens.data.windows(2).map(|ends| (ends[0] < ends[1]).then(|| ends[1] as usize - 1)).collect()
}

pub fn last_rows(inputs: &[&Array]) -> Array {
    let (x, last) = (inputs[0], last_tokens(inputs[1]));
    let mut shape = x.shape.clone();
    shape[0] = last.len();
    let row = |token: &Option<usize>| token.map_or(vec![0.0; x.cols()], |token| x.row(token).to_vec());
    Array::new(&shape, last.iter().flat_map(row).collect())
}

/// The tokens in use are those up to the end of the last sequence.
pub fn last_rows_grad(inputs: &[&Array]) -> Array {
    let (dy, ends) = (inputs[0], inputs[1]);
    let mut dx = Array::filled(&[ends.index(ends.rows() - 1), dy.cols()], 0.0);
    for (sequence, token) in last_tokens(ends).into_iter().enumerate() {
        if let Some(token) = token {
            dx.row_mut(token).copy_from_slice(dy.row(sequence));
        }
    }
    dx
}

/// Runs behind the tokens in use are empty.
pub fn split_rows(op: &SplitRows, inputs: &[&Array]) -> Vec<Array> {
    let x = inputs[0];
    let run = |index: usize| {
        let [start, end] = [index, index + 1].map(|run| x.rows().min(run * op.rows));
        let mut shape = x.shape.clone();
        shape[0] = end - start;
        Array::new(&shape, (start..end).flat_map(|row| x.row(row).to_vec()).collect())
    };
    (0..op.runs).map(run).collect()
}

pub fn join_rows(inputs: &[&Array]) -> Array {
    let mut shape = inputs[0].shape.clone();
    shape[0] = inputs.iter().map(|run| run.rows()).sum();
    Array::new(&shape, inputs.iter().flat_map(|run| run.data.clone()).collect())
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::LastRows;

    use super::super::finite_difference::testing::{array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    #[test]
    fn gradient_is_the_slope() {
        let random = &mut Random::new(11);
        let ends = Array::new(&[6], vec![0.0, 2.0, 2.0, 3.0, 7.0, 7.0]);
        let inputs = [array(random, &[7, 3]), ends];
        let forward = Op::from(LastRows);
        let dy = upstream(random, &forward, &inputs);
        let dx = last_rows_grad(&[&dy[0], &inputs[1]]);
        check_gradient(&forward, &inputs, 0, &dy, &dx);
    }
}
