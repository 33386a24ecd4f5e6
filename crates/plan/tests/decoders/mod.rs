//! Small decoders with everything the large ones have, and the two kinds of heads.

#![expect(dead_code, reason = "each test uses some of it")]

use std::sync::Arc;

use plimsoll_graph::ops::{PAIR_STATS, PairLoss, VocabLoss};
use plimsoll_graph::{
    BatchShape, Chunks, Class, DType, Graph, GraphError, OptimizerSettings, Program, ScheduleId, StreamShape,
    optimizer_named,
};
use plimsoll_models::{
    Architecture, Head, HeadRows, HeadWeight, Lora, LossOperands, ParameterGroup, Recipe, Targets, build,
    build_updating_in_backward,
};
use plimsoll_plan::Variant;

pub const LAYERS: usize = 4;

/// A distribution over the vocabulary at every token.
#[derive(Debug)]
pub struct Vocabulary;

impl Head for Vocabulary {
    fn rows(&self) -> HeadRows {
        HeadRows::Tokens
    }
    fn uses_vocabulary(&self) -> bool {
        true
    }
    fn loss(&self, o: LossOperands) -> Result<(), GraphError> {
        let inputs = [o.hidden, o.vocabulary.expect("asked for"), o.targets, o.terms[0].scale, o.terms[0].loss];
        o.graph.apply(VocabLoss::new(o.softcap, o.chunks), &inputs, "loss", Class::NONE).map(|_| ())
    }
}

/// One number at a sequence's last token, of sequences in pairs.
#[derive(Debug)]
pub struct Score;

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
    fn loss(&self, o: LossOperands) -> Result<(), GraphError> {
        let inputs =
            [o.hidden, o.weights[0], o.boundaries, o.terms[0].scale, o.terms[0].loss, o.stats.expect("asked for")];
        let names = [("loss", Class::NONE), ("stats", Class::NONE)];
        o.graph.apply_all(PairLoss { centring: 0.0, margins: false, grad: None }, &inputs, &names).map(|_| ())
    }
}

/// Sequences that only mean something together.
pub fn group(head: &dyn Head) -> usize {
    if head.uses_vocabulary() { 1 } else { 2 }
}

/// Four heads of the given size, and the rest to match.
pub fn config(model_type: &str, head_dim: usize) -> Architecture {
    let text = format!(
        r#"{{"model_type": "{model_type}", "hidden_size": {}, "num_hidden_layers": {LAYERS},
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": {head_dim},
            "intermediate_size": {}, "vocab_size": {}, "tie_word_embeddings": false}}"#,
        4 * head_dim,
        10 * head_dim,
        24 * head_dim
    );
    Architecture::from_json(&text).expect("a valid configuration")
}

/// All parameters by AdamW.
pub fn groups() -> Vec<ParameterGroup> {
    let settings = OptimizerSettings { weight_decay: 0.01, ..OptimizerSettings::default() };
    vec![ParameterGroup::rest(optimizer_named("adamw", &settings).expect("there is one"))]
}

pub fn full() -> Recipe {
    Recipe { freeze: Vec::new(), groups: groups(), clip: Some(1.0), ..Recipe::forward_only(None, DType::F32) }
}

pub fn lora() -> Recipe {
    let lora = Lora { r: 4, alpha: 8.0, dropout: 0.1, targets: Targets::AllLinear, rslora: false };
    Recipe { lora: Some(lora), ..full() }
}

pub fn batch(tokens: usize, sequences: usize, max_length: usize) -> BatchShape {
    BatchShape::one(StreamShape { tokens, sequences, max_length })
}

pub fn program(
    config: &Architecture,
    head: &dyn Head,
    recipe: &Recipe,
    batch: BatchShape,
    loss_chunks: usize,
) -> Program {
    build(config, head, recipe, batch, Chunks::loss(loss_chunks)).expect("a valid program").program
}

pub fn variant(config: &Architecture, head: &dyn Head, recipe: &Recipe, variant: Variant) -> Program {
    let Variant { batch, chunks, update_in_backward, keep_fp8 } = variant;
    let build = if update_in_backward { build_updating_in_backward } else { build };
    build(config, head, &Recipe { keep_fp8, ..recipe.clone() }, batch, chunks).expect("a valid program").program
}

/// The program with another micro-step.
pub fn with_micro_step(program: &Program, graph: Graph) -> Program {
    let mut program = program.clone();
    program.schedules.get_mut(&ScheduleId::MICRO_STEP).expect("programs train").graph = graph;
    program
}

/// Either head, by whether it scores.
pub fn head(scored: bool) -> Arc<dyn Head> {
    if scored { Arc::new(Score) } else { Arc::new(Vocabulary) }
}
