//! What is measured: operators in shapes that training has.

use plimsoll_graph::ops::{
    Activation, AdamW, AdapterUp, AdapterUpGrad, Adapters, Add, Attention, AttentionGrad, CODED_UPDATE, Columns, Dest,
    Embed, Gated, GatedGrad, GlobalNorm, HYPER_LEN, Heads, InnerDropout, Linear, LinearKind, LossGrad, RmsNorm,
    RmsNormGrad, Rope, VocabLoss,
};
use plimsoll_graph::{
    Code, DType, Extent, GraphError, Io, Op, OpRule, Shape, StateStorage, Storage, Value, WeightFormat, Work,
};
use plimsoll_runtime::mix;
use plimsoll_runtime::single_step::value;

/// Tokens of a micro-batch.
pub(super) const TOKENS: usize = 4096;
const DIM: usize = 4096;
const FFN: usize = 8192;
const RANK: usize = 16;
const HEADS: Heads = Heads { query: 32, kv: 8, head_dim: 128 };
/// Elements of a tensor that is updated.
const TRAINED: usize = 1 << 24;
const VOCABULARY: usize = 16_384;
/// Tokens of a layer's sequences.
pub(super) const LAYER_LENGTH: usize = 512;

/// An operator, its inputs, and the numbers that those hold which are no floats.
pub(super) struct Case {
    /// Under which the rate is stored.
    pub(super) name: &'static str,
    pub(super) op: Op,
    pub(super) inputs: Vec<Value>,
    pub(super) contents: Vec<(usize, Vec<i32>)>,
    pub(super) sequences: usize,
}

impl Case {
    /// What it does.
    pub(super) fn work(&self) -> Result<Vec<Work>, GraphError> {
        let inputs: Vec<&Value> = self.inputs.iter().collect();
        let outputs = self.op.outputs(&inputs)?;
        Ok(self.op.work(&Io { inputs, outputs: outputs.iter().collect() }))
    }

    /// Under which name the planner looks its rate up.
    #[cfg(test)]
    fn rate_name(&self) -> Result<&'static str, GraphError> {
        let inputs: Vec<&Value> = self.inputs.iter().collect();
        let outputs = self.op.outputs(&inputs)?;
        Ok(self.op.rate_name(&Io { inputs, outputs: outputs.iter().collect() }))
    }
}

fn case(name: &'static str, op: impl Into<Op>, inputs: Vec<Value>) -> Case {
    Case { name, op: op.into(), inputs, contents: Vec::new(), sequences: 1 }
}

fn tokens(cols: usize) -> Value {
    value(&[TOKENS, cols], DType::BF16, Extent::TOKENS)
}

fn per_token(dtype: DType) -> Value {
    value(&[TOKENS], dtype, Extent::TOKENS)
}

fn fixed(dims: &[usize], dtype: DType) -> Value {
    value(dims, dtype, Extent::Fixed)
}

/// A weight that products read: in sixteen bits, or as codes of eight.
fn weight(rows: usize, cols: usize, codes: bool) -> Value {
    let sixteen = fixed(&[rows, cols], DType::BF16);
    let stored = WeightFormat::E4m3.storage(DType::BF16, &[Shape::new(&[rows, cols])]);
    if codes { Value { storage: stored.expect("rows are always whole"), ..sixteen } } else { sixteen }
}

/// A product of codes, whose rows are rounded first.
pub(super) fn product_of_codes(rows: usize, cols: usize, inner: usize) -> Case {
    let inputs = vec![value(&[rows, inner], DType::BF16, Extent::TOKENS), weight(cols, inner, true)];
    case("linear", Linear { fp8: true, ..Linear::forward() }, inputs)
}

pub(super) fn product(rows: usize, cols: usize, inner: usize, dtype: DType) -> Case {
    let inputs = vec![value(&[rows, inner], dtype, Extent::TOKENS), fixed(&[cols, inner], dtype)];
    case("linear", Linear::forward(), inputs)
}

