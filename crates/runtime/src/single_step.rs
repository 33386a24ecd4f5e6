//! One operator laid out on its own, for measurements and tests.

use plimsoll_graph::{
    Alias, BackendTraits, Class, DType, Extent, GraphError, Io, Op, OpRule, Phase, Role, Shape, Value, ValueId,
};
use plimsoll_plan::{Buffer, Lane, Place, Region, Step};

/// Addresses are multiples of it, as in plans; libraries count on it.
const ALIGNMENT: usize = plimsoll_plan::lifetimes::ALIGNMENT;

/// An input by shape, type and extent; names and roles do not matter to a kernel.
pub fn value(shape: &[usize], dtype: DType, extent: Extent) -> Value {
    Value {
        name: String::new(),
        shape: Shape::new(shape),
        storage: dtype.into(),
        role: Role::Input,
        extent,
        layer: None,
        class: Class::NONE,
        slot: None,
    }
}

/// Places inputs, outputs and workspace one behind another. Outputs that must take an input's place do;
/// with `in_place`, those that may do too. Returns the step and the bytes of arena it needs.
pub fn lay_out(op: Op, inputs: &[Value], traits: &BackendTraits, in_place: bool) -> Result<(Step, usize), GraphError> {
    let references: Vec<&Value> = inputs.iter().collect();
    let outputs = op.outputs(&references)?;
    let mut end = 0;
    let mut place = |bytes: usize| {
        let region = Region { place: Place::Device, offset: end, bytes };
        end = (end + bytes).next_multiple_of(ALIGNMENT);
        region
    };
    let buffer = |index: usize, value: &Value, region| Buffer {
        value: ValueId(index as u32),
        slot: None,
        region,
        shape: value.shape,
        storage: value.storage,
        extent: value.extent,
    };
    let placed: Vec<Buffer> = inputs.iter().enumerate().map(|(i, v)| buffer(i, v, place(v.bytes()))).collect();
    let mut taken = vec![false; inputs.len()];
    let mut results = Vec::new();
    for (index, value) in outputs.iter().enumerate() {
        let shared = op.aliases().into_iter().find_map(|alias| match alias {
            Alias::Must { output, input } if output == index => Some(input),
            Alias::May { output, input } if output == index && in_place && !taken[input] => Some(input),
            _ => None,
        });
        let region = match shared {
            Some(input) => {
                taken[input] = true;
                placed[input].region
            }
            None => place(value.bytes()),
        };
        results.push(buffer(inputs.len() + index, value, region));
    }
    let io = Io { inputs: references, outputs: outputs.iter().collect() };
    let workspace = op.workspace_bytes(&io, traits);
    let workspace = (workspace > 0).then(|| place(workspace));
    let step = Step {
        op,
        inputs: placed,
        outputs: results,
        workspace,
        lane: Lane::Compute,
        phase: Phase::Forward,
        layer: None,
        after: Vec::new(),
        frees: Vec::new(),
    };
    Ok((step, end))
}
