use std::collections::HashMap;
use std::path::Path;

use half::bf16;
use plimsoll_graph::{BlockFormat, Code, DType, NESTED_SCALES, Scales, Shape, WeightFormat};
use safetensors::{Dtype, SafeTensors};

use super::*;
use crate::weights::to_floats;
use crate::{Distribution, Draw, mix};

const FORMATS: [WeightFormat; 3] = [WeightFormat::Nf4, WeightFormat::Int8, WeightFormat::E4m3];

fn normal(len: usize, key: u64) -> Vec<f32> {
    let draw = Draw { distribution: Distribution::Normal { std: 0.02 }, key: mix(key) };
    (0..len as u64).map(|index| draw.at(index)).collect()
}

/// A weight of one matrix, encoded as a whole.
fn encoded(format: BlockFormat, numbers: &[f32]) -> Vec<u8> {
    let blocks = numbers.len().div_ceil(format.elements);
    let (mut codes, mut scales) = (vec![0; code_bytes(&format, numbers.len())], vec![0.0; blocks]);
    encode(format.code, format.elements, numbers, &mut codes, &mut scales);
    codes.resize(format.scales_at(numbers.len()).unwrap(), 0);
    match format.scales {
        Scales::F32 => codes.extend(scales.iter().flat_map(|scale| scale.to_le_bytes())),
        Scales::Nested => {
            let (mut scale_codes, mut nested) = (vec![0; blocks], vec![0.0; blocks.div_ceil(NESTED_SCALES)]);
            let offset = nest(&scales, &mut scale_codes, &mut nested);
            codes.extend(scale_codes);
            codes.resize(format.nested_at(numbers.len()).unwrap(), 0);
            codes.extend(nested_pairs(&nested, offset));
        }
    }
    codes
}

fn blocks_of(format: WeightFormat, rows: usize, cols: usize) -> BlockFormat {
    format.storage(DType::F32, &[Shape::new(&[rows, cols])]).expect("whole blocks").blocks.expect("blocks")
}

fn decoded(format: BlockFormat, bytes: &[u8], elements: usize) -> Vec<f32> {
    let mut numbers = vec![f32::NAN; elements];
    CodedWeight::new(format, elements, bytes).expect("all bytes").decode(0, &mut numbers);
    numbers
}

/// The table that users are shown, against what it says.
#[test]
fn errors_are_those_of_the_table() {
    let (rows, cols) = (64, 4096);
    let numbers = normal(rows * cols, 1);
    for (format, expected) in RELATIVE_ERRORS {
        let format = blocks_of(format, rows, cols);
        let found = decoded(format, &encoded(format, &numbers), numbers.len());
        let square = |x: f64| x * x;
        let off: f64 = numbers.iter().zip(&found).map(|(x, y)| square(f64::from(x - y))).sum();
        let size: f64 = numbers.iter().map(|&x| square(f64::from(x))).sum();
        let error = (off / size).sqrt();
        assert!((error / expected - 1.0).abs() < 0.01, "{format:?}: {error}, not {expected}");
    }
}

/// One by one, by the definition of the nearest code, but for numbers halfway between two.
#[test]
fn codes_are_the_nearest() {
    for (format, cols) in FORMATS.into_iter().flat_map(|format| [64, 192, 4096].map(|cols| (format, cols))) {
        let format = blocks_of(format, 6, cols);
        let mut numbers = normal(6 * cols, 2);
        numbers[cols..2 * cols].iter_mut().enumerate().for_each(|(i, x)| *x *= 10f32.powi(-(i as i32 % 30)));
        let found = encoded(BlockFormat { scales: Scales::F32, ..format }, &numbers);
        for (block, numbers) in numbers.chunks(format.elements).enumerate() {
            let largest = numbers.iter().fold(0f32, |most, x| most.max(x.abs()));
            let scale = format.code.scale_of(largest);
            for (index, x) in numbers.iter().enumerate() {
                let at = block * format.elements + index;
                let code = match format.code {
                    Code::Nf4 => found[at / 2] >> (4 * (1 - at % 2)) & 15,
                    _ => found[at],
                };
                let off = |code: u8| {
                    (f64::from(format.code.numbers()[usize::from(code)]) - f64::from(*x) / f64::from(scale)).abs()
                };
                let nearest = format.code.nearest(x / scale);
                assert!(
                    code == nearest || (off(code) - off(nearest)).abs() < 1e-6,
                    "{format:?}: {x} of {scale} as {code}, not {nearest}"
                );
            }
        }
    }
}