/// The operators of a layer in the order of training, forward and back. Forward products add onto what is there, as they
/// do with adapters. With `codes`, products are of codes of eight bits.
pub(super) fn layer(codes: bool) -> Vec<Case> {
    let forward = |cols: usize, inner: usize| {
        let op = Linear { dest: Dest::Accumulate, fp8: codes, ..Linear::forward() };
        case("linear", op, vec![tokens(inner), weight(cols, inner, codes), tokens(cols)])
    };
    let back = |cols: usize, inner: usize| {
        let op = Linear { kind: LinearKind::InputGrad, fp8: codes, ..Linear::forward() };
        case("linear_input_grad", op, vec![tokens(inner), weight(inner, cols, codes)])
    };
    let of = |name: &str| moving().into_iter().find(|case| case.name == name);
    let [attention, attention_grad] = attention(LAYER_LENGTH).map(Some);
    let fused = HEADS.fused_cols();
    let operators = [
        of("add_rms_norm"),
        Some(forward(fused, DIM)),
        of("rope"),
        attention,
        Some(forward(DIM, DIM)),
        of("add_rms_norm"),
        Some(forward(2 * FFN, DIM)),
        of("gated"),
        Some(forward(DIM, FFN)),
        Some(back(FFN, DIM)),
        of("gated_grad"),
        Some(back(DIM, 2 * FFN)),
        of("rms_norm_grad"),
        Some(back(DIM, DIM)),
        attention_grad,
        of("rope_grad"),
        Some(back(DIM, fused)),
        of("rms_norm_grad"),
    ];
    operators.into_iter().flatten().collect()
}

/// A sum of two numbers or so: all of it is the launch.
pub(super) fn tiny() -> Case {
    let inputs = vec![value(&[8, 8], DType::BF16, Extent::TOKENS), value(&[8, 8], DType::BF16, Extent::TOKENS)];
    case("add", Add, inputs)
}

/// Operators that move bytes. Of those that are here twice, both count.
pub(super) fn moving() -> Vec<Case> {
    let weight = || fixed(&[DIM], DType::BF16);
    let norm = |residual| RmsNorm { residual, ..RmsNorm::new(1e-5) };
    let gradient = RmsNormGrad { weight: true, offset: 0.0, weight_grad: false, accumulate: true };
    let positions: Vec<i32> = (0..TOKENS as i32).collect();
    let rotary =
        || vec![tokens(HEADS.fused_cols()), fixed(&[TOKENS, HEADS.head_dim], DType::F32), per_token(DType::I32)];
    let mut cases = vec![
        case("add", Add, vec![tokens(DIM), tokens(DIM)]),
        case("rms_norm", norm(false), vec![tokens(DIM), weight()]),
        case("add_rms_norm", norm(true), vec![tokens(DIM), tokens(DIM), weight()]),
        case("rms_norm_grad", gradient, vec![tokens(DIM), per_token(DType::F32), tokens(DIM), weight(), tokens(DIM)]),
        case("gated", Gated::new(Activation::Silu), vec![tokens(2 * FFN)]),
        case("gated_grad", GatedGrad::new(Activation::Silu), vec![tokens(2 * FFN), tokens(FFN)]),
    ];
    for (name, inverse) in [("rope", false), ("rope_grad", true)] {
        let mut rope = case(name, Rope { inverse, ..Rope::new(HEADS) }, rotary());
        rope.contents = vec![(2, positions.clone())];
        cases.push(rope);
    }
    let mut embed = case(
        "embed",
        Embed { dtype: DType::BF16, scale: 1.0, padding: None },
        vec![fixed(&[VOCABULARY, DIM], DType::BF16), per_token(DType::I32)],
    );
    embed.contents = vec![(1, positions.iter().map(|p| p * 3 % VOCABULARY as i32).collect())];
    cases.push(embed);
    cases.extend(updates());
    cases.extend(adapters());
    cases
}

fn updates() -> [Case; 3] {
    let tensor = |dtype| fixed(&[TRAINED], dtype);
    let floats = |len| fixed(&[len], DType::F32);
    let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01, master: true };
    let coded = coded_update(AdamW { master: false, ..adamw.clone() });
    let inputs = vec![
        tensor(DType::BF16),
        tensor(DType::F32),
        tensor(DType::F32),
        tensor(DType::F32),
        floats(HYPER_LEN),
        floats(2),
        tensor(DType::F32),
    ];
    [
        case("adamw", adamw, inputs),
        coded,
        case("global_norm", GlobalNorm { max_norm: Some(1.0), scaled: false }, vec![floats(2), tensor(DType::F32)]),
    ]
}

