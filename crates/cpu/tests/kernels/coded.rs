//! Products with weights in few bits are, bit for bit, those with the weights decoded: for any number of threads, and
//! however many parts a weight is decoded in.

use crate::support::{Case, Fill, run};
use plimsoll_cpu::single_step::value;
use plimsoll_graph::ops::{Cols, DECODED_ELEMENTS_MAX, Dest, Linear, LinearKind, decoded_parts};
use plimsoll_graph::{DType, Extent, Scales, Value, WeightFormat};
use plimsoll_runtime::Active;
use plimsoll_runtime::codec::{CodedWeight, encode, nest, nested_pairs};

/// A weight with random numbers in a format, as its bytes, and decoded.
fn weight(format: WeightFormat, out: usize, features: usize) -> (Value, Vec<u8>, Vec<f32>) {
    let mut coded = value(&[out, features], DType::F32, Extent::Fixed);
    coded.storage = format.storage(DType::F32, &[coded.shape]).expect("whole blocks");
    let (format, elements) = (coded.storage.blocks.expect("blocks"), out * features);
    let numbers = crate::support::random(elements, 77);
    let blocks = elements / format.elements;
    let (mut bytes, mut scales) = (vec![0; elements * format.code.bits() / 8], vec![0.0; blocks]);
    encode(format.code, format.elements, &numbers, &mut bytes, &mut scales);
    bytes.resize(format.scales_at(elements).expect("small"), 0);
    if format.scales == Scales::Nested {
        let (mut codes, mut nested) = (vec![0; blocks], vec![0.0; blocks / 256]);
        let offset = nest(&scales, &mut codes, &mut nested);
        bytes.extend(codes);
        bytes.resize(format.nested_at(elements).expect("small"), 0);
        bytes.extend(nested_pairs(&nested, offset));
    } else {
        bytes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes()));
    }
    let mut decoded = vec![0.0; elements];
    CodedWeight::new(format, elements, &bytes).expect("all bytes").decode(0, &mut decoded);
    (coded, bytes, decoded)
}

fn check(format: WeightFormat, tokens: usize, features: usize, out: usize, threads: &[usize]) {
    let (coded, bytes, decoded) = weight(format, out, features);
    for (kind, dest) in [
        (LinearKind::Forward, Dest::Fresh),
        (LinearKind::Forward, Dest::Accumulate),
        (LinearKind::InputGrad, Dest::Fresh),
        (LinearKind::InputGrad, Dest::Accumulate),
    ] {
        let (forward, total) = (kind == LinearKind::Forward, out + 5);
        let cols = (dest == Dest::Accumulate).then_some(Cols { start: 3, len: out, total });
        let wide = cols.map_or(out, |cols| cols.total);
        let bias = forward && dest == Dest::Accumulate;
        let op = Linear { kind, dest, cols, bias, alpha: 0.5, ..Linear::forward() };
        let rows = |cols: usize| (value(&[tokens, cols], DType::F32, Extent::TOKENS), Fill::Random);
        let case = |weight: (Value, Fill)| {
            let mut inputs = vec![rows(if forward { features } else { wide }), weight];
            if bias {
                inputs.push((value(&[out], DType::F32, Extent::Fixed), Fill::Random));
            }
            if dest == Dest::Accumulate {
                inputs.push(rows(if forward { wide } else { features }));
            }
            Case { op: op.clone().into(), inputs, active: Active::one(tokens, 1) }
        };
        let plain = value(&[out, features], DType::F32, Extent::Fixed);
        let expected = run(&case((plain, Fill::Floats(decoded.clone()))), threads[0], false);
        let coded = case((coded.clone(), Fill::Bytes(bytes.clone())));
        for &threads in threads {
            let found = run(&coded, threads, false);
            assert!(found.outputs == expected.outputs, "{format:?} {kind:?} {dest:?}, {threads} threads");
        }
    }
}

#[test]
fn products_are_those_with_decoded_weights() {
    for format in [WeightFormat::Nf4, WeightFormat::Int8, WeightFormat::E4m3] {
        check(format, 200, 192, 256, &[1, 2, 5]);
        check(format, 3, 4096, 12, &[1, 3]);
        check(format, 67, 65, 128, &[2, 1]);
    }
}

/// As large as weights are decoded in parts.
#[test]
fn parts_of_weights_do_not_show() {
    let (out, features) = (264, (DECODED_ELEMENTS_MAX / 256).next_multiple_of(64));
    let shape = value(&[out, features], DType::F32, Extent::Fixed).shape;
    for kind in [LinearKind::Forward, LinearKind::InputGrad] {
        assert!(decoded_parts(kind, &shape).count() > 1, "{kind:?}");
    }
    check(WeightFormat::Nf4, 17, features, out, &[2]);
}
