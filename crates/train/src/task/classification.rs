//! Classification: one label per sequence, read from its last token.

use std::sync::Arc;

use plimsoll_data::{Classes, Content};
use plimsoll_graph::ops::{CLASS_STATS, ClassLoss};
use plimsoll_graph::{Class, GraphError};
use plimsoll_models::{Head, HeadRows, HeadWeight, LossOperands};
use serde_json::{Map, Value as Json, json};

use super::padding::name_padding;
use super::{Amounts, Task, TaskLacks};
use crate::{Metrics, TextFiles};

/// Cross entropy over a known number of classes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Classification {
    /// By index.
    names: Vec<String>,
}

impl Classification {
    pub fn new(classes: &Classes) -> Result<Self, TaskLacks> {
        let numbered = |count: usize| (0..count).map(|index| format!("LABEL_{index}")).collect();
        match classes {
            Classes::Named(names) => Ok(Self { names: names.to_vec() }),
            other => Ok(Self { names: other.count().map(numbered).ok_or(TaskLacks::Classes)? }),
        }
    }
}

impl Task for Classification {
    fn name(&self) -> &'static str {
        "classification"
    }

    fn content(&self) -> Content {
        Content::Labelled
    }

    fn head(&self) -> Arc<dyn Head> {
        Arc::new(Labels { classes: self.names.len() })
    }

    fn loss_terms(&self, amounts: &Amounts) -> u64 {
        amounts.sequences
    }

    /// The share of sequences whose highest score is their label's.
    fn metrics(&self, stats: &[f64]) -> Metrics {
        Metrics::new([("accuracy", stats[1] / stats[0].max(1.0))])
    }

    fn hf_class(&self) -> &'static str {
        "SequenceClassification"
    }

    fn peft_task_type(&self) -> &'static str {
        "SEQ_CLS"
    }

    fn complete_config(&self, config: &mut Json, tokenizer: &mut TextFiles) {
        let numbered = || self.names.iter().enumerate();
        config["id2label"] = numbered().map(|(i, name)| (i.to_string(), json!(name))).collect::<Map<_, _>>().into();
        config["label2id"] = numbered().map(|(i, name)| (name.clone(), json!(i))).collect::<Map<_, _>>().into();
        config["problem_type"] = json!("single_label_classification");
        name_padding(config, tokenizer);
    }
}

/// A score for every class at a sequence's last token.
#[derive(Debug)]
struct Labels {
    classes: usize,
}

impl Head for Labels {
    fn rows(&self) -> HeadRows {
        HeadRows::LastTokens
    }

    fn weights(&self) -> Vec<HeadWeight> {
        vec![HeadWeight { name: "score.weight".to_owned(), rows: self.classes }]
    }

    fn has_labels(&self) -> bool {
        true
    }

    fn stats(&self) -> usize {
        CLASS_STATS
    }

    fn loss(&self, operands: LossOperands) -> Result<(), GraphError> {
        let LossOperands { graph, hidden, weights, labels, scale, loss, stats, .. } = operands;
        let inputs = [hidden, weights[0], labels.expect("asked for"), scale, loss, stats.expect("asked for")];
        let names = [("loss", Class::NONE), ("stats", Class::NONE)];
        graph.apply_all(ClassLoss { grad: None }, &inputs, &names).map(|_| ())
    }
}
