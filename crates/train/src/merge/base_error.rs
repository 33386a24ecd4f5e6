//! What an adapter was trained beside, if that was in few bits, and what it is merged into are not the same weights: by how
//! much they differ.

use std::num::NonZero;
use std::thread;

use plimsoll_graph::{BlockFormat, Code, DType, NESTED_SCALES, Scales, WeightFormat};
use plimsoll_models::{Recipe, weights_in_few_bits};
use plimsoll_runtime::codec::{CodedWeight, encode, nest};
use plimsoll_runtime::weights::{Checkpoint, TensorInfo};

use super::PIECE_BYTES;
use super::fold::{THREADS_MAX, numbers};
use crate::{Language, Model, Task, TrainError};

/// How far weights are from what they become in a format.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BaseError {
    pub format: WeightFormat,
    /// The root of the mean square of the differences over that of the weights, over all that the format takes.
    pub relative_rms: f64,
    pub weights: u64,
}

/// Sums of squares.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    differences: f64,
    weights: f64,
}

impl Sums {
    fn plus(self, other: Self) -> Self {
        Self { differences: self.differences + other.differences, weights: self.weights + other.weights }
    }
}

/// Reads every matrix that the format takes, a piece at a time, once for its scales where these are nested and once for the
/// rest.
pub(super) fn base_error(model: &Model, files: &Checkpoint, format: WeightFormat) -> Result<BaseError, TrainError> {
    let recipe = Recipe { base: Some(format), ..Recipe::forward_only(None, DType::F32) };
    let (mut sums, mut weights) = (Sums::default(), 0);
    for (parameter, storage) in weights_in_few_bits(&model.config, &*Language::sft().head(), &recipe)? {
        let format = storage.blocks.expect("stored in blocks");
        for tensor in &parameter.tensors {
            files.check(&tensor.name, &tensor.shape)?;
            let matrix = Matrix { files, info: files.info(&tensor.name).expect("it was checked"), format };
            sums = sums.plus(matrix.sums()?);
            weights += tensor.shape.elements() as u64;
        }
    }
    let relative_rms = (sums.differences / sums.weights.max(f64::MIN_POSITIVE)).sqrt();
    Ok(BaseError { format, relative_rms, weights })
}

/// Host memory that [`base_error`] takes: pieces as stored, as numbers, as codes and decoded, and the scales of the largest
/// matrix in two forms.
pub(super) fn memory_bytes(largest_elements: usize) -> u64 {
    const SCALE_BLOCK: usize = 64;
    4 * PIECE_BYTES as u64 + 2 * (4 * largest_elements / SCALE_BLOCK) as u64
}

struct Matrix<'a> {
    files: &'a Checkpoint,
    info: &'a TensorInfo,
    format: BlockFormat,
}

impl Matrix<'_> {
    fn elements(&self) -> usize {
        self.info.shape.iter().product()
    }

    /// Elements in memory at a time: whole blocks.
    fn piece(&self) -> usize {
        let numbers = PIECE_BYTES / size_of::<f32>();
        (numbers / self.format.elements).max(1) * self.format.elements
    }

    fn sums(&self) -> Result<Sums, TrainError> {
        let scales = match self.format.scales {
            Scales::F32 => None,
            Scales::Nested => Some(self.nested_scales()?),
        };
        let mut sums = Sums::default();
        self.each_piece(|format, first, numbers| {
            let block = format.elements;
            let scales = scales.as_ref().map(|scales| &scales[first / block..][..numbers.len() / block]);
            sums = sums.plus(in_parallel(format, numbers, scales));
        })?;
        Ok(sums)
    }

    fn each_piece(&self, mut look: impl FnMut(BlockFormat, usize, &[f32])) -> Result<(), TrainError> {
        for first in (0..self.elements()).step_by(self.piece()) {
            let count = self.piece().min(self.elements() - first);
            look(self.format, first, &numbers(self.files, self.info, first, count)?);
        }
        Ok(())
    }

    /// Scales as they are once they were rounded themselves.
    fn nested_scales(&self) -> Result<Vec<f32>, TrainError> {
        let mut scales = Vec::with_capacity(self.elements() / self.format.elements);
        self.each_piece(|format, _, numbers| {
            let largest = |block: &[f32]| block.iter().fold(0f32, |most, x| most.max(x.abs()));
            scales.extend(numbers.chunks(format.elements).map(|block| format.code.scale_of(largest(block))));
        })?;
        let (mut codes, mut nested) = (vec![0; scales.len()], vec![0.0; scales.len().div_ceil(NESTED_SCALES)]);
        let offset = nest(&scales, &mut codes, &mut nested);
        let number = |code: u8| Code::DynamicSigned.numbers()[usize::from(code)];
        let rounded = codes.iter().enumerate().map(|(at, &code)| number(code) * nested[at / NESTED_SCALES] + offset);
        scales.iter_mut().zip(rounded).for_each(|(scale, rounded)| *scale = rounded);
        Ok(scales)
    }
}

