use super::Array;

pub fn embed(inputs: &[&Array]) -> Array {
    let (table, tokens) = (inputs[0], inputs[1]);
    let data = (0..tokens.rows()).flat_map(|t| table.row(tokens.index(t)).to_vec()).collect();
    Array::new(&[tokens.rows(), table.cols()], data)
}

/// The table's gradient with each token's row added.
pub fn embed_grad(inputs: &[&Array]) -> Array {
    let (dx, tokens, mut d_table) = (inputs[0], inputs[1], inputs[2].clone());
    for token in 0..tokens.rows() {
        let row = d_table.row_mut(tokens.index(token));
        row.iter_mut().zip(dx.row(token)).for_each(|(sum, d)| *sum += d);
    }
    d_table
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::ops::Embed;
    use plimsoll_graph::{DType, Op};

    use super::super::finite_difference::testing::{array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    #[test]
    fn gradient_is_the_slope() {
        let random = &mut Random::new(7);
        let inputs = [array(random, &[4, 3]), Array::new(&[5], vec![2.0, 0.0, 2.0, 3.0, 2.0])];
        let forward = Op::from(Embed { dtype: DType::F32 });
        let dx = upstream(random, &forward, &inputs);
        let d_table = embed_grad(&[&dx[0], &inputs[1], &Array::filled(&[4, 3], 0.0)]);
        check_gradient(&forward, &inputs, 0, &dx, &d_table);
    }
}
