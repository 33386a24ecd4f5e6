//! Every operator gives the same bits whether its outputs take their inputs' places or not, run
//! after run, with a partly filled micro-batch.

use crate::support::{Case, Fill, run};
use plimsoll_cpu::single_step::value;
use plimsoll_graph::ops::*;
use plimsoll_graph::{DType, Extent, Op, Value};
use plimsoll_runtime::Active;

const TOKENS: usize = 150;
const ACTIVE: Active = Active::one(133, 3);
const HEADS: Heads = Heads { query: 4, kv: 2, head_dim: 24 };

fn rows(cols: usize) -> (Value, Fill) {
    (value(&[TOKENS, cols], DType::F32, Extent::TOKENS), Fill::Random)
}

fn fixed(shape: &[usize]) -> (Value, Fill) {
    (value(shape, DType::F32, Extent::Fixed), Fill::Random)
}

fn ids(modulus: i32) -> (Value, Fill) {
    let ids = (0..TOKENS as i32).map(|i| i * 7 % modulus).collect();
    (value(&[TOKENS], DType::I32, Extent::TOKENS), Fill::Ints(ids))
}

fn boundaries() -> (Value, Fill) {
    (value(&[6], DType::I32, Extent::BOUNDARIES), Fill::Ints(vec![0, 65, 72, 133, -1, -1]))
}

fn key() -> (Value, Fill) {
    (value(&[4], DType::U32, Extent::Fixed), Fill::Ints(vec![5, 6, 7, 8]))
}

fn case(op: impl Into<Op>, inputs: Vec<(Value, Fill)>) -> Case {
    Case { op: op.into(), inputs, active: ACTIVE }
}

fn linear_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let cols = Cols { start: 16, len: 40, total: 72 };
    for (kind, dest) in [
        (LinearKind::Forward, Dest::Fresh),
        (LinearKind::Forward, Dest::Accumulate),
        (LinearKind::Forward, Dest::Overwrite),
        (LinearKind::InputGrad, Dest::Fresh),
        (LinearKind::InputGrad, Dest::Accumulate),
        (LinearKind::WeightGrad, Dest::Accumulate),
    ] {
        for (part, dropout) in [(None, None), (Some(cols), None), (None, Some(InnerDropout { p: 0.3, site: 2 }))] {
            // Columns that a fresh value does not write hold nothing to compare.
            if (kind, dest, part) == (LinearKind::Forward, Dest::Fresh, Some(cols)) {
                continue;
            }
            let bias = kind == LinearKind::Forward;
            let op = Linear { kind, alpha: 0.5, bias, dest, cols: part, dropout, fp8: false };
            let wide = part.map_or(40, |c| c.total);
            let mut inputs = match kind {
                LinearKind::Forward => vec![rows(33), fixed(&[40, 33]), fixed(&[40])],
                LinearKind::InputGrad => vec![rows(wide), fixed(&[40, 33])],
                LinearKind::WeightGrad => vec![rows(wide), rows(33)],
            };
            match (kind, op.dest_input()) {
                (LinearKind::Forward, Some(_)) => inputs.push(rows(wide)),
                (LinearKind::InputGrad, Some(_)) => inputs.push(rows(33)),
                (LinearKind::WeightGrad, _) => inputs.push(fixed(&[40, 33])),
                _ => {}
            }
            if dropout.is_some() {
                inputs.extend([ids(1000), key()]);
            }
            cases.push(case(op, inputs));
        }
    }
    cases.push(case(BiasGrad { cols: Some(cols) }, vec![rows(72), fixed(&[40])]));
    cases
}

fn norm_cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for weight in [false, true] {
        let w = |len: usize| if weight { vec![fixed(&[len])] } else { vec![] };
        for flag in [false, true] {
            let residual = if flag { vec![rows(70)] } else { vec![] };
            let op = RmsNorm { eps: 1e-5, weight, offset: 1.0, residual: flag };
            cases.push(case(op, [vec![rows(70)], residual, w(70)].concat()));
            let so_far = if flag { vec![rows(70)] } else { vec![] };
            let op = RmsNormGrad { weight, offset: 1.0, weight_grad: weight, accumulate: flag };
            cases.push(case(op, [vec![rows(70), rows(1), rows(70)], w(70), so_far, w(70)].concat()));
        }
        let op = LayerNorm { eps: 1e-5, weight, bias: weight };
        cases.push(case(op, [vec![rows(70)], w(70), w(70)].concat()));
        let op = LayerNormGrad { weight, accumulate: weight, weight_grad: weight, bias_grad: true };
        let so_far = if weight { vec![rows(70)] } else { vec![] };
        let statistics = vec![rows(70), rows(1), rows(1), rows(70)];
        cases.push(case(op, [statistics, w(70), so_far, w(70), vec![fixed(&[70])]].concat()));
        let cols = HEADS.fused_cols();
        let both = [w(24), w(24)].concat();
        let op = HeadNorm { heads: HEADS, eps: 1e-5, weight, offset: 1.0 };
        cases.push(case(op, [vec![rows(cols)], both.clone()].concat()));
        let op = HeadNormGrad { heads: HEADS, weight, offset: 1.0, weight_grad: weight };
        cases.push(case(op, [vec![rows(cols), rows(6), rows(cols)], both.clone(), both].concat()));
    }
    cases
}

