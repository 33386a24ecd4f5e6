//! `training.json`: where a run stands.

use std::io;
use std::path::Path;

use plimsoll_data::Cursor;
use serde::{Deserialize, Serialize};

use super::{BaseMark, Identity};
use crate::BestBy;
use crate::guard::GuardState;
use crate::loss_scale::LossScale;

pub(super) const RECORD_FILE: &str = "training.json";

/// The best evaluation so far, and the update after which it was made.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    #[serde(default)]
    pub by: BestBy,
    #[serde(alias = "loss")]
    pub value: f64,
    pub step: u64,
}

/// What a run has come to. With the weights and the optimizer's states, all that the next update depends on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Updates done.
    pub step: u64,
    /// Behind the last update.
    pub cursor: Cursor,
    pub best: Option<Best>,
    pub guard: GuardState,
    /// Where gradients are those of a scaled loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<LossScale>,
    pub first_loss: Option<f64>,
    pub last_loss: Option<f64>,
    pub first_eval: Option<f64>,
    pub last_eval: Option<f64>,
}

impl Progress {
    pub fn new(cursor: Cursor) -> Self {
        Self {
            step: 0,
            cursor,
            best: None,
            guard: GuardState::default(),
            loss_scale: None,
            first_loss: None,
            last_loss: None,
            first_eval: None,
            last_eval: None,
        }
    }
}

fn whole() -> usize {
    1
}

/// What of a plan shows in the bits of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlanPosition {
    pub micro_batch_tokens: usize,
    pub loss_chunks: Option<usize>,
    /// One in checkpoints of earlier versions.
    #[serde(default = "whole")]
    pub mlp_chunks: usize,
    /// Whether adapters' gradients are made from values rounded to eight bits.
    #[serde(default)]
    pub keep_fp8: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub format: u32,
    /// Of the program that wrote it.
    pub version: String,
    /// Seconds since 1970 when the run began: what chat templates take for the present, whenever it goes on. 0 in
    /// checkpoints of earlier versions.
    #[serde(default)]
    pub began: u64,
    /// Updates of the whole run.
    pub steps: u64,
    pub plan: PlanPosition,
    pub identity: Identity,
    /// What adapters stand beside; nothing where the model itself is trained, and in checkpoints of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseMark>,
    #[serde(flatten)]
    pub progress: Progress,
}

pub(crate) const FORMAT: u32 = 1;

impl Record {
    pub fn read(folder: &Path) -> io::Result<Self> {
        let bytes = std::fs::read(folder.join(RECORD_FILE))?;
        let record: Self = serde_json::from_slice(&bytes)?;
        if record.format != FORMAT {
            let reason = format!("its format is {}, this version reads {FORMAT}", record.format);
            return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
        }
        Ok(record)
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec_pretty(self).expect("plain data")
    }
}
