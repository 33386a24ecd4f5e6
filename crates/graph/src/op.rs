use std::ops::Range;

use crate::autodiff::Backward;
use crate::ops::*;
use crate::{BackendTraits, Cost, DType, Extent, GraphError, Node, Role, Shape, Value, ValueId, Work};

/// How an output may share bytes with an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Alias {
    /// The output is the input, updated: it always takes the input's place.
    Must { output: usize, input: usize },
    /// The output may take the input's place if nobody reads the input afterwards.
    May { output: usize, input: usize },
}

/// The values around one node.
pub struct Io<'g> {
    pub inputs: Vec<&'g Value>,
    pub outputs: Vec<&'g Value>,
}

impl Io<'_> {
    pub fn bytes(&self) -> f64 {
        self.inputs.iter().chain(&self.outputs).map(|v| v.bytes() as f64).sum()
    }
}

/// What every operator must say about itself, in its family's file.
pub trait OpRule {
    fn name(&self) -> &'static str;
    /// Checks the inputs and describes the outputs.
    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError>;
    fn aliases(&self) -> Vec<Alias> {
        Vec::new()
    }
    /// What it does, one part behind another.
    fn work(&self, io: &Io) -> Vec<Work>;
    fn cost(&self, io: &Io) -> Cost {
        Cost::of(&self.work(io))
    }
    /// Scratch that exists only while the operator runs.
    fn workspace_bytes(&self, _io: &Io, _traits: &BackendTraits) -> usize {
        0
    }
    /// On which line of the memory table its scratch appears.
    fn workspace_role(&self) -> Role {
        Role::Workspace
    }
    /// Kernels and copies on a GPU at most. Most operators are one, with a second where partial sums meet or a copy is
    /// made.
    fn launches(&self, _io: &Io) -> usize {
        2
    }
    /// Executions of this operator on different tensors that a GPU does in one launch.
    fn tensors_per_launch(&self) -> usize {
        1
    }
    /// Under which name a device's rate is kept where memory is the limit: the operator's, unless how fast it is depends on
    /// what its operands are stored in.
    fn rate_name(&self, _io: &Io) -> &'static str {
        self.name()
    }
    /// For the update of a tensor: the inputs that are not the tensor's own, `hyper` and `clip`. Updates by equal
    /// operators of different tensors that share these may run in one launch. `None`: not the update of a tensor.
    fn shared_numbers(&self) -> Option<Range<usize>> {
        None
    }
    /// Whether it writes only some columns or rows of its outputs; others write the rest.
    fn writes_some_columns(&self) -> bool {
        false
    }
    /// A cheaper way to make one of this node's outputs again once another of them is there:
    /// the operator and its inputs. `None`: only by running the node itself again.
    fn rebuild(&self, _node: &Node, _output: usize) -> Option<(Op, Vec<ValueId>)> {
        None
    }
    /// For an operator of the backward pass, `node`: the one that makes, behind the outputs it has, those of the operator
    /// `forward` of the forward pass as well, to the same bits. `None`: it makes nothing of the kind on its way.
    fn remaking(&self, _node: &Node, _forward: &Node) -> Option<Op> {
        None
    }
    /// Emits the operators that carry the gradient from this node's outputs to its inputs.
    fn backward(&self, node: &Node, _pass: &mut Backward) -> Result<(), GraphError> {
        Err(GraphError::NotDifferentiable { op: self.name(), value: format!("{:?}", node.outputs) })
    }
}

macro_rules! operators {
    ($($variant:ident),* $(,)?) => {
        /// Every operator there is; each belongs to one family file in every layer.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Op { $($variant($variant)),* }

        $(impl From<$variant> for Op { fn from(op: $variant) -> Op { Op::$variant(op) } })*

        impl Op {
            fn rule(&self) -> &dyn OpRule {
                match self { $(Op::$variant(op) => op),* }
            }
        }
    };
}

