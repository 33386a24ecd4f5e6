use super::fp8::rounded;
use super::{Array, Coded};

/// What the codes of the rows stand for.
pub fn round_rows(inputs: &[&Array]) -> Array {
    let x = inputs[0];
    let (mut numbers, mut scales, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..x.rows() {
        let row: Vec<f32> = x.row(row).iter().map(|&x| x as f32).collect();
        let (codes, scale) = rounded(&row);
        data.extend(codes.iter().map(|code| code * scale));
        numbers.extend(codes);
        scales.push(scale);
    }
    Array { coded: Some(Coded { numbers, scales }), ..Array::new(&x.shape, data) }
}

/// An array has the numbers that its codes stand for.
pub fn widen_rows(inputs: &[&Array]) -> Array {
    Array::new(&inputs[0].shape, inputs[0].data.clone())
}
