use plimsoll_graph::ops::{MUON_EPS, Muon, NEWTON_SCHULZ, NEWTON_SCHULZ_STEPS};

use crate::reference::Array;

fn transpose(x: &Array) -> Array {
    let (rows, cols) = (x.rows(), x.cols());
    Array::new(&[cols, rows], (0..rows * cols).map(|i| x.data[i % rows * cols + i / rows]).collect())
}

fn multiply(a: &Array, b: &Array) -> Array {
    let mut product = Array::filled(&[a.rows(), b.cols()], 0.0);
    for row in 0..a.rows() {
        for (depth, &factor) in a.row(row).iter().enumerate() {
            product.row_mut(row).iter_mut().zip(b.row(depth)).for_each(|(sum, x)| *sum += factor * x);
        }
    }
    product
}

/// `X ← a·X + b·(X·Xᵀ)·X + c·(X·Xᵀ)²·X`, beginning with the matrix over its norm.
fn newton_schulz(matrix: &Array) -> Array {
    let norm = matrix.data.iter().map(|x| x * x).sum::<f64>().sqrt().max(MUON_EPS);
    let mut x = matrix.map(|x| x / norm);
    let [a, b, c] = NEWTON_SCHULZ;
    for _ in 0..NEWTON_SCHULZ_STEPS {
        let gram = multiply(&x, &transpose(&x));
        let update = gram.zip(&multiply(&gram, &gram), |gram, squared| b * gram + c * squared);
        x = x.zip(&multiply(&update, &x), |x, moved| a * x + moved);
    }
    x
}

/// One step of Muon on the clipped gradient, matrix by matrix.
pub fn muon(op: &Muon, inputs: &[&Array]) -> Vec<Array> {
    let (mut p, g, mut m) = (inputs[0].clone(), inputs[1], inputs[2].clone());
    let (lr, momentum, factor) = (inputs[3].data[0], inputs[3].data[1], inputs[4].data[1]);
    if op.master {
        p = inputs[5].clone();
    }
    if !factor.is_nan() {
        let gradient = g.map(|g| g * factor);
        m = m.zip(&gradient, |m, g| momentum * m + (1.0 - momentum) * g);
        let direction =
            if op.nesterov { gradient.zip(&m, |g, m| (1.0 - momentum) * g + momentum * m) } else { m.clone() };
        let cols = p.cols();
        for rows in op.matrices.iter() {
            let span = rows.start * cols..rows.end * cols;
            let step = newton_schulz(&Array::new(&[rows.len(), cols], direction.data[span.clone()].to_vec()));
            let scale = op.scale.factor(rows.len(), cols);
            for (p, step) in p.data[span].iter_mut().zip(&step.data) {
                *p -= lr * (f64::from(op.weight_decay) * *p + scale * step);
            }
        }
    }
    let master = op.master.then(|| p.clone());
    [p, Array::zeros_like(g), m].into_iter().chain(master).collect()
}
