//! Adapters are added to their matrices on the way: the file has no place for them.

use std::collections::HashSet;

use plimsoll_graph::Shape;
use plimsoll_models::Lora;
use plimsoll_runtime::weights::{Checkpoint, WeightError};

use super::tensors::Tensor;
use crate::{AdapterFolder, TrainError};

/// An adapter's files.
pub(super) struct Folded {
    files: Checkpoint,
    lora: Lora,
}

/// What is added to one matrix.
pub(super) struct Addition<'a> {
    folded: &'a Folded,
    /// The name of the second factor, and its shape.
    second: (String, Shape),
    first: Vec<f32>,
    columns: usize,
}

impl Folded {
    pub fn open(adapter: &AdapterFolder, tensors: &[Tensor]) -> Result<Self, TrainError> {
        let folded = Self { files: Checkpoint::open(&adapter.path, "adapter_model")?, lora: adapter.lora.clone() };
        let mut known = HashSet::new();
        for tensor in tensors {
            for (name, shape) in folded.factors(tensor).into_iter().flatten() {
                folded.files.check(&name, &shape)?;
                known.insert(name);
            }
        }
        let other = folded.files.names().find(|name| !known.contains(*name)).map(str::to_owned);
        match other {
            None => Ok(folded),
            Some(other) => {
                let folder = adapter.path.display();
                let reason = format!("the adapter in {folder} holds `{other}`, which is no part of a text model");
                Err(TrainError::Gguf { reason })
            }
        }
    }

    /// Names and shapes of the two factors, where the matrix is adapted.
    fn factors(&self, tensor: &Tensor) -> Option<[(String, Shape); 2]> {
        let module = tensor.source.strip_suffix(".weight")?;
        let (_, layer) = module.rsplit_once('.')?;
        let is_linear = tensor.shape.rank() == 2 && tensor.name.starts_with("blk.");
        if !is_linear || !self.lora.adapts(layer) {
            return None;
        }
        let (rows, r) = (tensor.shape.rows(), self.lora.r);
        let name = |side: &str| format!("base_model.model.{module}.{side}.weight");
        Some([(name("lora_A"), Shape::new(&[r, tensor.shape.cols()])), (name("lora_B"), Shape::new(&[rows, r]))])
    }

    pub fn addition(&self, tensor: &Tensor) -> Result<Option<Addition<'_>>, WeightError> {
        let Some([(name, shape), second]) = self.factors(tensor) else { return Ok(None) };
        let mut first = vec![0.0; shape.elements()];
        self.files.read(&name, &shape, 0, &mut first)?;
        Ok(Some(Addition { folded: self, second, first, columns: shape.cols() }))
    }
}

impl Addition<'_> {
    /// Adds to whole rows of the matrix, the first of which is `row`.
    pub fn add(&self, row: usize, numbers: &mut [f32]) -> Result<(), WeightError> {
        let Self { folded, second: (name, shape), first, columns } = self;
        let r = folded.lora.r;
        let mut second = vec![0.0; numbers.len() / columns * r];
        folded.files.read(name, shape, row * r, &mut second)?;
        let scale = folded.lora.scale();
        for (numbers, factors) in numbers.chunks_exact_mut(*columns).zip(second.chunks_exact(r)) {
            for (factor, other) in factors.iter().zip(first.chunks_exact(*columns)) {
                numbers.iter_mut().zip(other).for_each(|(x, y)| *x += scale * factor * y);
            }
        }
        Ok(())
    }
}
