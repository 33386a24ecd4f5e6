//! Rows that are kept from the forward pass to the backward pass in fewer bits than they are computed in: rounded behind
//! what makes them, and widened before what reads them.

use crate::op::{Io, OpRule, expect_inputs, same_as};
use crate::{BlockFormat, Code, DType, GraphError, Role, Scales, Storage, Value, Work};

/// Input `x [N, …]` of floats; output its rows as codes of e4m3, each row with a scale of its own, its largest magnitude
/// over 448. Numbers above a 28,672nd of that magnitude are off by a sixteenth of themselves at most, smaller ones by its
/// 458,752nd part. What is no number stays none.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundRows;

impl OpRule for RoundRows {
    fn name(&self) -> &'static str {
        "round_rows"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 1)?;
        let x = inputs[0];
        if !matches!(x.storage, Storage { element: DType::F32 | DType::BF16 | DType::F16, blocks: None }) {
            let reason = format!("rows of {:?} are not floats", x.storage);
            return Err(GraphError::Invalid { op: self.name(), reason });
        }
        let format = BlockFormat { elements: x.shape.cols(), code: Code::E4m3, scales: Scales::F32 };
        let storage = Storage { blocks: Some(format), ..x.storage };
        Ok(vec![Value { storage, role: Role::Activation, ..same_as(x) }])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(2.0 * io.inputs[0].shape.elements() as f64, io.bytes())
    }

    fn launches(&self, _io: &Io) -> usize {
        1
    }
}

/// Input rows as [`RoundRows`] leaves them; output what their codes stand for, in the type they were rounded from.
#[derive(Debug, Clone, PartialEq)]
pub struct WidenRows;

impl OpRule for WidenRows {
    fn name(&self) -> &'static str {
        "widen_rows"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 1)?;
        let rounded = inputs[0];
        let by_rows = |format: BlockFormat| {
            format == BlockFormat { elements: rounded.shape.cols(), code: Code::E4m3, scales: Scales::F32 }
        };
        if !rounded.storage.blocks.is_some_and(by_rows) {
            let reason = format!("{:?} are not rows of e4m3", rounded.storage);
            return Err(GraphError::Invalid { op: self.name(), reason });
        }
        let storage = rounded.storage.element.into();
        Ok(vec![Value { storage, role: Role::Activation, ..same_as(rounded) }])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(io.outputs[0].shape.elements() as f64, io.bytes())
    }

    fn launches(&self, _io: &Io) -> usize {
        1
    }
}
