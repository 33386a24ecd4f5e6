use plimsoll_graph::ops::{AdapterUp, AdapterUpGrad};

use super::Array;
use super::array::{add_scaled, dot};

/// `α·h_j·b_jᵀ` in the columns of each block, zero in the others.
pub fn adapter_up(op: &AdapterUp, inputs: &[&Array]) -> Array {
    let (h, b) = (inputs[0], inputs[1]);
    let rank = b.cols();
    let mut y = Array::filled(&[h.rows(), op.0.total], 0.0);
    for token in 0..h.rows() {
        for (block, first_row, first_col) in op.0.places(rank) {
            let h = &h.row(token)[first_col..first_col + rank];
            for out in 0..block.len {
                y.row_mut(token)[block.start + out] = f64::from(op.0.alpha) * dot(h, b.row(first_row + out));
            }
        }
    }
    y
}

/// `α·dy_j·b_j` beside each other, and `db_j + α·dy_jᵀ·h_j` below each other.
pub fn adapter_up_grad(op: &AdapterUpGrad, inputs: &[&Array]) -> Vec<Array> {
    let (dy, h, b) = (inputs[0], inputs[1], inputs[2]);
    let rank = b.cols();
    let (mut dh, mut db) = (Array::filled(&[h.rows(), h.cols()], 0.0), inputs[3].clone());
    for token in 0..h.rows() {
        for (block, first_row, first_col) in op.0.places(rank) {
            for out in 0..block.len {
                let dy = f64::from(op.0.alpha) * dy.row(token)[block.start + out];
                add_scaled(&mut dh.row_mut(token)[first_col..first_col + rank], dy, b.row(first_row + out));
                add_scaled(db.row_mut(first_row + out), dy, &h.row(token)[first_col..first_col + rank]);
            }
        }
    }
    vec![dh, db]
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::{Adapters, Columns};

    use super::super::finite_difference::testing::{array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    #[test]
    fn gradients_are_the_slopes() {
        let random = &mut Random::new(4);
        let blocks = vec![Columns { start: 1, len: 3 }, Columns { start: 6, len: 2 }];
        let adapters = Adapters { alpha: 0.7, blocks, total: 9 };
        let inputs = [array(random, &[4, 4]), array(random, &[5, 2])];
        let forward = Op::from(AdapterUp(adapters.clone()));
        let dy = upstream(random, &forward, &inputs);
        let zero = Array::zeros_like(&inputs[1]);
        let grads = adapter_up_grad(&AdapterUpGrad(adapters), &[&dy[0], &inputs[0], &inputs[1], &zero]);
        for (input, grad) in grads.iter().enumerate() {
            check_gradient(&forward, &inputs, input, &dy, grad);
        }
    }
}
