use plimsoll_graph::ops::{Embed, EmbedGrad};

use super::Array;

pub fn embed(op: &Embed, inputs: &[&Array]) -> Array {
    let (table, tokens) = (inputs[0], inputs[1]);
    let row = |t: usize| table.row(tokens.index(t)).iter().map(|x| f64::from(op.scale) * x).collect::<Vec<_>>();
    let data = (0..tokens.rows()).flat_map(row).collect();
    Array::new(&[tokens.rows(), table.cols()], data)
}

/// The table's gradient with each token's row added.
pub fn embed_grad(op: &EmbedGrad, inputs: &[&Array]) -> Array {
    let (dx, tokens, mut d_table) = (inputs[0], inputs[1], inputs[2].clone());
    for token in (0..tokens.rows()).filter(|&t| op.padding.is_none_or(|padding| tokens.index(t) != padding as usize)) {
        let row = d_table.row_mut(tokens.index(token));
        row.iter_mut().zip(dx.row(token)).for_each(|(sum, d)| *sum += f64::from(op.scale) * d);
    }
    d_table
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{DType, Op};

    use super::super::finite_difference::testing::{array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    #[test]
    fn gradient_is_the_slope() {
        let random = &mut Random::new(7);
        let inputs = [array(random, &[4, 3]), Array::new(&[5], vec![2.0, 0.0, 2.0, 3.0, 2.0])];
        for scale in [1.0, 2.5] {
            let forward = Op::from(Embed { dtype: DType::F32, scale, padding: None });
            let dx = upstream(random, &forward, &inputs);
            let d_table =
                embed_grad(&EmbedGrad { scale, padding: None }, &[&dx[0], &inputs[1], &Array::filled(&[4, 3], 0.0)]);
            check_gradient(&forward, &inputs, 0, &dx, &d_table);
        }
    }
}
