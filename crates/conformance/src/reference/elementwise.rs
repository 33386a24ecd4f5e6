use plimsoll_graph::ops::{Dropout, InnerDropout, Scale, Zeros};

use super::{Array, MaskSource, dropout_factors};

pub fn add(inputs: &[&Array]) -> Array {
    inputs[0].plus(inputs[1])
}

pub fn scale(op: &Scale, inputs: &[&Array]) -> Array {
    inputs[0].map(|x| f64::from(op.factor) * x)
}

pub fn zeros(op: &Zeros) -> Array {
    Array::new(op.shape.dims(), vec![0.0; op.shape.elements()])
}

pub fn dropout(op: &Dropout, inputs: &[&Array], masks: &mut dyn MaskSource) -> Array {
    let inner = InnerDropout { p: op.p, site: op.site };
    let factors = dropout_factors(inner, inputs[1], inputs[2], inputs[0].cols(), masks);
    inputs[0].zip(&factors, |x, f| x * f)
}
