//! Adapters folded into their base model.

use std::path::Path;

use plimsoll_train::{BaseError, Merge, MergePlan, ModelOrigin, SHARD_BYTES, peak_resident_bytes, resident_bytes};

use crate::artifact::Artifact;
use crate::data::tokenizer_files;
use crate::failure::Failure;

/// What was merged.
#[derive(Clone, Debug, PartialEq)]
pub struct Merged {
    pub base: String,
    pub plan: MergePlan,
    /// How far the base is from what the adapter was trained beside, where that was in few bits.
    pub base_error: Option<BaseError>,
    /// With the process itself.
    pub planned_bytes: u64,
    pub measured_bytes: u64,
}

const GENERATION_FILE: &str = "generation_config.json";

/// What the process may take beside what merging states: a file's pieces on their way, threads.
const HEADROOM_BYTES: u64 = 4 << 20;

/// Folds the adapter at `adapter`, a PEFT folder or a run that trained one, into its base model or the one given.
pub fn merge(
    adapter: &Path,
    base: Option<&str>,
    out: &Path,
    shard_bytes: Option<u64>,
    tick: &mut dyn FnMut(u64, u64),
) -> Result<Merged, Failure> {
    let artifact = match base {
        Some(base) => Artifact::find(base, Some(adapter))?,
        None => Artifact::find(&adapter.display().to_string(), None)?,
    };
    let Some(folder) = &artifact.adapter else {
        return Err(Failure::usage(format!("{} is a model, not an adapter", adapter.display()))
            .hint("name the folder with adapter_config.json, or the run that trained the adapter"));
    };
    let mut beside = tokenizer_files(&artifact.tokenizer_folder())?;
    // The adapter's folder has what it was trained with; what it lacks is the base's.
    let of_base = tokenizer_files(artifact.model.folder().unwrap_or(Path::new("")))?;
    let settings = of_base.into_iter().find(|(name, _)| name == GENERATION_FILE);
    if !beside.iter().any(|(name, _)| name == GENERATION_FILE) {
        beside.extend(settings);
    }
    let merge = Merge::open(&artifact.model, folder, beside, shard_bytes.unwrap_or(SHARD_BYTES))?;
    let planned_bytes = resident_bytes() + merge.plan.memory_bytes + HEADROOM_BYTES;
    merge.write(out, tick)?;
    let base_error = merge.base_error()?;
    let base = match &artifact.model.origin {
        ModelOrigin::Folder(folder) => folder.display().to_string(),
        _ => artifact.model.name(),
    };
    Ok(Merged { base, plan: merge.plan, base_error, planned_bytes, measured_bytes: peak_resident_bytes() })
}
