//! Reward models: a score at each sequence's last token, learnt from pairs of which one sequence is preferred.

use std::sync::Arc;

use plimsoll_data::Content;
use plimsoll_graph::ops::{PAIR_STATS, PairLoss};
use plimsoll_graph::{Class, GraphError};
use plimsoll_models::{Head, HeadRows, HeadWeight, LossOperands};
use serde_json::{Value as Json, json};

use super::padding::name_padding;
use super::{Amounts, Task};
use crate::{Metrics, TextFiles};

/// `−log σ(chosen − rejected)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reward;

impl Task for Reward {
    fn name(&self) -> &'static str {
        "reward"
    }

    fn content(&self) -> Content {
        Content::Pairs
    }

    fn head(&self) -> Arc<dyn Head> {
        Arc::new(Score)
    }

    fn loss_terms(&self, amounts: &Amounts) -> u64 {
        amounts.sequences / 2
    }

    /// How well scores tell preferred sequences from the others: the share of pairs whose preferred one has the higher
    /// score, and the mean difference.
    fn metrics(&self, stats: &[f64]) -> Metrics {
        let pairs = stats[0].max(1.0);
        Metrics::new([("accuracy", stats[1] / pairs), ("margin", stats[2] / pairs)])
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

/// One number at a sequence's last token.
#[derive(Debug)]
struct Score;

impl Head for Score {
    fn rows(&self) -> HeadRows {
        HeadRows::LastTokens
    }

    fn weights(&self) -> Vec<HeadWeight> {
        vec![HeadWeight { name: "score.weight".to_owned(), rows: 1 }]
    }

    fn stats(&self) -> usize {
        PAIR_STATS
    }

    fn loss(&self, operands: LossOperands) -> Result<(), GraphError> {
        let LossOperands { graph, hidden, weights, boundaries, scale, loss, stats, .. } = operands;
        let inputs = [hidden, weights[0], boundaries, scale, loss, stats.expect("asked for")];
        let names = [("loss", Class::NONE), ("stats", Class::NONE)];
        graph.apply_all(PairLoss { grad: None }, &inputs, &names).map(|_| ())
    }
}
