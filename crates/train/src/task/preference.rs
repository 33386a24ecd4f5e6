//! Preferences between answers, learnt from how likely the model finds them: DPO and ORPO.

use std::sync::Arc;

use plimsoll_data::Content;
use plimsoll_graph::ops::{PAIR_STATS, Preference as PreferenceKind, PreferenceLoss, SequenceLogProb, VocabLoss};
use plimsoll_graph::{Class, Graph, GraphError, ValueId};
use plimsoll_models::{Head, HeadRows, LossOperands, ReferenceOperands};

use super::reward::pair_metrics;
use super::{Amounts, Task};
use crate::Metrics;

/// `dpo` compares with the model as it was before training, `orpo` needs no reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Preference {
    name: &'static str,
    kind: PreferenceKind,
}

impl Preference {
    pub fn dpo(beta: f64, label_smoothing: f64) -> Self {
        let (beta, label_smoothing) = (beta as f32, label_smoothing as f32);
        Self { name: "dpo", kind: PreferenceKind::Dpo { beta, label_smoothing } }
    }

    pub fn orpo(lambda: f64) -> Self {
        Self { name: "orpo", kind: PreferenceKind::Orpo { lambda: lambda as f32 } }
    }
}

impl Task for Preference {
    fn name(&self) -> &'static str {
        self.name
    }

    fn content(&self) -> Content {
        Content::PairedAnswers
    }

    fn head(&self) -> Arc<dyn Head> {
        Arc::new(Likelihood { kind: self.kind })
    }

    fn loss_terms(&self, amounts: &Amounts) -> u64 {
        amounts.sequences / 2
    }

    fn metrics(&self, stats: &[f64]) -> Metrics {
        pair_metrics(stats)
    }

    fn hf_class(&self) -> &'static str {
        "CausalLM"
    }

    fn peft_task_type(&self) -> &'static str {
        "CAUSAL_LM"
    }
}

/// The log-probability of each sequence's answer.
#[derive(Debug)]
struct Likelihood {
    kind: PreferenceKind,
}

impl Likelihood {
    /// `[hidden, vocabulary, targets]` to a number for each sequence.
    fn log_probs(
        &self,
        graph: &mut Graph,
        likelihoods: VocabLoss,
        operands: [ValueId; 3],
        boundaries: ValueId,
    ) -> Result<ValueId, GraphError> {
        let nll = graph.apply(likelihoods, &operands, "nll", Class::NONE)?;
        let mean = matches!(self.kind, PreferenceKind::Orpo { .. });
        graph.apply(SequenceLogProb { mean }, &[nll, operands[2], boundaries], "log_probs", Class::NONE)
    }
}

impl Head for Likelihood {
    fn rows(&self) -> HeadRows {
        HeadRows::Tokens
    }

    fn uses_vocabulary(&self) -> bool {
        true
    }

    fn has_reference(&self) -> bool {
        self.kind.has_reference()
    }

    fn reference(&self, operands: ReferenceOperands) -> Result<ValueId, GraphError> {
        let ReferenceOperands { graph, hidden, vocabulary, targets, boundaries, softcap, chunks } = operands;
        self.log_probs(graph, VocabLoss::likelihoods(softcap, chunks), [hidden, vocabulary, targets], boundaries)
    }

    fn stats(&self) -> usize {
        PAIR_STATS
    }

    fn loss(&self, operands: LossOperands) -> Result<(), GraphError> {
        let LossOperands { graph, hidden, vocabulary, targets, boundaries, terms, stats, reference, .. } = operands;
        let likelihoods = VocabLoss::likelihoods(operands.softcap, operands.chunks);
        let vocabulary = vocabulary.expect("asked for");
        let log_probs = self.log_probs(graph, likelihoods, [hidden, vocabulary, targets], boundaries)?;
        let mut inputs = vec![log_probs, boundaries, terms[0].scale, terms[0].loss, stats.expect("asked for")];
        inputs.extend(reference);
        let op = PreferenceLoss { preference: self.kind, grad: false };
        graph.apply_all(op, &inputs, &[("loss", Class::NONE), ("stats", Class::NONE)]).map(|_| ())
    }
}
