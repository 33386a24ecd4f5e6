//! Matrix products between tokens and weights: `y = α·drop(x)·Wᵀ + b`, its two gradients, and sums
//! into what is already there. Weights are `[out, in]`, tokens `[N, features]`, both row-major.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, rows_of, same_as};
use crate::{BackendTraits, Backward, Class, Extent, GraphError, Node, Product, Value, Work};

/// Which of the three products.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinearKind {
    /// inputs `x, W`; output `y = α·drop(x)·Wᵀ`
    Forward,
    /// inputs `dy, W`; output `dx = drop(α·dy·W)`
    InputGrad,
    /// inputs `dy, x, dW`; output `dW + α·dyᵀ·drop(x)`
    WeightGrad,
}

/// What happens to the memory the product is written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dest {
    /// A new value. With `cols` set, the other columns hold nothing yet.
    Fresh,
    /// A further input is added to.
    Accumulate,
    /// A further input keeps all columns but those in `cols`.
    Overwrite,
}

/// A run of columns on the output-feature side: of `y` in `Forward`, of `dy` in the gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cols {
    pub start: usize,
    pub len: usize,
    /// Columns of the whole matrix.
    pub total: usize,
}

/// Dropout on the `x` side, with the mask drawn from (key, site, row id, column): nothing is stored.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct InnerDropout {
    pub p: f32,
    pub site: u32,
}

/// Rows a backend masks at a time when dropout sits inside a product.
pub const DROPOUT_ROWS: usize = 256;

/// Inputs in order: the two operands of `kind`, then `bias`, then the destination
/// (`WeightGrad` always has one), then with dropout `row_ids, rng_key`.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    pub kind: LinearKind,
    pub alpha: f32,
    pub bias: bool,
    pub dest: Dest,
    pub cols: Option<Cols>,
    pub dropout: Option<InnerDropout>,
}

impl Linear {
    pub fn forward() -> Self {
        Self { kind: LinearKind::Forward, alpha: 1.0, bias: false, dest: Dest::Fresh, cols: None, dropout: None }
    }

    /// Position of the destination among the inputs, if there is one.
    pub fn dest_input(&self) -> Option<usize> {
        let at = 2 + usize::from(self.bias);
        (self.kind == LinearKind::WeightGrad || self.dest != Dest::Fresh).then_some(at)
    }

    /// Position of `row_ids` among the inputs; `rng_key` follows it.
    pub fn dropout_inputs(&self) -> Option<usize> {
        self.dropout.map(|_| 2 + usize::from(self.bias) + usize::from(self.dest_input().is_some()))
    }

    /// (tokens, in, out) of the product.
    pub fn dims(&self, inputs: &[&Value]) -> (usize, usize, usize) {
        let tokens = inputs[0].shape.rows();
        match self.kind {
            LinearKind::Forward | LinearKind::InputGrad => {
                let weight = inputs[1].shape;
                (tokens, weight.cols(), weight.rows())
            }
            LinearKind::WeightGrad => {
                let out = self.cols.map_or(inputs[0].shape.cols(), |c| c.len);
                (tokens, inputs[1].shape.cols(), out)
            }
        }
    }

    /// What it reads and writes. Columns that a product leaves alone are not moved.
    fn bytes(&self, io: &Io) -> f64 {
        let (tokens, wide, out) = self.dims(&io.inputs);
        let size = io.inputs[0].dtype().bytes();
        let again = usize::from(self.dest == Dest::Accumulate);
        let bytes = match self.kind {
            LinearKind::Forward => size * (tokens * wide + out * wide + tokens * out * (1 + again)),
            LinearKind::InputGrad => size * (tokens * out + out * wide + tokens * wide * (1 + again)),
            LinearKind::WeightGrad => size * tokens * (wide + out) + 2 * io.outputs[0].bytes(),
        };
        bytes as f64
    }

    fn check(&self, inputs: &[&Value]) -> Result<(), GraphError> {
        let name = self.name();
        let extra =
            usize::from(self.bias) + usize::from(self.dest_input().is_some()) + 2 * usize::from(self.dropout.is_some());
        expect_inputs(name, inputs, 2 + extra)?;
        let (tokens, in_features, out) = self.dims(inputs);
        let wide = self.cols.map_or(out, |c| c.total);
        if let Some(cols) = self.cols
            && (cols.len != out || cols.start + cols.len > cols.total)
        {
            return Err(GraphError::Invalid {
                op: name,
                reason: format!("columns {cols:?} do not hold {out} features"),
            });
        }
        match self.kind {
            LinearKind::Forward => expect_shape(name, inputs, 0, &[tokens, in_features])?,
            LinearKind::InputGrad => expect_shape(name, inputs, 0, &[tokens, wide])?,
            LinearKind::WeightGrad => {
                expect_shape(name, inputs, 0, &[tokens, wide])?;
                expect_shape(name, inputs, 1, &[tokens, in_features])?;
            }
        }
        if self.bias {
            expect_shape(name, inputs, 2, &[out])?;
        }
        if let Some(at) = self.dest_input() {
            match self.kind {
                LinearKind::Forward => expect_shape(name, inputs, at, &[tokens, wide])?,
                LinearKind::InputGrad => expect_shape(name, inputs, at, &[tokens, in_features])?,
                LinearKind::WeightGrad => expect_shape(name, inputs, at, &[out, in_features])?,
            }
        }
        if let Some(at) = self.dropout_inputs() {
            expect_shape(name, inputs, at, &[tokens])?;
        }
        Ok(())
    }
}