/// Every number e4m3 can tell from its neighbours, and the numbers halfway between.
#[test]
fn e4m3_rounds_as_its_definition() {
    let sizes = (0..0x4400_0000u32).step_by(9_973).map(f32::from_bits);
    let halves = (0..126).map(|code: usize| {
        let numbers = Code::E4m3.numbers();
        0.5 * (numbers[code] + numbers[code + 1])
    });
    for size in sizes.chain(halves).filter(|&size| size <= plimsoll_graph::E4M3_MAX) {
        for number in [size, -size] {
            let mut code = [0];
            encode::encode_e4m3(&[number], 1.0, &mut code);
            assert_eq!(code[0], Code::E4m3.nearest(number), "{number}");
        }
    }
}

/// Nothing but zeros, numbers too small to be divided by, and one number alone.
#[test]
fn blocks_of_nothing_and_of_little_decode_to_what_they_are() {
    for format in FORMATS {
        let format = BlockFormat { scales: Scales::F32, ..blocks_of(format, 4, 64) };
        let mut numbers = vec![0.0; 256];
        numbers[64..128].fill(1e-42);
        numbers[130] = -3.0e38;
        numbers[192] = f32::MIN_POSITIVE;
        let found = decoded(format, &encoded(format, &numbers), 256);
        assert!(found[..64].iter().all(|&x| x == 0.0), "{format:?}");
        assert!(found[64..128].iter().all(|&x| (0.0..=2e-42).contains(&x)), "{format:?}");
        assert!((found[130] / -3.0e38 - 1.0).abs() < 1e-6 && found[131] == 0.0, "{format:?}: {}", found[130]);
        assert!(found.iter().all(|x| x.is_finite()), "{format:?}");
    }
}

#[test]
fn any_part_decodes_as_in_the_whole() {
    let (rows, cols) = (64, 257);
    for format in FORMATS {
        let format = blocks_of(format, rows, cols);
        let bytes = encoded(format, &normal(rows * cols, 3));
        let whole = decoded(format, &bytes, rows * cols);
        let coded = CodedWeight::new(format, rows * cols, &bytes).expect("all bytes");
        for (first, len) in [(0, 1), (1, 1), (63, 2), (64, 64), (255, 130), (1001, 1000), (64 * 257 - 3, 3), (7, 0)] {
            let mut part = vec![f32::NAN; len];
            coded.decode(first, &mut part);
            assert_eq!(part, whole[first..first + len], "{format:?} from {first}");
            coded.decode_codes(first, &mut part);
            let scaled: Vec<f32> =
                part.iter().enumerate().map(|(i, x)| x * coded.scale((first + i) / format.elements)).collect();
            assert_eq!(scaled, whole[first..first + len], "{format:?} from {first}");
        }
        assert!(CodedWeight::new(format, rows * cols, &bytes[..bytes.len() - 1]).is_none());
    }
}

#[test]
fn rows_are_rounded_as_weights_are() {
    let numbers = normal(3 * 1000, 4);
    let format = blocks_of(WeightFormat::E4m3, 3, 1000);
    let expected = decoded(format, &encoded(format, &numbers), 3000);
    for (row, expected) in numbers.chunks(1000).zip(expected.chunks(1000)) {
        let mut found = row.to_vec();
        round_row_to_e4m3(&mut found);
        assert_eq!(found, expected);
    }
    let mut zeros = [0.0; 5];
    round_row_to_e4m3(&mut zeros);
    assert_eq!(zeros, [0.0; 5]);
}

/// A loss must not look sound where what it was made of is not.
#[test]
fn what_is_not_finite_stays_so_in_a_rounded_row() {
    for bad in [f32::NAN, f32::INFINITY] {
        let mut row = vec![0.5f32; 300];
        row[270] = bad;
        round_row_to_e4m3(&mut row);
        assert!(!row[270].is_finite(), "{bad} became {}", row[270]);
    }
    let mut none = [f32::NAN; 5];
    round_row_to_e4m3(&mut none);
    assert!(none.iter().all(|x| x.is_nan()), "{none:?}");
}

fn fixture(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/formats").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn assert_same(found: &[u8], expected: &[u8], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let differing = found.iter().zip(expected).enumerate().find(|(_, (a, b))| a != b);
    assert!(differing.is_none(), "{what}: at {differing:?}");
}

type Numbers = HashMap<String, (Vec<usize>, Vec<f32>)>;