/// An update with states in codes, all in sixteen bits otherwise, as where memory is short. What codes are found for are
/// numbers as they occur: where a number is in its block decides how often lanes look for the same place of a table.
fn coded_update(op: AdamW) -> Case {
    let shape = Shape::new(&[TRAINED]);
    let tensor = || fixed(&[TRAINED], DType::BF16);
    let states = [StateStorage::Int8.signed("m", shape), StateStorage::Int8.unsigned("v", shape)];
    let [m, v] = states.map(|state| Value { storage: state.storage, ..fixed(&[TRAINED], DType::F32) });
    let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits().cast_signed()).collect();
    let (hyper, clip): (Vec<i32>, Vec<i32>) = (bits(&[1e-4, 0.5, 0.01, 10.0]), bits(&[1.0, 1.0]));
    let contents = vec![
        (2, coded_numbers(&m.storage, 1e-3, |number| number)),
        (3, coded_numbers(&v.storage, 1e-6, |number| number * number)),
        (4, hyper),
        (5, clip),
    ];
    let inputs = vec![tensor(), tensor(), m, v, fixed(&[HYPER_LEN], DType::F32), fixed(&[2], DType::F32)];
    Case { contents, ..case(CODED_UPDATE, op, inputs) }
}

/// Codes and scales of numbers that are spread about as a normal distribution is, in the words that they take.
fn coded_numbers(storage: &Storage, scale: f32, of: fn(f32) -> f32) -> Vec<i32> {
    const PERIOD: usize = 1 << 14;
    let code = storage.blocks.map_or(Code::DynamicSigned, |format| format.code);
    // Of the sum of four bytes: from minus one to one.
    let number = |index: usize| {
        mix(index as u64).to_le_bytes()[..4].iter().map(|&byte| f32::from(byte)).sum::<f32>() / 510.0 - 1.0
    };
    let codes: Vec<u8> = (0..PERIOD).map(|index| code.nearest(of(number(index)))).collect();
    let words: Vec<i32> = codes.as_chunks().0.iter().map(|&codes| i32::from_le_bytes(codes)).collect();
    let scales = std::iter::repeat_n(scale.to_bits().cast_signed(), TRAINED.div_ceil(256));
    words.into_iter().cycle().take(TRAINED / 4).chain(scales).collect()
}

/// The five operators of adapters, with dropout where they have it, each in two shapes.
fn adapters() -> Vec<Case> {
    let dropped = |mut op: Linear, mut inputs: Vec<Value>, name| {
        op.dropout = Some(InnerDropout { p: 0.1, site: 1 });
        let rows = inputs.len();
        inputs.extend([per_token(DType::U32), fixed(&[4], DType::U32)]);
        let mut case = case(name, op, inputs);
        case.contents = vec![(rows, (0..TOKENS as i32).collect()), (rows + 1, vec![1, 2, 3, 4])];
        case
    };
    let op = |kind, dest| Linear { kind, dest, alpha: 2.0, ..Linear::forward() };
    use LinearKind::{Forward, InputGrad, WeightGrad};
    // The first matrices of a layer on its own, and of three that share their input.
    let down = |rank: usize| {
        let matrix = |dtype| fixed(&[rank, DIM], dtype);
        let (wide, low_rank) = (|| tokens(DIM), || tokens(rank));
        let sums = vec![low_rank(), wide(), matrix(DType::F32)];
        [
            dropped(op(Forward, Dest::Fresh), vec![wide(), matrix(DType::BF16)], "linear_down"),
            dropped(
                op(InputGrad, Dest::Accumulate),
                vec![low_rank(), matrix(DType::BF16), wide()],
                "linear_down_input_grad",
            ),
            dropped(op(WeightGrad, Dest::Accumulate), sums, "linear_down_weight_grad"),
        ]
    };
    // The second matrices of layers with so many columns each.
    let up = |layers: usize, cols: usize| {
        let matrix = |dtype| fixed(&[layers * cols, RANK], dtype);
        let (wide, low_rank) = (|| tokens(layers * cols), || tokens(layers * RANK));
        let blocks = (0..layers).map(|index| Columns { start: index * cols, len: cols }).collect();
        let layers = Adapters { alpha: 2.0, blocks, total: layers * cols };
        let inputs = vec![wide(), low_rank(), matrix(DType::BF16), matrix(DType::F32)];
        [
            case("adapter_up", AdapterUp(layers.clone()), vec![low_rank(), matrix(DType::BF16)]),
            case("adapter_up_grad", AdapterUpGrad(layers), inputs),
        ]
    };
    let downs = [RANK, 3 * RANK].into_iter().flat_map(down);
    downs.chain([(2, FFN), (1, DIM)].into_iter().flat_map(|(layers, cols)| up(layers, cols))).collect()
}

