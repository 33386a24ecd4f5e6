//! Matrix products between tokens and weights: `y = α·drop(x)·Wᵀ + b`, its two gradients, and sums
//! into what is already there. Weights are `[out, in]`, tokens `[N, features]`, both row-major.
//!
//! A frozen weight may be stored in few bits ([`WeightFormat`](crate::WeightFormat)). Its codes are then decoded a part of
//! the weight at a time into scratch, or, with `fp8`, multiplied as they are.

use std::ops::Range;

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, rows_of, same_as};
use crate::{BackendTraits, Backward, Class, Code, DType, Extent, GraphError, Node, Product, Shape, Value, Work};

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

/// Elements of a weight that are decoded at a time at most, but for what the width of a part is rounded up by.
pub const DECODED_ELEMENTS_MAX: usize = 1 << 25;
/// Parts of a weight begin at multiples of it.
pub const DECODED_WIDTH: usize = 128;
/// Rows of tokens that are rounded to eight bits at a time.
pub const FP8_ROWS: usize = 4096;
/// Of a product as such, with a copy or a bias beside it.
const PRODUCT_LAUNCHES: usize = 2;
/// What parts of the scratch begin at.
const SCRATCH_ALIGNMENT: usize = 256;

/// The parts of a stored weight that are decoded one after another: runs of its rows where these are columns of the result
/// (`Forward`), runs of its columns where those are (`InputGrad`). They follow from the shape alone.
pub fn decoded_parts(kind: LinearKind, weight: &Shape) -> impl Iterator<Item = Range<usize>> {
    let (wide, width) = (decoded_wide(kind, weight), decoded_width(kind, weight));
    (0..wide).step_by(width).map(move |start| start..wide.min(start + width))
}

fn decoded_wide(kind: LinearKind, weight: &Shape) -> usize {
    if kind == LinearKind::Forward { weight.rows() } else { weight.cols() }
}

/// Rows or columns of the largest of [`decoded_parts`].
pub fn decoded_width(kind: LinearKind, weight: &Shape) -> usize {
    let wide = decoded_wide(kind, weight);
    let parts = weight.elements().div_ceil(DECODED_ELEMENTS_MAX).max(1);
    wide.div_ceil(parts).next_multiple_of(DECODED_WIDTH).min(wide).max(1)
}

/// Where what a product with a stored weight needs lies in its scratch, behind the product's own: from the beginning of
/// that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DecodedScratch {
    /// A part of the weight: decoded; as codes and transposed for `fp8` where products take codes.
    pub weight_bytes: usize,
    /// With `fp8`, a run of rows rounded to eight bits: as codes where products take them, else as what they stand for.
    pub rows_at: usize,
    pub row_scales_at: usize,
    pub bytes: usize,
}

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
    /// Only with a weight of rows of e4m3 and without dropout. Each row of `x` is rounded to e4m3 too, with a scale of
    /// its own (its largest magnitude over 448), and the codes are multiplied. In `InputGrad`, the columns of `dy` are
    /// multiplied by the scales of the weight's rows first, and the rows of that are rounded; what the weight's codes
    /// stand for is taken without their scales. Sums are in float32.
    pub fp8: bool,
}

impl Linear {
    pub fn forward() -> Self {
        let (kind, dest) = (LinearKind::Forward, Dest::Fresh);
        Self { kind, alpha: 1.0, bias: false, dest, cols: None, dropout: None, fp8: false }
    }

