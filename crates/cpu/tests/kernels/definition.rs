//! The operators with the most intricate kernels, held against their definitions in double precision.

use crate::support::{Case, Fill, Outcome, run};
use plimsoll_cpu::single_step::value;
use plimsoll_graph::ops::*;
use plimsoll_graph::{DType, Extent, Op, Value};
use plimsoll_runtime::Active;

fn close(name: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{name}");
    let size = want.iter().map(|w| w * w).sum::<f64>().sqrt().max(1e-9);
    let error = got.iter().zip(want).map(|(&g, w)| (f64::from(g) - w).powi(2)).sum::<f64>().sqrt();
    assert!(error / size < tolerance, "{name}: relative error {:e}", error / size);
}

fn rows(tokens: usize, cols: usize) -> (Value, Fill) {
    (value(&[tokens, cols], DType::F32, Extent::TOKENS), Fill::Random)
}

/// Attention and its gradients by the textbook, one head and one query at a time.
struct Naive {
    out: Vec<f64>,
    lse: Vec<f64>,
    d_qkv: Vec<f64>,
}

fn naive(op: &Attention, qkv: &[f32], d_out: &[f32], bounds: &[i32]) -> Naive {
    let Heads { query, kv, head_dim } = op.heads;
    let cols = op.heads.fused_cols();
    let tokens = *bounds.last().unwrap() as usize;
    let at = |t: usize, head: usize, d: usize| t * cols + head * head_dim + d;
    let x = |t, head, d| f64::from(qkv[at(t, head, d)]);
    let mut naive = Naive {
        out: vec![0.0; tokens * query * head_dim],
        lse: vec![0.0; tokens * query],
        d_qkv: vec![0.0; tokens * cols],
    };
    for pair in bounds.windows(2) {
        for head in 0..query {
            let (k_head, v_head) = (query + head / (query / kv), query + kv + head / (query / kv));
            for q in pair[0] as usize..pair[1] as usize {
                let oldest = op.window().map_or(pair[0] as usize, |w| (q + 1).saturating_sub(w).max(pair[0] as usize));
                let keys: Vec<usize> = (oldest..=q).collect();
                let dot = |t: usize, h: usize, other: &dyn Fn(usize) -> f64| -> f64 {
                    (0..head_dim).map(|d| x(t, h, d) * other(d)).sum()
                };
                let scores: Vec<f64> =
                    keys.iter().map(|&k| f64::from(op.scale) * dot(k, k_head, &|d| x(q, head, d))).collect();
                let total: f64 = scores.iter().map(|s| s.exp()).sum();
                naive.lse[q * query + head] = total.ln();
                let p: Vec<f64> = scores.iter().map(|s| s.exp() / total).collect();
                let out = q * query * head_dim + head * head_dim;
                for d in 0..head_dim {
                    naive.out[out + d] = keys.iter().zip(&p).map(|(&k, p)| p * x(k, v_head, d)).sum();
                }
                let g = |d: usize| f64::from(d_out[out + d]);
                let delta: f64 = (0..head_dim).map(|d| g(d) * naive.out[out + d]).sum();
                for (&k, p) in keys.iter().zip(&p) {
                    let ds = p * (dot(k, v_head, &g) - delta) * f64::from(op.scale);
                    for d in 0..head_dim {
                        naive.d_qkv[at(k, v_head, d)] += p * g(d);
                        naive.d_qkv[at(q, head, d)] += ds * x(k, k_head, d);
                        naive.d_qkv[at(k, k_head, d)] += ds * x(q, head, d);
                    }
                }
            }
        }
    }
    naive
}

fn check_attention(heads: Heads, window: Option<usize>, bounds: &[i32]) {
    let tokens = *bounds.last().unwrap() as usize;
    let op = Attention::causal(heads, 0.3, window, tokens);
    let active = Active::one(tokens, bounds.len() - 1);
    let boundaries = (value(&[bounds.len()], DType::I32, Extent::BOUNDARIES), Fill::Ints(bounds.to_vec()));
    let qkv = crate::support::random(tokens * heads.fused_cols(), 11);
    let d_out = crate::support::random(tokens * heads.query_cols(), 12);
    let want = naive(&op, &qkv, &d_out, bounds);
    let given =
        |cols, floats: &[f32]| (value(&[tokens, cols], DType::F32, Extent::TOKENS), Fill::Floats(floats.to_vec()));
    let inputs = vec![given(heads.fused_cols(), &qkv), boundaries.clone()];
    let forward = run(&Case { op: op.clone().into(), inputs, active }, 2, false);
    let name = format!("{heads:?} {window:?} {bounds:?}");
    close(&name, &forward.floats(0), &want.out, 1e-6);
    close(&name, &forward.floats(1), &want.lse, 1e-6);
    let inputs = vec![
        given(heads.fused_cols(), &qkv),
        given(heads.query_cols(), &forward.floats(0)),
        given(heads.query, &forward.floats(1)),
        given(heads.query_cols(), &d_out),
        boundaries,
    ];
    let backward = run(&Case { op: AttentionGrad(op).into(), inputs, active }, 2, false);
    close(&name, &backward.floats(0), &want.d_qkv, 2e-6);
}

#[test]
fn attention() {
    for head_dim in [6, 16, 64, 80] {
        for (query, kv) in [(1, 1), (4, 2)] {
            for window in [None, Some(1), Some(50), Some(64), Some(130)] {
                check_attention(Heads { query, kv, head_dim }, window, &[0, 200, 201, 265, 265, 280]);
            }
        }
    }
}

