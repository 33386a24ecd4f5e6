//! Which steps of a schedule run as one: updates of different tensors by the same rule.

use std::collections::BTreeMap;

use plimsoll_graph::OpRule;
use plimsoll_plan::{Buffer, Region, Step};

/// The steps in an order in which they may run, those that may share a launch together. Only updates
/// that follow each other are regrouped; everything else stays where it is, alone.
pub(crate) fn groups(steps: &[Step]) -> Vec<Vec<&Step>> {
    let mut groups: Vec<Vec<&Step>> = Vec::with_capacity(steps.len());
    // Where the groups begin that may still grow, and what they write.
    let (mut open, mut written) = (0, Written::default());
    for step in steps {
        let update = numbers(step).is_some();
        if !update || !written.add(&step.outputs) {
            open = groups.len();
            written = Written::default();
            if update {
                written.add(&step.outputs);
            }
        }
        match groups[open..].iter_mut().find(|group| same_rule(group[0], step)) {
            Some(group) => group.push(step),
            None => groups.push(vec![step]),
        }
        if !update {
            open = groups.len();
        }
    }
    groups
}

/// What an update takes beside its tensor: `hyper` and `clip`. `None` for steps that are no update.
fn numbers(step: &Step) -> Option<&[Buffer]> {
    step.inputs.get(step.op.shared_numbers()?)
}

/// Whether two updates differ in nothing but their tensors.
fn same_rule(a: &Step, b: &Step) -> bool {
    let (Some(a_numbers), Some(b_numbers)) = (numbers(a), numbers(b)) else { return false };
    let same_numbers = a_numbers.iter().zip(b_numbers).all(|(a, b)| a.region == b.region);
    let same_types = a.outputs.iter().map(|a| a.storage).eq(b.outputs.iter().map(|b| b.storage));
    a.op == b.op && same_numbers && same_types
}

/// Memory that steps of the open groups write: where a region begins, where it ends.
#[derive(Default)]
struct Written(BTreeMap<usize, usize>);

impl Written {
    /// Whether a step with these outputs may run beside the others; if so, its outputs count as written.
    fn add(&mut self, outputs: &[Buffer]) -> bool {
        let regions = || outputs.iter().map(|output| output.region).filter(|region| region.bytes > 0);
        let apart = regions().all(|region| !self.overlaps(region));
        if apart {
            self.0.extend(regions().map(|region| (region.offset, region.end())));
        }
        apart
    }

    fn overlaps(&self, region: Region) -> bool {
        self.0.range(..region.end()).next_back().is_some_and(|(_, &end)| end > region.offset)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_graph::ops::{AdamW, Add, Sgd};
    use plimsoll_graph::{DType, Extent, Op, Phase, Shape, ValueId};
    use plimsoll_plan::{Lane, Place};

    use super::*;

    const BYTES: usize = 256;

    fn buffer(place: usize, dtype: DType) -> Buffer {
        let region = Region { place: Place::Device, offset: place * BYTES, bytes: BYTES };
        let shape = Shape::new(&[BYTES / dtype.bytes()]);
        Buffer { value: ValueId(0), slot: None, region, shape, storage: dtype.into(), extent: Extent::Fixed }
    }

    /// A step whose outputs lie where its first inputs do.
    fn step(op: impl Into<Op>, inputs: Vec<Buffer>, outputs: usize) -> Step {
        Step {
            op: op.into(),
            outputs: inputs[..outputs].to_vec(),
            inputs,
            workspace: None,
            lane: Lane::Compute,
            phase: Phase::Update,
            layer: None,
            after: Vec::new(),
            frees: Vec::new(),
        }
    }

    /// Of tensor number `tensor`; the first two places hold `hyper` and `clip`.
    fn adamw(tensor: usize, weight_decay: f32, dtype: DType) -> Step {
        let op = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay, master: false };
        let mut inputs: Vec<Buffer> = (0..4).map(|i| buffer(2 + 4 * tensor + i, dtype)).collect();
        inputs.extend([buffer(0, DType::F32), buffer(1, DType::F32)]);
        step(op, inputs, 4)
    }

    fn sgd(tensor: usize) -> Step {
        let op = Sgd { momentum: 0.0, weight_decay: 0.0, master: false };
        let places = [2 + 4 * tensor, 3 + 4 * tensor, 0, 1];
        step(op, places.map(|place| buffer(place, DType::F32)).to_vec(), 2)
    }

    fn other() -> Step {
        step(Add, vec![buffer(0, DType::F32), buffer(1, DType::F32)], 1)
    }

    /// The groups as indices of steps.
    fn check(steps: &[Step], expected: &[&[usize]]) {
        let index = |step: &Step| steps.iter().position(|other| std::ptr::eq(step, other)).expect("one of them");
        let found: Vec<Vec<usize>> =
            groups(steps).iter().map(|group| group.iter().map(|s| index(s)).collect()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn updates_by_one_rule_run_together() {
        check(&[], &[]);
        check(&[adamw(0, 0.1, DType::F32), adamw(1, 0.1, DType::F32), adamw(2, 0.1, DType::F32)], &[&[0, 1, 2]]);
        check(&[sgd(0), sgd(1)], &[&[0, 1]]);
    }

    #[test]
    fn other_rules_types_and_numbers_run_apart() {
        let decays = [adamw(0, 0.1, DType::F32), adamw(1, 0.0, DType::F32), adamw(2, 0.1, DType::F32)];
        check(&decays, &[&[0, 2], &[1]]);
        check(&[adamw(0, 0.1, DType::F32), adamw(1, 0.1, DType::BF16), sgd(2)], &[&[0], &[1], &[2]]);
        let mut elsewhere = adamw(1, 0.1, DType::F32);
        elsewhere.inputs[5] = buffer(99, DType::F32);
        check(&[adamw(0, 0.1, DType::F32), elsewhere], &[&[0], &[1]]);
    }

    #[test]
    fn other_steps_stay_where_they_are() {
        let steps = [other(), other(), sgd(0), sgd(1), other(), sgd(2), sgd(3)];
        check(&steps, &[&[0], &[1], &[2, 3], &[4], &[5, 6]]);
    }

    #[test]
    fn a_tensor_is_not_updated_twice_at_once() {
        check(&[sgd(0), sgd(1), sgd(0), sgd(2)], &[&[0, 1], &[2, 3]]);
        let mut straddling = sgd(3);
        straddling.outputs[0].region.offset -= 2 * BYTES + BYTES / 2;
        check(&[sgd(2), straddling], &[&[0], &[1]]);
    }
}
