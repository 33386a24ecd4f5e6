//! Ranking: beside the answers, the order in which scores put candidates that the data marks.

use std::sync::Arc;

use plimsoll_data::Content;
use plimsoll_graph::ops::{LIST_STATS, ListLoss, VocabLoss};
use plimsoll_graph::{Class, GraphError};
use plimsoll_models::{Head, HeadRows, HeadWeight, LossOperands};

use super::{Amounts, LossPart, Task};
use crate::Metrics;

pub use plimsoll_graph::ops::Ranking as RankingLoss;

/// What a run says about ranking.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankingSettings {
    pub loss: RankingLoss,
    pub weight: f64,
    /// Of the loss over the answers.
    pub lm_weight: f64,
    /// Ranks that NDCG looks at; all if there is no limit.
    pub top: Option<u32>,
}

impl Default for RankingSettings {
    fn default() -> Self {
        Self { loss: RankingLoss::ListMle, weight: 1.0, lm_weight: 0.5, top: None }
    }
}

/// A weighted sum of the loss over answers and of one over the order of candidates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranking(pub RankingSettings);

impl Task for Ranking {
    fn name(&self) -> &'static str {
        "ranking"
    }

    fn content(&self) -> Content {
        Content::Candidates
    }

    fn head(&self) -> Arc<dyn Head> {
        Arc::new(Candidates { loss: self.0.loss, top: self.0.top })
    }

    /// Each sequence is a list.
    fn loss_terms(&self, amounts: &Amounts) -> u64 {
        amounts.sequences
    }

    fn loss_parts(&self, amounts: &Amounts) -> Vec<LossPart> {
        vec![
            LossPart { weight: self.0.lm_weight, mean_of: amounts.loss_tokens },
            LossPart { weight: self.0.weight, mean_of: amounts.sequences },
        ]
    }

    fn metrics(&self, stats: &[f64]) -> Metrics {
        let lists = stats[0].max(1.0);
        let [ndcg, mrr, first, loss] = [1, 2, 3, 4].map(|at| stats[at] / lists);
        Metrics::new([("ndcg", ndcg), ("mrr", mrr), ("p_at_1", first), ("ranking_loss", loss)])
    }

    fn hf_class(&self) -> &'static str {
        "CausalLM"
    }

    fn peft_task_type(&self) -> &'static str {
        "CAUSAL_LM"
    }
}

/// A distribution over the vocabulary at every token, and a score at those that are marked.
#[derive(Debug)]
struct Candidates {
    loss: RankingLoss,
    top: Option<u32>,
}

impl Head for Candidates {
    fn rows(&self) -> HeadRows {
        HeadRows::Tokens
    }

    fn uses_vocabulary(&self) -> bool {
        true
    }

    fn weights(&self) -> Vec<HeadWeight> {
        vec![HeadWeight { name: "score.weight".to_owned(), rows: 1 }]
    }

    fn has_marks(&self) -> bool {
        true
    }

    fn terms(&self) -> usize {
        2
    }

    fn stats(&self) -> usize {
        LIST_STATS
    }

    fn loss(&self, operands: LossOperands) -> Result<(), GraphError> {
        let LossOperands { graph, hidden, vocabulary, weights, targets, marks, boundaries, terms, stats, .. } =
            operands;
        let [words, order] = [terms[0], terms[1]];
        let inputs = [hidden, vocabulary.expect("asked for"), targets, words.scale, words.loss];
        graph.apply(VocabLoss::new(operands.softcap, operands.chunks), &inputs, "loss", Class::NONE)?;
        let (marks, stats) = (marks.expect("asked for"), stats.expect("asked for"));
        let inputs = [hidden, weights[0], marks, boundaries, order.scale, order.loss, stats];
        let op = ListLoss { ranking: self.loss, top: self.top, grad: None };
        let names = [("ranking_loss", Class::NONE), ("stats", Class::NONE)];
        graph.apply_all(op, &inputs, &names).map(|_| ())
    }
}
