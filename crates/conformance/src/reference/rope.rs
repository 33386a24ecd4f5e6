use plimsoll_graph::ops::Rope;

use super::Array;

/// Turns the pair (i, i + half) among the rotated columns of each query and key head by the angle of its position.
pub fn rope(op: &Rope, inputs: &[&Array]) -> Array {
    let (qkv, table, positions) = (inputs[0], inputs[1], inputs[2]);
    let half = op.rotated / 2;
    let mut rotated = qkv.clone();
    for token in 0..qkv.rows() {
        let angles = table.row(positions.index(token));
        for head in 0..op.heads.query + op.heads.kv {
            for i in 0..half {
                let first = head * op.heads.head_dim + i;
                let (cos, sin) = (angles[i], if op.inverse { -angles[half + i] } else { angles[half + i] });
                let (a, b) = (qkv.row(token)[first], qkv.row(token)[first + half]);
                rotated.row_mut(token)[first] = a * cos - b * sin;
                rotated.row_mut(token)[first + half] = b * cos + a * sin;
            }
        }
    }
    rotated
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::Heads;

    use super::super::finite_difference::testing::{array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    #[test]
    fn gradient_is_the_slope() {
        let random = &mut Random::new(4);
        for rotated in [6, 4] {
            let op = Rope { rotated, ..Rope::new(Heads { query: 2, kv: 1, head_dim: 6 }) };
            let qkv = array(random, &[3, op.heads.fused_cols()]);
            let inputs = [qkv, array(random, &[5, rotated]), Array::new(&[3], vec![4.0, 0.0, 2.0])];
            let forward = Op::from(op.clone());
            let dy = upstream(random, &forward, &inputs);
            let dx = rope(&Rope { inverse: true, ..op }, &[&dy[0], &inputs[1], &inputs[2]]);
            check_gradient(&forward, &inputs, 0, &dy, &dx);
        }
    }
}