fn numbers_of(file: &[u8]) -> Numbers {
    let file = SafeTensors::deserialize(file).expect("safetensors");
    let read = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let mut numbers = vec![0.0; view.shape().iter().product()];
        to_floats(view.data(), view.dtype(), &mut numbers);
        (name, (view.shape().to_vec(), numbers))
    };
    file.tensors().into_iter().map(read).collect()
}

/// The very bytes of `bitsandbytes.functional.quantize_4bit`, nested and not.
#[test]
fn nf4_is_what_bitsandbytes_makes() {
    let (plain, nested, single) =
        (fixture("plain.safetensors"), fixture("nf4.safetensors"), fixture("nf4_single.safetensors"));
    let (nested, single) = (SafeTensors::deserialize(&nested).unwrap(), SafeTensors::deserialize(&single).unwrap());
    for (name, (_, numbers)) in numbers_of(&plain) {
        let blocks = numbers.len() / 64;
        let (mut codes, mut scales) = (vec![0; numbers.len() / 2], vec![0.0; blocks]);
        encode(Code::Nf4, 64, &numbers, &mut codes, &mut scales);
        assert_same(&codes, nested.tensor(&name).unwrap().data(), &name);
        assert_same(&codes, single.tensor(&name).unwrap().data(), &name);
        let of = |file: &SafeTensors<'_>, part: &str| file.tensor(&format!("{name}.{part}")).unwrap().data().to_vec();
        let bytes = |numbers: &[f32]| -> Vec<u8> { numbers.iter().flat_map(|x| x.to_le_bytes()).collect() };
        assert_same(&bytes(&scales), &of(&single, "absmax"), &name);
        assert_same(&bytes(Code::Nf4.numbers()), &of(&single, "quant_map"), "quant_map");
        let (mut scale_codes, mut nested_scales) = (vec![0; blocks], vec![0.0; blocks.div_ceil(NESTED_SCALES)]);
        let offset = nest(&scales, &mut scale_codes, &mut nested_scales);
        let state: serde_json::Value =
            serde_json::from_slice(&of(&nested, "quant_state.bitsandbytes__nf4")).expect("JSON");
        assert_eq!(f64::from(offset), state["nested_offset"].as_f64().unwrap(), "{name}");
        assert_same(&bytes(&nested_scales), &of(&nested, "nested_absmax"), &name);
        assert_same(&scale_codes, &of(&nested, "absmax"), &name);
        assert_same(&bytes(Code::DynamicSigned.numbers()), &of(&nested, "nested_quant_map"), "nested_quant_map");
    }
}

/// The codes and scales of `int8_vectorwise_quant`, and those of PyTorch's float8 beside the largest magnitude over 448.
#[test]
fn rows_are_what_bitsandbytes_and_torch_make() {
    let (plain, int8, fp8) = (fixture("plain.safetensors"), fixture("int8.safetensors"), fixture("fp8.safetensors"));
    let (int8, fp8) = (SafeTensors::deserialize(&int8).unwrap(), SafeTensors::deserialize(&fp8).unwrap());
    for (name, (shape, numbers)) in numbers_of(&plain) {
        for (code, file, part) in [(Code::Int8, &int8, "SCB"), (Code::E4m3, &fp8, "weight_scale")] {
            let stored = file.tensor(&format!("{}.{part}", name.strip_suffix(".weight").unwrap())).unwrap();
            // Scales that were rounded, or that a whole tensor shares, are not ours.
            if stored.dtype() != Dtype::F32 || stored.data().len() != 4 * shape[0] {
                continue;
            }
            let (mut codes, mut scales) = (vec![0; numbers.len()], vec![0.0; shape[0]]);
            encode(code, shape[1], &numbers, &mut codes, &mut scales);
            assert_same(&codes, file.tensor(&name).unwrap().data(), &format!("{name} as {code:?}"));
            let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
            assert_same(&bytes, stored.data(), &format!("scales of {name} as {code:?}"));
        }
    }
}

#[test]
fn nf4_decodes_as_bitsandbytes_decodes_it() {
    let (plain, expected) = (fixture("plain.safetensors"), fixture("nf4_decoded.safetensors"));
    let expected = SafeTensors::deserialize(&expected).unwrap();
    for (name, (shape, numbers)) in numbers_of(&plain) {
        let format = BlockFormat { scales: Scales::Nested, ..blocks_of(WeightFormat::Nf4, shape[0], shape[1]) };
        let found = decoded(format, &encoded(format, &numbers), numbers.len());
        let bytes: Vec<u8> = found.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        assert_same(&bytes, expected.tensor(&name).unwrap().data(), &name);
    }
}