fn check_product(op: Linear, tokens: usize, inputs: usize, outputs: usize) {
    let weight = || (value(&[outputs, inputs], DType::F32, Extent::Fixed), Fill::Random);
    let operands = match op.kind {
        LinearKind::Forward => vec![rows(tokens, inputs), weight()],
        LinearKind::InputGrad => vec![rows(tokens, outputs), weight()],
        LinearKind::WeightGrad => vec![rows(tokens, outputs), rows(tokens, inputs), weight()],
    };
    let (kind, alpha) = (op.kind, f64::from(op.alpha));
    let active = Active::one(tokens, 1);
    let got = run(&Case { op: Op::from(op), inputs: operands, active }, 2, true);
    let a = |i: usize| f64::from(got.inputs[0][i]);
    let b = |i: usize| f64::from(got.inputs[1][i]);
    let want: Vec<f64> = match kind {
        LinearKind::Forward => grid(tokens, outputs, |t, o| {
            alpha * (0..inputs).map(|i| a(t * inputs + i) * b(o * inputs + i)).sum::<f64>()
        }),
        LinearKind::InputGrad => grid(tokens, inputs, |t, i| {
            alpha * (0..outputs).map(|o| a(t * outputs + o) * b(o * inputs + i)).sum::<f64>()
        }),
        LinearKind::WeightGrad => grid(outputs, inputs, |o, i| {
            let sum = (0..tokens).map(|t| a(t * outputs + o) * b(t * inputs + i)).sum::<f64>();
            f64::from(got.inputs[2][o * inputs + i]) + alpha * sum
        }),
    };
    close(&format!("{kind:?} {tokens} {inputs} {outputs}"), &got.floats(0), &want, 2e-6);
}

fn grid(rows: usize, cols: usize, cell: impl Fn(usize, usize) -> f64) -> Vec<f64> {
    (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c))).map(|(r, c)| cell(r, c)).collect()
}

#[test]
fn products() {
    for kind in [LinearKind::Forward, LinearKind::InputGrad, LinearKind::WeightGrad] {
        let dest = if kind == LinearKind::WeightGrad { Dest::Accumulate } else { Dest::Fresh };
        for (tokens, inputs, outputs) in [(1, 5, 7), (65, 64, 48), (300, 130, 257), (200, 16, 700), (200, 700, 16)] {
            check_product(Linear { kind, alpha: 1.5, dest, ..Linear::forward() }, tokens, inputs, outputs);
        }
    }
}

fn loss_outcome(softcap: Option<f32>, chunks: usize, targets: &[i32]) -> Outcome {
    let inputs = vec![
        rows(targets.len(), 20),
        (value(&[37, 20], DType::F32, Extent::Fixed), Fill::Random),
        (value(&[targets.len()], DType::I32, Extent::TOKENS), Fill::Ints(targets.to_vec())),
        (value(&[1], DType::F32, Extent::Fixed), Fill::Floats(vec![0.125])),
        (value(&[1], DType::F64, Extent::Fixed), Fill::Double(2.0)),
        (value(&[37, 20], DType::F32, Extent::Fixed), Fill::Random),
    ];
    let op = VocabLoss { grad: Some(LossGrad { weight: true }), ..VocabLoss::new(softcap, chunks) };
    let active = Active::one(targets.len(), 1);
    run(&Case { op: op.into(), inputs, active }, 2, true)
}

#[test]
fn loss() {
    let targets: Vec<i32> = (0..150).map(|i| if (20..70).contains(&i) || i % 9 == 0 { -1 } else { i % 37 }).collect();
    for softcap in [None, Some(1.5f32)] {
        let got = loss_outcome(softcap, 4, &targets);
        let (hidden, weight) = (&got.inputs[0], &got.inputs[1]);
        let mut total = 2.0;
        let mut d_hidden = vec![0.0; hidden.len()];
        let mut dw: Vec<f64> = got.inputs[5].iter().map(|&w| f64::from(w)).collect();
        for (row, &target) in targets.iter().enumerate().filter(|(_, t)| **t >= 0) {
            let raw: Vec<f64> = (0..37)
                .map(|v| (0..20).map(|d| f64::from(hidden[row * 20 + d]) * f64::from(weight[v * 20 + d])).sum())
                .collect();
            let cap = |z: f64| softcap.map_or(z, |c| f64::from(c) * (z / f64::from(c)).tanh());
            let slope = |z: f64| softcap.map_or(1.0, |c| 1.0 - (z / f64::from(c)).tanh().powi(2));
            let sum: f64 = raw.iter().map(|&z| cap(z).exp()).sum();
            total += 0.125 * (sum.ln() - cap(raw[target as usize]));
            for v in 0..37 {
                let hit = f64::from(u8::from(v == target as usize));
                let g = 0.125 * (cap(raw[v]).exp() / sum - hit) * slope(raw[v]);
                for d in 0..20 {
                    d_hidden[row * 20 + d] += g * f64::from(weight[v * 20 + d]);
                    dw[v * 20 + d] += g * f64::from(hidden[row * 20 + d]);
                }
            }
        }
        assert!((got.double(0) - total).abs() < 1e-6 * total, "{} {total}", got.double(0));
        close("d_hidden", &got.floats(1), &d_hidden, 2e-6);
        close("dw", &got.floats(2), &dw, 2e-6);
    }
}
