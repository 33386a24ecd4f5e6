use super::Array;

/// For each head and distance the entry of its bucket.
pub fn position_bias(inputs: &[&Array]) -> Array {
    let (table, bucket_of) = (inputs[0], inputs[1]);
    let entries = (0..table.cols()).flat_map(|head| (0..bucket_of.rows()).map(move |at| (head, at)));
    let data = entries.map(|(head, at)| table.row(bucket_of.index(at))[head]).collect();
    Array::new(&[table.cols(), bucket_of.rows()], data)
}

/// The table's gradient with each bucket's distances added.
pub fn position_bias_grad(inputs: &[&Array]) -> Array {
    let (d_bias, bucket_of, mut d_table) = (inputs[0], inputs[1], inputs[2].clone());
    for head in 0..d_bias.rows() {
        for (at, d) in d_bias.row(head).iter().enumerate() {
            d_table.row_mut(bucket_of.index(at))[head] += d;
        }
    }
    d_table
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::Op;
    use plimsoll_graph::ops::PositionBias;

    use super::super::finite_difference::testing::{array, check_gradient, upstream};
    use super::*;
    use crate::Random;

    #[test]
    fn gradient_is_the_slope() {
        let random = &mut Random::new(8);
        let inputs = [array(random, &[4, 3]), Array::new(&[6], vec![2.0, 0.0, 2.0, 3.0, 2.0, 0.0])];
        let forward = Op::from(PositionBias);
        let d_bias = upstream(random, &forward, &inputs);
        let d_table = position_bias_grad(&[&d_bias[0], &inputs[1], &Array::filled(&[4, 3], 0.0)]);
        check_gradient(&forward, &inputs, 0, &d_bias, &d_table);
    }
}