/// Columns up to which a side of a product counts as low-rank.
const LOW_RANK_MAX: usize = 64;

/// Under which name the rate of a product with an adapter's first matrix is measured; `None` for other products.
fn low_rank_name(kind: LinearKind, wide: usize, out: usize) -> Option<&'static str> {
    let (short, long) = (wide.min(out), wide.max(out));
    if short > LOW_RANK_MAX || long < 4 * short {
        return None;
    }
    (out < wide).then_some(match kind {
        LinearKind::Forward => "linear_down",
        LinearKind::InputGrad => "linear_down_input_grad",
        LinearKind::WeightGrad => "linear_down_weight_grad",
    })
}

impl OpRule for Linear {
    fn name(&self) -> &'static str {
        match self.kind {
            LinearKind::Forward => "linear",
            LinearKind::InputGrad => "linear_input_grad",
            LinearKind::WeightGrad => "linear_weight_grad",
        }
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        self.check(inputs)?;
        let (_, in_features, out) = self.dims(inputs);
        Ok(vec![match self.kind {
            LinearKind::Forward => rows_of(inputs[0], self.cols.map_or(out, |c| c.total), inputs[0].dtype()),
            LinearKind::InputGrad => rows_of(inputs[0], in_features, inputs[0].dtype()),
            LinearKind::WeightGrad => same_as(inputs[2]),
        }])
    }

    fn aliases(&self) -> Vec<Alias> {
        match (self.kind, self.dest_input()) {
            (LinearKind::WeightGrad, Some(input)) => vec![Alias::Must { output: 0, input }],
            (_, Some(input)) => vec![Alias::May { output: 0, input }],
            (_, None) => Vec::new(),
        }
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        let (tokens, in_features, out) = self.dims(&io.inputs);
        let shape = match self.kind {
            LinearKind::Forward => [tokens, out, in_features],
            LinearKind::InputGrad => [tokens, in_features, out],
            LinearKind::WeightGrad => [out, in_features, tokens],
        };
        vec![Work::Product(Product {
            flops: 2.0 * tokens as f64 * in_features as f64 * out as f64,
            bytes: self.bytes(io),
            dtype: io.inputs[0].dtype(),
            shape,
            tokens,
            low_rank: low_rank_name(self.kind, in_features, out),
        })]
    }

    fn writes_some_columns(&self) -> bool {
        self.cols.is_some()
    }

    /// A run of masked rows, and what the product of them asks for.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        let (tokens, in_features, _) = self.dims(&io.inputs);
        let masked = if self.dropout.is_some() { tokens.min(DROPOUT_ROWS) * in_features * 4 } else { 0 };
        traits.matmul_workspace_bytes + masked
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        if self.kind != LinearKind::Forward {
            return Err(GraphError::NotDifferentiable { op: self.name(), value: format!("{:?}", node.outputs) });
        }
        let Some(dy) = pass.grad(node.outputs[0]) else { return Ok(()) };
        let (x, weight) = (node.inputs[0], node.inputs[1]);
        let dropout_inputs = self.dropout_inputs().map(|at| [node.inputs[at], node.inputs[at + 1]]);
        let with_dropout = |mut inputs: Vec<_>| {
            inputs.extend(dropout_inputs.iter().flatten());
            inputs
        };
        if pass.trainable(weight) {
            let op = Linear { kind: LinearKind::WeightGrad, bias: false, dest: Dest::Accumulate, ..self.clone() };
            pass.accumulate_parameter(weight, |grad| (op.into(), with_dropout(vec![dy, x, grad])))?;
        }
        if self.bias && pass.trainable(node.inputs[2]) {
            let op = BiasGrad { cols: self.cols };
            pass.accumulate_parameter(node.inputs[2], |grad| (op.into(), vec![dy, grad]))?;
        }
        if pass.needs(x) {
            let partial = pass.partial(x);
            let dest = if partial.is_some() { Dest::Accumulate } else { Dest::Fresh };
            let op = Linear { kind: LinearKind::InputGrad, bias: false, dest, ..self.clone() };
            let mut inputs = vec![dy, weight];
            inputs.extend(partial);
            let dx = pass.emit_one(op, &with_dropout(inputs), x)?;
            pass.replace(x, dx);
        }
        if let (Some(at), true) = (self.dest_input(), self.dest != Dest::Fresh) {
            pass.accumulate(node.inputs[at], dy)?;
        }
        Ok(())
    }
}

/// `db + Σ_rows dy`, rows in a fixed order. Inputs `dy, db`.
#[derive(Debug, Clone, PartialEq)]
pub struct BiasGrad {
    pub cols: Option<Cols>,
}

impl OpRule for BiasGrad {
    fn name(&self) -> &'static str {
        "bias_grad"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 2)?;
        let len = self.cols.map_or(inputs[0].shape.cols(), |c| c.len);
        expect_shape(self.name(), inputs, 1, &[len])?;
        Ok(vec![Value { extent: Extent::Fixed, class: Class::NONE, ..same_as(inputs[1]) }])
    }

    fn aliases(&self) -> Vec<Alias> {
        vec![Alias::Must { output: 0, input: 1 }]
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        Work::memory(io.inputs[0].shape.elements() as f64, io.bytes())
    }

    /// Partial sums of devices that add shares of the rows side by side.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        traits.partial_rows * io.inputs[1].shape.elements() * 4
    }
}