    /// Scratch for a weight in few bits, and for rows rounded to eight; nothing for other weights.
    pub fn decoded_scratch(&self, inputs: &[&Value], traits: &BackendTraits) -> DecodedScratch {
        let weight = inputs[1];
        if self.kind == LinearKind::WeightGrad || weight.storage.blocks.is_none() {
            return DecodedScratch::default();
        }
        let (tokens, in_features, out) = self.dims(inputs);
        let (deep, across) = match self.kind {
            LinearKind::Forward => (in_features, out),
            _ => (out, in_features),
        };
        let codes = self.fp8 && traits.multiplies_codes;
        let element = if codes { DType::E4m3.bytes() } else { inputs[0].dtype().bytes() };
        let weight_bytes = match (codes, self.kind) {
            // The weight's own codes lie as the product reads them.
            (true, LinearKind::Forward) => 0,
            _ => decoded_width(self.kind, &weight.shape).min(across) * deep * element,
        };
        let rows = if self.fp8 { tokens.min(FP8_ROWS) } else { 0 };
        let rows_at = weight_bytes.next_multiple_of(SCRATCH_ALIGNMENT);
        let row_scales_at = (rows_at + rows * deep * element).next_multiple_of(SCRATCH_ALIGNMENT);
        let bytes = row_scales_at + (rows * DType::F32.bytes()).next_multiple_of(SCRATCH_ALIGNMENT);
        DecodedScratch { weight_bytes, rows_at, row_scales_at, bytes }
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
        self.check_format(inputs)
    }

    fn check_format(&self, inputs: &[&Value]) -> Result<(), GraphError> {
        let invalid = |reason: String| Err(GraphError::Invalid { op: self.name(), reason });
        let format = inputs[1].storage.blocks.filter(|_| self.kind != LinearKind::WeightGrad);
        let by_rows = format.is_some_and(|format| format.elements == inputs[1].shape.cols());
        match format {
            Some(_) if self.dropout.is_some() => invalid("dropout beside a weight in few bits".to_owned()),
            _ if self.fp8 && !(by_rows && format.is_some_and(|format| format.code == Code::E4m3)) => {
                invalid(format!("fp8 beside a weight of {:?}", inputs[1].storage))
            }
            _ => Ok(()),
        }
    }

    /// Passes over a weight in few bits, and over rows that are rounded to eight.
    fn decoding(&self, io: &Io) -> Option<Work> {
        let weight = io.inputs[1];
        if self.kind == LinearKind::WeightGrad || weight.storage.blocks.is_none() {
            return None;
        }
        let (tokens, in_features, out) = self.dims(&io.inputs);
        let (x, elements) = (io.inputs[0].dtype().bytes(), in_features * out);
        let deep = if self.kind == LinearKind::Forward { in_features } else { out };
        let bytes = match (self.fp8, self.kind) {
            (true, LinearKind::Forward) => tokens * deep * (x + 1),
            (true, _) => tokens * deep * (x + 1) + 2 * elements,
            (false, _) => weight.bytes() + elements * x,
        };
        Some(Work::Memory { flops: 0.0, bytes: bytes as f64 })
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
        let product = Work::Product(Product {
            flops: 2.0 * tokens as f64 * in_features as f64 * out as f64,
            bytes: self.bytes(io),
            dtype: if self.fp8 { DType::E4m3 } else { io.inputs[0].dtype() },
            shape,
            tokens,
            low_rank: low_rank_name(self.kind, in_features, out),
        });
        self.decoding(io).into_iter().chain([product]).collect()
    }

    /// Beside the two of any operator: each part of a weight in few bits is decoded or transposed, each run of rows rounded,
    /// and every pair multiplied. Of several of both, the one or the other is made anew for every pair.
    fn launches(&self, io: &Io) -> usize {
        let weight = io.inputs[1];
        if self.kind == LinearKind::WeightGrad || weight.storage.blocks.is_none() {
            return PRODUCT_LAUNCHES;
        }
        let parts = decoded_parts(self.kind, &weight.shape).count();
        let runs = if self.fp8 { io.inputs[0].shape.rows().div_ceil(FP8_ROWS) } else { 1 };
        let made = if self.fp8 && parts > 1 && runs > 1 { parts.max(runs) + parts * runs } else { parts + runs };
        PRODUCT_LAUNCHES + made + parts * runs
    }

    fn writes_some_columns(&self) -> bool {
        self.cols.is_some()
    }

    /// A run of masked rows, and what the product of them asks for.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        let (tokens, in_features, _) = self.dims(&io.inputs);
        let masked = if self.dropout.is_some() { tokens.min(DROPOUT_ROWS) * in_features * 4 } else { 0 };
        traits.matmul_workspace_bytes + masked + self.decoded_scratch(&io.inputs, traits).bytes
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
