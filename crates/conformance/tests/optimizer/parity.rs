//! Courses of updates by other people's optimizers, as `fixtures/make_optimizers.py` writes them.

use std::fs;
use std::path::Path;

use plimsoll_conformance::reference::Array;
use plimsoll_conformance::{Placement, Suite, Tensor, compare};
use plimsoll_graph::{Op, State};

use crate::ACTIVE;

pub const UPDATES: usize = 10;

/// The parameters of a file, one behind another.
pub struct Course {
    lens: Vec<usize>,
    numbers: Vec<f32>,
}

impl Course {
    pub fn read(name: &str, lens: &[usize]) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/optimizers").join(name);
        let bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let numbers = bytes.as_chunks().0.iter().map(|&x| f32::from_le_bytes(x)).collect();
        Self { lens: lens.to_vec(), numbers }
    }

    /// A parameter in one of the parts of the file: the start, then the gradients, then two of each setting.
    fn part(&self, part: usize, parameter: usize) -> &[f32] {
        let before: usize = self.lens[..parameter].iter().sum();
        let start = part * self.lens.iter().sum::<usize>() + before;
        &self.numbers[start..start + self.lens[parameter]]
    }

    /// Ten updates of one parameter on every backend: the first and the last as in the file, relative to the largest
    /// entry. `make` gives the operator and its inputs from parameter and gradient and the states.
    pub fn check(
        &self,
        name: &str,
        setting: usize,
        parameter: usize,
        shape: &[usize],
        states: &[State],
        make: impl Fn(u64, [Tensor; 2], &[Tensor]) -> (Op, Vec<Tensor>),
        tolerance: f64,
    ) {
        for harness in Suite::new().harnesses() {
            let mut p = Tensor::fixed(shape, self.part(0, parameter).to_vec());
            let zeros = |state: &State| {
                Tensor::fixed(state.shape.dims(), vec![0.0; state.shape.elements()]).stored_as(state.storage)
            };
            let mut held: Vec<Tensor> = states.iter().map(zeros).collect();
            for update in 1..=UPDATES {
                let g = Tensor::fixed(shape, self.part(update, parameter).to_vec());
                let (op, inputs) = make(update as u64, [p, g], &held);
                let mut outputs = harness.run(&op, &inputs, ACTIVE, &Placement::default());
                held = outputs.split_off(2);
                p = outputs.remove(0);
                if update == 1 || update == UPDATES {
                    let part = 1 + UPDATES + 2 * setting + usize::from(update > 1);
                    let want = self.part(part, parameter).iter().map(|&x| f64::from(x)).collect();
                    if let Err(difference) = compare(&p.array(ACTIVE), &Array::new(shape, want), tolerance) {
                        panic!("{name}, parameter {parameter}, update {update} on {}: {difference}", harness.name());
                    }
                }
            }
        }
    }
}