/// Each thread has a run of blocks; sums are added in their order.
fn in_parallel(format: BlockFormat, numbers: &[f32], scales: Option<&[f32]>) -> Sums {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
    let blocks = (numbers.len() / format.elements).div_ceil(threads).max(1);
    thread::scope(|scope| {
        let parts: Vec<_> = (numbers.chunks(blocks * format.elements).enumerate())
            .map(|(part, numbers)| {
                let own = numbers.len() / format.elements;
                let scales = scales.map(|scales| &scales[part * blocks..][..own]);
                scope.spawn(move || difference(format, numbers, scales))
            })
            .collect();
        let joined = parts.into_iter().map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.fold(Sums::default(), Sums::plus)
    })
}

/// Encodes and decodes whole blocks, with these scales instead of their own where they are given.
fn difference(format: BlockFormat, numbers: &[f32], scales: Option<&[f32]>) -> Sums {
    let plain = BlockFormat { scales: Scales::F32, ..format };
    let mut bytes = vec![0; numbers.len() * format.code.bits() / 8];
    let mut own = vec![0.0; numbers.len() / format.elements];
    encode(format.code, format.elements, numbers, &mut bytes, &mut own);
    bytes.resize(plain.scales_at(numbers.len()).expect("a piece"), 0);
    bytes.extend(scales.unwrap_or(&own).iter().flat_map(|scale| scale.to_le_bytes()));
    let mut decoded = vec![0.0; numbers.len()];
    CodedWeight::new(plain, numbers.len(), &bytes).expect("codes and scales").decode(0, &mut decoded);
    let square = |x: f32| f64::from(x) * f64::from(x);
    let differences = numbers.iter().zip(&decoded).map(|(x, decoded)| square(x - decoded)).sum();
    Sums { differences, weights: numbers.iter().map(|&x| square(x)).sum() }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::{Shape, WEIGHT_FORMATS};
    use plimsoll_runtime::codec::RELATIVE_ERRORS;
    use plimsoll_runtime::{Distribution, Draw};

    use super::*;

    /// Normally distributed weights are off by what the codec promises, however many threads share them.
    #[test]
    fn normal_weights_are_off_by_what_is_known_of_their_format() {
        let draw = Draw { distribution: Distribution::Normal { std: 0.02 }, key: 11 };
        let numbers: Vec<f32> = (0..64 * 4096).map(|index| draw.at(index)).collect();
        for format in WEIGHT_FORMATS {
            let storage = format.storage(DType::F32, &[Shape::new(&[64, 4096])]).expect("whole blocks");
            let blocks = storage.blocks.expect("blocks");
            let sums = in_parallel(blocks, &numbers, None);
            let alone = difference(blocks, &numbers, None);
            assert!((sums.differences / alone.differences - 1.0).abs() < 1e-9);
            let (_, expected) =
                RELATIVE_ERRORS.into_iter().find(|(of, _)| *of == format).expect("every format has one");
            let found = (sums.differences / sums.weights).sqrt();
            assert!((found / expected - 1.0).abs() < 0.05, "{format:?}: {found}, not {expected}");
        }
    }
}
