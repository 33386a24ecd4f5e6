//! Finding a model: a preset by name, or a folder in Hugging Face's layout.

use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_graph::WeightFormat;
use plimsoll_models::{Architecture, preset, preset_names};
use plimsoll_runtime::weights::Checkpoint;
use serde_json::Value as Json;

use crate::stored::stored_format;
use crate::{TrainError, hub};

/// Where a model's shape came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelOrigin {
    Preset(String),
    Folder(PathBuf),
    /// A snapshot in the Hugging Face cache.
    Hub {
        id: String,
        folder: PathBuf,
    },
    Shape,
}

/// A model's shape, and its files if it has any.
#[derive(Debug, Clone)]
pub struct Model {
    pub config: Architecture,
    pub origin: ModelOrigin,
    /// Draw the weights even if there are files.
    pub random: bool,
}

impl Model {
    /// A folder if there is one of that name, else a preset, else a snapshot in the Hugging Face cache.
    pub fn find(name: &str) -> Result<Self, TrainError> {
        let folder = Path::new(name);
        if folder.is_dir() {
            return Self::from_folder(folder);
        }
        if let Some(config) = preset(name) {
            return Ok(Self { config: config?, origin: ModelOrigin::Preset(name.to_owned()), random: true });
        }
        let (name, presets) = (name.to_owned(), preset_names().join(", "));
        if !hub::is_id(&name) {
            return Err(TrainError::NoModel { name, presets });
        }
        let cache = hub::cache();
        match hub::snapshot(&cache, &name) {
            Some(folder) => {
                let model = Self::from_folder(&folder)?;
                Ok(Self { origin: ModelOrigin::Hub { id: name, folder }, ..model })
            }
            None => Err(TrainError::NotInCache { id: name, cache, presets }),
        }
    }

    fn from_folder(folder: &Path) -> Result<Self, TrainError> {
        let path = folder.join("config.json");
        let adapter = folder.join("adapter_config.json");
        if adapter.exists() && !path.exists() {
            let config = fs::read(adapter).ok().and_then(|bytes| serde_json::from_slice::<Json>(&bytes).ok());
            let base = config.and_then(|config| config["base_model_name_or_path"].as_str().map(str::to_owned));
            return Err(TrainError::Adapter { path: folder.to_owned(), base });
        }
        let text =
            fs::read_to_string(&path).map_err(|source| TrainError::NoModelConfig { path: path.clone(), source })?;
        let mut config = Architecture::from_json(&text).map_err(|source| TrainError::ModelConfig { path, source })?;
        // Without weights the configuration is all there is; those who need them will say that they are missing.
        if let Ok(files) = Checkpoint::open(folder, "model") {
            config.tie_as_stored(files.differ(config.embedding.name, config.head.name)?);
        }
        Ok(Self { config, origin: ModelOrigin::Folder(folder.to_owned()), random: false })
    }

    /// A shape has as many key heads as query heads unless it says otherwise, and heads that divide the width, whatever
    /// a family's configuration files mean where they say nothing.
    pub fn from_shape(mut config: Json) -> Result<Self, TrainError> {
        let count = |key: &str| config.get(key).and_then(Json::as_u64);
        if let (Some(width), Some(heads)) = (count("hidden_size"), count("num_attention_heads").filter(|&n| n > 0)) {
            let keys = config.as_object_mut().expect("it has keys");
            keys.entry("num_key_value_heads").or_insert(heads.into());
            keys.entry("head_dim").or_insert((width / heads).into());
        }
        let config = Architecture::from_value(config).map_err(TrainError::Shape)?;
        Ok(Self { config, origin: ModelOrigin::Shape, random: true })
    }

    pub fn folder(&self) -> Option<&Path> {
        match &self.origin {
            ModelOrigin::Folder(folder) | ModelOrigin::Hub { folder, .. } => Some(folder),
            ModelOrigin::Preset(_) | ModelOrigin::Shape => None,
        }
    }

    /// Names the token that ends a text in the configuration that is saved, if it names none yet.
    pub fn name_end_token(&mut self, id: Option<u32>) {
        if let (Some(id), Some(config)) = (id, self.config.source.as_object_mut()) {
            config.entry("eos_token_id").or_insert_with(|| id.into());
        }
    }

    /// Where the weights are read from; `None` when they are drawn.
    pub fn weights_folder(&self) -> Option<&Path> {
        self.folder().filter(|_| !self.random)
    }

    /// The format of few bits that the files hold projections in; `None` where they hold them whole, and where there are no
    /// files.
    pub fn stored_format(&self) -> Result<Option<WeightFormat>, TrainError> {
        let Some(folder) = self.weights_folder() else { return Ok(None) };
        let unread = |reason| TrainError::Quantized { path: folder.to_owned(), reason };
        stored_format(&self.config.source).map_err(unread)
    }

    /// What a PEFT folder names as its base.
    pub fn name(&self) -> String {
        match &self.origin {
            ModelOrigin::Folder(folder) => folder.display().to_string(),
            ModelOrigin::Preset(name) | ModelOrigin::Hub { id: name, .. } => name.clone(),
            ModelOrigin::Shape => self.config.family.model_type.to_owned(),
        }
    }
}
