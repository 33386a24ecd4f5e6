//! Which model: by name, or by its shape.

use plimsoll_models::Family;
use serde_json::{Map, Value as Json, json};

use super::kind::{Range, Value};
use super::reader::Reader;
use super::schema::{Form, Section, boolean, count, from_zero, number, text, up_to, word};
use super::section::{Field, Keys, section};
use super::words::Init;
use crate::failure::Failure;

section! {
    /// A model by its shape, in Hugging Face's own words.
    pub table MODEL {
        /// The model family, as `model_type` of a Hugging Face config.json.
        family = text(), also ["model_type"];
        /// Width of the residual stream.
        hidden_size = up_to(1 << 20);
        /// Number of layers.
        num_hidden_layers = up_to(1 << 12);
        /// Query heads.
        num_attention_heads = up_to(1 << 12);
        /// Key and value heads; as many as query heads if unset.
        num_key_value_heads = up_to(1 << 12);
        /// Width of a head; hidden_size / num_attention_heads if unset.
        head_dim = up_to(1 << 12);
        /// Width of the MLP.
        intermediate_size = up_to(1 << 22);
        /// Tokens of the vocabulary.
        vocab_size = up_to(1 << 24);
        /// The longest sequence the model was made for.
        max_position_embeddings = count();
        /// Epsilon of the norms.
        rms_norm_eps = number(Range::ABOVE_ZERO);
        /// Base of the rotary frequencies.
        rope_theta = number(Range::ABOVE_ZERO);
        /// Scaling of the rotary frequencies.
        rope_scaling = Form::Optional(ROPE_SCALING);
        /// Tokens each token attends to at most.
        sliding_window = count();
        /// Whether `sliding_window` applies.
        use_sliding_window = boolean();
        /// Layers without a sliding window.
        max_window_layers = from_zero();
        /// Whether the output layer shares the embedding's weights.
        tie_word_embeddings = boolean();
        /// Whether the attention's linear layers have biases.
        attention_bias = boolean();
        /// Whether the MLP's linear layers have biases.
        mlp_bias = boolean();
        /// Activation of the MLP.
        hidden_act = text();
        /// Standard deviation of random initial weights.
        initializer_range = number(Range::ABOVE_ZERO);
        /// The token that fills sequences up; its embedding is not trained.
        pad_token_id = from_zero();
        /// Logits are held within this by a tanh.
        final_logit_softcapping = number(Range::ABOVE_ZERO);
        /// The same of attention's scores.
        attn_logit_softcapping = number(Range::ABOVE_ZERO);
        /// Attention's scores are divided by its square root.
        query_pre_attn_scalar = number(Range::ABOVE_ZERO);
        /// Of T5: width of the residual stream.
        d_model = up_to(1 << 20);
        /// Of T5: width of a head.
        d_kv = up_to(1 << 12);
        /// Of T5: width of the MLP.
        d_ff = up_to(1 << 22);
        /// Of T5: layers of the encoder.
        num_layers = up_to(1 << 12);
        /// Of T5: layers of the decoder; as many as the encoder's if unset.
        num_decoder_layers = up_to(1 << 12);
        /// Of T5: heads.
        num_heads = up_to(1 << 12);
        /// Of T5: buckets of distances.
        relative_attention_num_buckets = up_to(1 << 12);
        /// Of T5: distances beyond this share a bucket.
        relative_attention_max_distance = up_to(1 << 24);
        /// Of T5: epsilon of the norms.
        layer_norm_epsilon = number(Range::ABOVE_ZERO);
        /// Of T5: relu or gated-gelu.
        feed_forward_proj = text();
        /// Of T5: dropout while training.
        dropout_rate = number(Range::BELOW_ONE);
        /// Of T5: the token that a target begins with.
        decoder_start_token_id = from_zero();
        /// The same as `init`.
        init = word::<Init>();
    }
}

section! {
    pub table ROPE_SCALING {
        /// The kind of scaling, such as llama3.
        rope_type = text();
        /// The same as `rope_type`.
        r#type as "type" = text();
        /// Factor by which positions are stretched.
        factor = number(Range::ABOVE_ZERO);
        /// Of llama3: frequencies below this are scaled in full.
        low_freq_factor = number(Range::ABOVE_ZERO);
        /// Of llama3: frequencies above this are not scaled.
        high_freq_factor = number(Range::ABOVE_ZERO);
        /// The longest sequence before scaling.
        original_max_position_embeddings = count();
        /// Of yarn: factor of the attention's scale.
        attention_factor = number(Range::ABOVE_ZERO);
        /// Of yarn: where interpolation ends.
        beta_fast = number(Range::ABOVE_ZERO);
        /// Of yarn: where extrapolation begins.
        beta_slow = number(Range::ABOVE_ZERO);
    }
    one_of &[&["rope_type", "type"]];
}