fn other_cases() -> Vec<Case> {
    let cols = HEADS.fused_cols();
    let attention = Attention::causal(HEADS, 0.2, Some(40), 80);
    let mut cases = vec![
        case(Rope { inverse: true, ..Rope::new(HEADS) }, vec![rows(cols), fixed(&[50, 24]), ids(50)]),
        case(Rope { rotated: 6, ..Rope::new(HEADS) }, vec![rows(cols), fixed(&[50, 6]), ids(50)]),
        case(attention.clone(), vec![rows(cols), boundaries()]),
        case(AttentionGrad(attention), vec![rows(cols), rows(96), rows(4), rows(96), boundaries()]),
        case(Embed { dtype: DType::F32, scale: 1.0, padding: None }, vec![fixed(&[50, 33]), ids(50)]),
        case(EmbedGrad { scale: 1.0, padding: None }, vec![rows(33), ids(20), fixed(&[50, 33])]),
        case(Add, vec![rows(70), rows(70)]),
        case(Dropout { p: 0.4, site: 9 }, vec![rows(70), ids(1000), key()]),
        case(LastLogits { softcap: Some(3.0), sequences: 5 }, vec![rows(33), fixed(&[50, 33]), boundaries()]),
        case(GlobalNorm { max_norm: Some(1.0), scaled: false }, vec![fixed(&[2]), fixed(&[300, 200]), fixed(&[7])]),
        case(
            AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.1, master: false },
            vec![
                fixed(&[70]),
                fixed(&[70]),
                fixed(&[70]),
                hyper(&[0.5; 70]),
                hyper(&[0.1, 0.5, 0.5, 0.0]),
                hyper(&[1.0, 0.5]),
            ],
        ),
        case(
            Sgd { momentum: 0.9, weight_decay: 0.1, master: false },
            vec![fixed(&[70]), fixed(&[70]), hyper(&[0.1, 0.5, 0.5, 0.0]), hyper(&[1.0, 0.5]), fixed(&[70])],
        ),
    ];
    for activation in [Activation::Silu, Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Relu2] {
        cases.push(case(Gated::new(activation), vec![rows(70)]));
        cases.push(case(GatedGrad::new(activation), vec![rows(70), rows(35)]));
        let blocks = vec![Columns { start: 0, len: 35 }, Columns { start: 40, len: 29 }];
        let adapters = Some(Adapters { alpha: 0.7, blocks, total: 70 });
        let op = Gated { activation, adapters: adapters.clone() };
        cases.push(case(op, vec![rows(70), rows(10), fixed(&[64, 5])]));
        let op = GatedGrad { adapters, ..GatedGrad::new(activation) };
        cases.push(case(op, vec![rows(70), rows(35), rows(10), fixed(&[64, 5])]));
        cases.push(case(Pointwise(activation), vec![rows(70)]));
        cases.push(case(PointwiseGrad(activation), vec![rows(70), rows(70)]));
    }
    for (softcap, grad) in
        [(None, None), (None, Some(LossGrad { weight: true })), (Some(2.0), Some(LossGrad { weight: false }))]
    {
        let targets = (0..TOKENS as i32).map(|i| if i < 60 { -100 } else { i % 50 }).collect();
        let mut inputs = vec![rows(33), fixed(&[50, 33])];
        inputs.push((value(&[TOKENS], DType::I32, Extent::TOKENS), Fill::Ints(targets)));
        inputs.push(hyper(&[0.01]));
        inputs.push((value(&[1], DType::F64, Extent::Fixed), Fill::Double(0.25)));
        if grad.is_some_and(|g| g.weight) {
            inputs.push(fixed(&[50, 33]));
        }
        cases.push(case(VocabLoss { grad, ..VocabLoss::new(softcap, 3) }, inputs));
    }
    cases
}

fn hyper(numbers: &[f32]) -> (Value, Fill) {
    (value(&[numbers.len()], DType::F32, Extent::Fixed), Fill::Floats(numbers.to_vec()))
}

fn check(cases: Vec<Case>) {
    for case in cases {
        for threads in [1, 3] {
            let apart = run(&case, threads, false);
            let shared = run(&case, threads, true);
            let again = run(&case, threads, true);
            for index in 0..apart.outputs.len() {
                let finite = match apart.outputs[index].len() {
                    8 => apart.double(index).is_finite(),
                    _ => apart.floats(index).iter().all(|f| f.is_finite()),
                };
                assert!(finite, "{:?}: output {index} holds what was never written", case.op);
                assert!(apart.outputs[index] == shared.outputs[index], "{:?}: output {index}, shared or not", case.op);
                assert!(again.outputs[index] == shared.outputs[index], "{:?}: output {index}, run again", case.op);
            }
        }
    }
}

#[test]
fn linear() {
    check(linear_cases());
}

#[test]
fn norm() {
    check(norm_cases());
}

#[test]
fn others() {
    check(other_cases());
}
