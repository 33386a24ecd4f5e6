//! Reward models: a score at each sequence's last token, learnt from pairs of which one sequence is preferred.

use std::sync::Arc;

use plimsoll_data::Content;
use plimsoll_graph::ops::{LastRows, PAIR_STATS, PairLoss};
use plimsoll_graph::{Class, GraphError};
use plimsoll_models::{Head, HeadRows, HeadWeight, LossOperands};
use serde_json::{Value as Json, json};

use super::padding::name_padding;
use super::{Amounts, Task};
use crate::{Metrics, TextFiles};

/// `−log σ(chosen − rejected − margin) + centring·(chosen + rejected)²`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reward {
    /// Scores that are only compared may drift; this holds them around zero.
    pub centring: f64,
    /// Whether rows say by how much the preferred answer is better.
    pub margin: bool,
}

impl Task for Reward {
    fn name(&self) -> &'static str {
        "reward"
    }

    fn content(&self) -> Content {
        if self.margin { Content::PairsWithMargin } else { Content::Pairs }
    }

    fn head(&self) -> Arc<dyn Head> {
        Arc::new(Score(*self))
    }

    fn loss_terms(&self, amounts: &Amounts) -> u64 {
        amounts.sequences / 2
    }

    fn metrics(&self, stats: &[f64]) -> Metrics {
        pair_metrics(stats)
    }

    fn hf_class(&self) -> &'static str {
        "SequenceClassification"
    }

    fn peft_task_type(&self) -> &'static str {
        "SEQ_CLS"
    }

    fn complete_config(&self, config: &mut Json, tokenizer: &mut TextFiles) {
        config["id2label"] = json!({"0": "LABEL_0"});
        config["label2id"] = json!({"LABEL_0": 0});
        name_padding(config, tokenizer);
    }
}

/// How well rewards tell preferred sequences from the others: the share of pairs whose preferred one has the higher
/// reward, the mean difference, and the means of both.
pub(super) fn pair_metrics(stats: &[f64]) -> Metrics {
    let pairs = stats[0].max(1.0);
    let [accuracy, margin, chosen, rejected] = [1, 2, 3, 4].map(|at| stats[at] / pairs);
    Metrics::new([("accuracy", accuracy), ("margin", margin), ("reward_chosen", chosen), ("reward_rejected", rejected)])
}

/// One number at a sequence's last token.
#[derive(Debug)]
struct Score(Reward);

impl Head for Score {
    fn rows(&self) -> HeadRows {
        HeadRows::LastTokens
    }

    fn weights(&self) -> Vec<HeadWeight> {
        vec![HeadWeight { name: "score.weight".to_owned(), rows: 1 }]
    }

    fn has_marks(&self) -> bool {
        self.0.margin
    }

    fn stats(&self) -> usize {
        PAIR_STATS
    }

    fn loss(&self, operands: LossOperands) -> Result<(), GraphError> {
        let LossOperands { graph, hidden, weights, boundaries, marks, terms, stats, .. } = operands;
        let stats = stats.expect("asked for");
        let mut inputs = vec![hidden, weights[0], boundaries, terms[0].scale, terms[0].loss, stats];
        if let Some(marks) = marks {
            inputs.push(graph.apply(LastRows, &[marks, boundaries], "margins", Class::NONE)?);
        }
        let names = [("loss", Class::NONE), ("stats", Class::NONE)];
        graph
            .apply_all(
                PairLoss { centring: self.0.centring as f32, margins: self.0.margin, grad: None },
                &inputs,
                &names,
            )
            .map(|_| ())
    }
}