operators!(
    Linear,
    BiasGrad,
    AdapterUp,
    AdapterUpGrad,
    RmsNorm,
    RmsNormGrad,
    HeadNorm,
    HeadNormGrad,
    LayerNorm,
    LayerNormGrad,
    Rope,
    Attention,
    AttentionGrad,
    CacheWrite,
    CachedAttention,
    PositionBias,
    PositionBiasGrad,
    Gated,
    GatedGrad,
    Pointwise,
    PointwiseGrad,
    Embed,
    EmbedGrad,
    VocabLoss,
    LastLogits,
    LastRows,
    LastRowsGrad,
    SplitRows,
    JoinRows,
    RoundRows,
    WidenRows,
    PairLoss,
    ClassLoss,
    ListLoss,
    SequenceLogProb,
    SequenceLogProbGrad,
    PreferenceLoss,
    Add,
    Scale,
    Dropout,
    Zeros,
    GlobalNorm,
    SquareSum,
    TotalNorm,
    AdamW,
    Sgd,
    Lion,
    Muon,
    Adafactor,
);

impl OpRule for Op {
    fn name(&self) -> &'static str {
        self.rule().name()
    }
    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        self.rule().outputs(inputs)
    }
    fn aliases(&self) -> Vec<Alias> {
        self.rule().aliases()
    }
    fn work(&self, io: &Io) -> Vec<Work> {
        self.rule().work(io)
    }
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        self.rule().workspace_bytes(io, traits)
    }
    fn workspace_role(&self) -> Role {
        self.rule().workspace_role()
    }
    fn launches(&self, io: &Io) -> usize {
        self.rule().launches(io)
    }
    fn tensors_per_launch(&self) -> usize {
        self.rule().tensors_per_launch()
    }
    fn rate_name(&self, io: &Io) -> &'static str {
        self.rule().rate_name(io)
    }
    fn shared_numbers(&self) -> Option<Range<usize>> {
        self.rule().shared_numbers()
    }
    fn writes_some_columns(&self) -> bool {
        self.rule().writes_some_columns()
    }
    fn rebuild(&self, node: &Node, output: usize) -> Option<(Op, Vec<ValueId>)> {
        self.rule().rebuild(node, output)
    }
    fn remaking(&self, node: &Node, forward: &Node) -> Option<Op> {
        self.rule().remaking(node, forward)
    }
    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        self.rule().backward(node, pass)
    }
}

/// An unnamed value for an operator's output list.
pub(crate) fn output(shape: &[usize], dtype: DType, role: Role, extent: Extent) -> Value {
    Value {
        name: String::new(),
        shape: Shape::new(shape),
        storage: dtype.into(),
        role,
        extent,
        layer: None,
        class: crate::Class::NONE,
        slot: None,
    }
}

/// An activation with a row for each of another's: for each token, or for each sequence.
pub(crate) fn rows_of(value: &Value, cols: usize, dtype: DType) -> Value {
    output(&[value.shape.rows(), cols], dtype, Role::Activation, value.extent)
}

/// The input's own description again, for outputs of the same shape.
pub(crate) fn same_as(value: &Value) -> Value {
    Value { name: String::new(), class: crate::Class::NONE, slot: None, layer: None, ..value.clone() }
}

pub(crate) fn expect_inputs(op: &'static str, inputs: &[&Value], expected: usize) -> Result<(), GraphError> {
    if inputs.len() == expected { Ok(()) } else { Err(GraphError::InputCount { op, expected, got: inputs.len() }) }
}

pub(crate) fn expect_shape(
    op: &'static str,
    inputs: &[&Value],
    index: usize,
    expected: &[usize],
) -> Result<(), GraphError> {
    let got = inputs[index].shape;
    if got == Shape::new(expected) {
        Ok(())
    } else {
        Err(GraphError::Shape { op, index, expected: Shape::new(expected).to_string(), got: got.to_string() })
    }
}
