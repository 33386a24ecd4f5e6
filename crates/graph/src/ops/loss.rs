//! The vocabulary projection and the cross entropy as one operator, a chunk of tokens at a time, so
//! that the full logits never exist. Gradients are made on the way: the loss is the last operator of
//! the forward pass and its scale is known, so nothing needs to be computed twice.

use crate::op::{Alias, Io, OpRule, expect_inputs, expect_shape, output, same_as};
use crate::{BackendTraits, Backward, Class, DType, Extent, GraphError, Node, Product, Role, Value, Work};

/// Which gradients the loss makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossGrad {
    pub weight: bool,
}

/// Inputs `hidden [N, D], W [V, D], targets [N], [scale [1] f32, loss [1] f64], [weights [N] f32], [dW]`;
/// outputs `[loss + scale·Σ weight·nll], [nll [N] f32], [d_hidden, [dW]]`. Targets below zero bear no loss, and their `nll`
/// is zero; without `weights` every other token weighs one, and without `total` the scale is one. `nll` is each token's
/// negative log-likelihood, unweighted. With `softcap = c`, logits pass through `c·tanh(z / c)`.
///
/// Without `total` it only says how likely tokens are. What a loss further on makes of that comes back as the weights of a
/// second run, which makes the gradients: the logits are computed twice then, because they never lie in memory.
#[derive(Debug, Clone, PartialEq)]
pub struct VocabLoss {
    pub softcap: Option<f32>,
    /// Into how many chunks the tokens are divided.
    pub chunks: usize,
    pub total: bool,
    pub weights: bool,
    pub nll: bool,
    pub grad: Option<LossGrad>,
}

impl VocabLoss {
    /// Every loss-bearing token weighs one, and only their sum is wanted.
    pub fn new(softcap: Option<f32>, chunks: usize) -> Self {
        Self { softcap, chunks, total: true, weights: false, nll: false, grad: None }
    }

    /// Only each token's negative log-likelihood is wanted.
    pub fn likelihoods(softcap: Option<f32>, chunks: usize) -> Self {
        Self { total: false, nll: true, ..Self::new(softcap, chunks) }
    }

    pub fn chunk_rows(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.chunks.max(1))
    }

    /// Position of the scale among the inputs; that of the loss follows, which is the first output.
    pub fn scale_input(&self) -> Option<usize> {
        self.total.then_some(3)
    }

    /// Position of the tokens' weights among the inputs.
    pub fn weights_input(&self) -> Option<usize> {
        self.weights.then_some(3 + 2 * usize::from(self.total))
    }

    /// Position of the weight matrix's gradient among the inputs.
    pub fn weight_grad_input(&self) -> Option<usize> {
        let before = 3 + 2 * usize::from(self.total) + usize::from(self.weights);
        self.grad.is_some_and(|grad| grad.weight).then_some(before)
    }

    /// Position of the tokens' negative log-likelihoods among the outputs.
    pub fn nll_output(&self) -> Option<usize> {
        self.nll.then_some(usize::from(self.total))
    }

    /// Position of the hidden state's gradient among the outputs; that of the weight matrix follows.
    pub fn grad_output(&self) -> Option<usize> {
        self.grad.map(|_| usize::from(self.total) + usize::from(self.nll))
    }

    /// Logits are written and read as float32, twice for their gradient, which is written in the products' type.
    fn logits_bytes(&self, io: &Io) -> f64 {
        let logits = io.inputs[0].shape.rows() as f64 * io.inputs[1].shape.rows() as f64;
        let gradient = if self.grad.is_some() { 4 + io.inputs[0].dtype().bytes() } else { 0 };
        logits * (4 + 4 + gradient) as f64
    }
}

/// Elements from one row of logits to the next in scratch: products are slow where rows begin at odd addresses, as they
/// would with a vocabulary of 29,298 words.
pub fn logits_stride(vocabulary: usize) -> usize {
    vocabulary.next_multiple_of(8)
}