#[derive(Clone, Debug, PartialEq)]
pub enum ModelSource {
    /// A preset, a local Hugging Face folder or a hub id.
    Name(String),
    Shape(ModelKeys),
}

/// A model described in the run file itself.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelKeys {
    pub family: String,
    /// What a Hugging Face `config.json` would say, `model_type` (the family) included.
    pub config: Map<String, Json>,
    pub(super) init: Option<Init>,
}

/// Without these no model can be built.
const REQUIRED: [&str; 5] =
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"];
/// The same of models with an encoder, which are described in T5's words.
const REQUIRED_OF_T5: [&str; 5] = ["d_model", "num_layers", "num_heads", "d_ff", "vocab_size"];

impl Field for ModelSource {
    fn read_field(section: &Reader<'_>, name: &str) -> Result<Self, Failure> {
        if let Some(shape) = section.given(name)? {
            return ModelKeys::read(&shape).map(Self::Shape);
        }
        section.find(name)?.map(Self::Name).ok_or_else(|| {
            section
                .missing(name)
                .hint("a preset such as `qwen3-0.6b`, a Hugging Face folder, a hub id, or the shape as a mapping")
        })
    }
}

impl Keys for ModelKeys {
    const SECTION: &'static Section = MODEL;

    /// The keys go on as they are, as `config.json` would have them.
    fn read(section: &Reader<'_>) -> Result<Self, Failure> {
        let family: String = Field::read_field(section, "family")?;
        check_keys(section, &family)?;
        let mut config = Map::new();
        config.insert("model_type".to_owned(), json!(family));
        for (name, value) in section.leaves()? {
            if !matches!(name, "family" | "init") {
                config.insert(name.to_owned(), to_json(value));
            }
        }
        if let Some(scaling) = section.given("rope_scaling")? {
            let mut inner = Map::new();
            for (name, value) in scaling.leaves()? {
                let name = if name == "type" { "rope_type" } else { name };
                inner.insert(name.to_owned(), to_json(value));
            }
            if !inner.is_empty() {
                config.insert("rope_scaling".to_owned(), Json::Object(inner));
            }
        }
        Ok(Self { family, config, init: section.find("init")? })
    }
}

/// What the family asks for is there, and nothing that it has no use for: a key of another family would be left unread, and
/// the model built of defaults instead.
fn check_keys(section: &Reader<'_>, family: &str) -> Result<(), Failure> {
    let wrong = |name: &str, message: String| section.invalid(name, message);
    let known = Family::named(family).map_err(|error| wrong("family", error.to_string()))?;
    let described = |name: &&str| !matches!(*name, "family" | "init");
    let keys = MODEL.names();
    let foreign =
        keys.iter().copied().filter(described).find(|name| section.node(name).is_some() && !known.reads(name));
    if let Some(name) = foreign {
        let read: Vec<&str> = keys.iter().copied().filter(described).filter(|name| known.reads(name)).collect();
        let message = format!("`model.{name}` means nothing to {family} models");
        return Err(wrong(name, message).hint(format!("they are described by {}", read.join(", "))));
    }
    let required = if known.reads("d_model") { REQUIRED_OF_T5 } else { REQUIRED };
    match required.into_iter().find(|name| section.node(name).is_none()) {
        Some(name) => Err(section.missing(name)),
        None => Ok(()),
    }
}

fn to_json(value: Value) -> Json {
    match value {
        Value::Text(text) => json!(text),
        Value::Bool(value) => json!(value),
        Value::Integer(value) => json!(value),
        Value::Number(value) => json!(value),
        Value::Numbers(values) => json!(values),
        Value::Texts(values) => json!(values),
        // No key of a model's shape holds one of these.
        Value::None
        | Value::Classes(_)
        | Value::Sources(_)
        | Value::Budget(_)
        | Value::HostBudget(_)
        | Value::Span(_) => Json::Null,
    }
}