/// Forward and gradient over sequences of one length.
pub(super) fn attention(length: usize) -> [Case; 2] {
    let sequences = TOKENS / length;
    let op = Attention::causal(HEADS, 0.088, None, length);
    let bounds: Vec<i32> = (0..=sequences).map(|i| (i * length) as i32).collect();
    let boundaries = || value(&[sequences + 1], DType::I32, Extent::BOUNDARIES);
    let (qkv, out) = (|| tokens(HEADS.fused_cols()), || tokens(HEADS.query * HEADS.head_dim));
    let lse = value(&[TOKENS, HEADS.query], DType::F32, Extent::TOKENS);
    let mut forward = case("attention", op.clone(), vec![qkv(), boundaries()]);
    forward.contents = vec![(1, bounds.clone())];
    let mut gradient = case("attention_grad", AttentionGrad(op), vec![qkv(), out(), lse, out(), boundaries()]);
    gradient.contents = vec![(4, bounds)];
    [forward, gradient].map(|case| Case { sequences, ..case })
}

/// The loss over a vocabulary, with its gradients.
pub(super) fn loss() -> Case {
    let (rows, dim) = (TOKENS / 2, DIM / 2);
    let op = VocabLoss { grad: Some(LossGrad { weight: false }), ..VocabLoss::new(None, 1) };
    let inputs = vec![
        value(&[rows, dim], DType::BF16, Extent::TOKENS),
        fixed(&[VOCABULARY, dim], DType::BF16),
        value(&[rows], DType::I32, Extent::TOKENS),
        fixed(&[1], DType::F32),
        fixed(&[1], DType::F64),
    ];
    let mut case = case("vocab_loss", op, inputs);
    case.contents = vec![(2, (0..rows as i32).map(|t| t * 5 % VOCABULARY as i32).collect())];
    case
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::BackendTraits;
    use plimsoll_runtime::single_step::lay_out;

    use super::super::measure::{ARENA_BYTES, PRODUCT_SIZES};
    use super::*;

    /// Every case can be built, fits the memory it is measured in, and is looked up under the name it is stored under.
    #[test]
    fn cases_fit_and_are_named_as_the_planner_names_them() {
        let traits = BackendTraits::gpu();
        let [rows, cols, inner] = PRODUCT_SIZES.map(|sizes| *sizes.last().expect("some"));
        let mut all = moving();
        all.extend([
            loss(),
            tiny(),
            product_of_codes(rows, cols, inner),
            product(rows, cols, inner, DType::BF16),
            product(4096, 4096, 4096, DType::F32),
        ]);
        all.extend([512, 2048].into_iter().flat_map(attention));
        for case in all {
            let (step, bytes) = lay_out(case.op.clone(), &case.inputs, &traits, true).expect(case.name);
            assert!(bytes <= ARENA_BYTES, "{} takes {bytes} bytes", case.name);
            for (index, numbers) in &case.contents {
                assert_eq!(step.inputs[*index].region.bytes, 4 * numbers.len(), "{}", case.name);
            }
            let expected = match (&case.op, case.work().expect(case.name).pop()) {
                (Op::Linear(_), Some(Work::Product(product))) => product.low_rank.unwrap_or("linear"),
                _ => case.rate_name().expect(case.name),
            };
            assert_eq!(case.name, expected);
        }
    }
}