impl OpRule for VocabLoss {
    fn name(&self) -> &'static str {
        "vocab_loss"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        let weight_grad = self.weight_grad_input();
        let count = 3 + 2 * usize::from(self.total) + usize::from(self.weights) + usize::from(weight_grad.is_some());
        expect_inputs(self.name(), inputs, count)?;
        let (rows, cols) = (inputs[0].shape.rows(), inputs[0].shape.cols());
        expect_shape(self.name(), inputs, 1, &[inputs[1].shape.rows(), cols])?;
        expect_shape(self.name(), inputs, 2, &[rows])?;
        if let Some(at) = self.weights_input() {
            expect_shape(self.name(), inputs, at, &[rows])?;
        }
        let mut outputs: Vec<Value> = self.scale_input().map(|at| same_as(inputs[at + 1])).into_iter().collect();
        if self.nll {
            outputs.push(output(&[rows], DType::F32, Role::Loss, inputs[0].extent));
        }
        if self.grad.is_some() {
            outputs.push(Value { role: Role::Loss, ..same_as(inputs[0]) });
        }
        outputs.extend(weight_grad.map(|at| same_as(inputs[at])));
        Ok(outputs)
    }

    fn aliases(&self) -> Vec<Alias> {
        let loss = self.scale_input().map(|at| Alias::Must { output: 0, input: at + 1 });
        let mut aliases: Vec<Alias> = loss.into_iter().collect();
        if let Some(output) = self.grad_output() {
            aliases.push(Alias::May { output, input: 0 });
            aliases.extend(self.weight_grad_input().map(|input| Alias::Must { output: output + 1, input }));
        }
        aliases
    }

    /// Products chunk by chunk, and between them passes over the logits, which no product hides.
    fn work(&self, io: &Io) -> Vec<Work> {
        let (tokens, dim) = (io.inputs[0].shape.rows(), io.inputs[0].shape.cols());
        let (words, dtype, rows) = (io.inputs[1].shape.rows(), io.inputs[0].dtype(), self.chunk_rows(tokens));
        let flops = 2.0 * tokens as f64 * dim as f64 * words as f64;
        let product = |shape| Work::Product(Product { flops, bytes: 0.0, dtype, shape, tokens, low_rank: None });
        let mut work = vec![product([rows, words, dim])];
        if let Some(grad) = self.grad {
            work.push(product([rows, dim, words]));
            work.extend(grad.weight.then(|| product([words, dim, rows])));
        }
        work.push(Work::Memory { flops: 0.0, bytes: self.logits_bytes(io) });
        work
    }

    fn workspace_role(&self) -> Role {
        Role::Loss
    }

    fn launches(&self, _io: &Io) -> usize {
        1 + 8 * self.chunks.max(1)
    }

    /// One chunk of logits, which its gradient then replaces. Sixteen-bit products take the gradient in their own type.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        let entries = self.chunk_rows(io.inputs[0].shape.rows()) * logits_stride(io.inputs[1].shape.rows());
        let sixteen = if self.grad.is_some() && io.inputs[0].dtype().bytes() == 2 { 2 } else { 0 };
        traits.matmul_workspace_bytes + entries * (4 + sixteen)
    }

    fn backward(&self, node: &Node, pass: &mut Backward) -> Result<(), GraphError> {
        let (hidden, weight) = (node.inputs[0], node.inputs[1]);
        let d_nll = self.nll_output().and_then(|at| pass.grad(node.outputs[at]));
        let weight_grad = pass.trainable(weight);
        if !weight_grad && !pass.needs(hidden) {
            return Ok(());
        }
        let parameters: &[_] = if weight_grad { &[weight] } else { &[] };
        let grad = Some(LossGrad { weight: weight_grad });
        if !self.total {
            let Some(d_nll) = d_nll else { return Ok(()) };
            let op = VocabLoss { weights: true, nll: false, grad, ..self.clone() };
            let inputs = vec![hidden, weight, node.inputs[2], d_nll];
            let d_hidden = pass.emit_with_parameters(op, inputs, parameters, Some(hidden))?;
            return pass.accumulate(hidden, d_hidden.expect("asked for"));
        }
        // Beside the loss, likelihoods are there to be read.
        if let (Some(at), Some(_)) = (self.nll_output(), d_nll) {
            let value = pass.value(node.outputs[at]).name.clone();
            return Err(GraphError::NotDifferentiable { op: self.name(), value });
        }
        let op = VocabLoss { grad, ..self.clone() };
        let d_hidden = pass.rewrite_root(op, node, parameters, ("d_hidden", Class::NONE))?;
        pass.accumulate(hidden, d_hidden)
    }
}

/// The logits of each sequence's last token. Inputs `hidden [N, D], W [V, D], cu_seqlens`; output
/// `[sequences, V]` f32. The micro-batch must hold no more than `sequences` sequences.
#[derive(Debug, Clone, PartialEq)]
pub struct LastLogits {
    pub softcap: Option<f32>,
    pub sequences: usize,
}

impl OpRule for LastLogits {
    fn name(&self) -> &'static str {
        "last_logits"
    }

    fn outputs(&self, inputs: &[&Value]) -> Result<Vec<Value>, GraphError> {
        expect_inputs(self.name(), inputs, 3)?;
        let (stream, _) = super::rows::sequences(self.name(), inputs[2])?;
        let shape = [self.sequences, inputs[1].shape.rows()];
        Ok(vec![output(&shape, DType::F32, Role::Loss, Extent::Sequences(stream))])
    }

    fn work(&self, io: &Io) -> Vec<Work> {
        let (rows, words) = (io.outputs[0].shape.rows(), io.outputs[0].shape.cols());
        let dim = io.inputs[0].shape.cols();
        vec![Work::Product(Product {
            flops: 2.0 * io.outputs[0].shape.elements() as f64 * dim as f64,
            bytes: io.inputs[1].bytes() as f64,
            dtype: io.inputs[0].dtype(),
            shape: [rows, words, dim],
            tokens: rows,
            low_rank: None,
        })]
    }

    fn workspace_role(&self) -> Role {
        Role::Loss
    }

    /// The gathered rows.
    fn workspace_bytes(&self, io: &Io, traits: &BackendTraits) -> usize {
        traits.matmul_workspace_bytes + io.outputs[0].shape.rows() * io.inputs[0].shape.cols() * 4
    }
}
