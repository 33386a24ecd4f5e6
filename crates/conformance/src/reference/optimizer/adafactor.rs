use std::ops::Range;

use plimsoll_graph::ops::Adafactor;

use crate::reference::Array;

fn root_mean_square(numbers: &[f64]) -> f64 {
    (numbers.iter().map(|x| x * x).sum::<f64>() / numbers.len() as f64).sqrt()
}

fn mean(numbers: impl ExactSizeIterator<Item = f64>) -> f64 {
    let len = numbers.len() as f64;
    numbers.sum::<f64>() / len
}

/// The second moments of a matrix, from those of its rows and columns, which take these squares in.
fn factored(squares: &[f64], row: &mut [f64], col: &mut [f64], [beta2, complement]: [f64; 2]) -> Vec<f64> {
    let cols = col.len();
    for (at, row) in row.iter_mut().enumerate() {
        *row = beta2 * *row + complement * mean(squares[at * cols..][..cols].iter().copied());
    }
    for (at, col) in col.iter_mut().enumerate() {
        *col = beta2 * *col + complement * mean(squares.chunks(cols).map(|row| row[at]));
    }
    let rows_mean = mean(row.iter().copied());
    row.iter().flat_map(|row| col.iter().map(move |col| row * col / rows_mean)).collect()
}

/// One step of Adafactor on the clipped gradient, matrix by matrix.
pub fn adafactor(op: &Adafactor, inputs: &[&Array]) -> Vec<Array> {
    let (mut p, g) = (inputs[0].clone(), inputs[1]);
    let ([rate, beta2, complement], factor) = ([0, 1, 2].map(|i| inputs[2].data[i]), inputs[3].data[1]);
    let mut states: Vec<Array> = inputs[4..].iter().map(|state| (*state).clone()).collect();
    if op.master {
        p = states.pop().expect("a master");
    }
    let cols = p.cols();
    let spans: Vec<Range<usize>> = op.matrices.iter().collect();
    let spans = if factor.is_nan() { Vec::new() } else { spans };
    for (index, rows) in spans.into_iter().enumerate() {
        let span = rows.start * cols..rows.end * cols;
        let gradient: Vec<f64> = g.data[span.clone()].iter().map(|g| g * factor).collect();
        let squares: Vec<f64> = gradient.iter().map(|g| g * g + f64::from(op.eps)).collect();
        let second = match &mut states[..] {
            [row, col, ..] if op.factored => {
                factored(&squares, &mut row.data[rows.clone()], col.row_mut(index), [beta2, complement])
            }
            [v, ..] => {
                let v = &mut v.data[span.clone()];
                v.iter_mut().zip(&squares).for_each(|(v, square)| *v = beta2 * *v + complement * square);
                v.to_vec()
            }
            [] => unreachable!("Adafactor has states"),
        };
        let u: Vec<f64> = gradient.iter().zip(second).map(|(g, v)| g / v.sqrt()).collect();
        let scale = op.least_scale.map_or(1.0, |least| root_mean_square(&p.data[span.clone()]).max(f64::from(least)));
        let alpha = rate * scale;
        let clipped = (root_mean_square(&u) / f64::from(op.clip_threshold)).max(1.0);
        for (at, u) in span.zip(u) {
            let mut step = alpha * u / clipped;
            if let (Some(beta1), Some(output)) = (op.beta1, op.momentum_output()) {
                let m = &mut states[output - 2].data[at];
                *m = beta1 * *m + (1.0 - beta1) * step;
                step = *m;
            }
            p.data[at] -= f64::from(op.weight_decay) * alpha * p.data[at] + step;
        }
    }
    let master = op.master.then(|| p.clone());
    [p, Array::zeros_like(g)].into_iter().chain(states).chain(master).collect()
}
