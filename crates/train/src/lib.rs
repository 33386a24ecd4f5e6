//! Tasks, the training loop, evaluation, the run folder. Talks to whoever watches through [`Event`]s only.

mod adapter_folder;
mod bench;
mod bits;
mod bleu;
mod checkpoint;
mod error;
mod event;
mod export;
mod fit;
mod generate;
mod gguf;
mod guard;
mod hub;
mod inference;
mod loss_scale;
mod memory;
mod merge;
mod metrics;
mod model;
mod pace;
mod prepare;
mod rates;
mod references;
mod run_folder;
mod saver;
mod session;
mod stored;
mod task;
mod warm_up;
mod weights;

pub use adapter_folder::AdapterFolder;
pub use bench::{
    BenchReport, GenerationReport, Memory, OperatorTime, bench, bench_generation, profile, profile_generation,
};
pub use checkpoint::{BaseChange, Best, Change, Damaged, Effect, Resume};
pub use error::TrainError;
pub use event::{Bad, EvalEvent, Event, Resumed, Skip, StepEvent, Warning};
pub use export::{TextFiles, export};
pub use fit::{Fit, Outcome, data_bytes, fit};
pub use generate::{Ending, Generated, Sampling, TextComparison};
pub use gguf::{GgufReport, GgufType, export_gguf};
pub use guard::{BadUpdate, Guard};
pub use hub::{cached_models, hub_snapshot};
pub use inference::{Inference, plan_inference, prepare_inference};
pub use loss_scale::LossScaling;
pub use memory::{
    Group, MemoryWarning, Overgrowth, Resident, Watching, host_available_bytes, peak_resident_bytes, read_group,
    resident_bytes, return_free_memory,
};
pub use merge::{BaseError, Merge, MergePlan, SHARD_BYTES};
pub use metrics::Metrics;
pub use model::{Model, ModelOrigin};
pub use prepare::{
    DataMemory, Preparation, Prepared, Process, Spec, next_gib, plan_only, plan_run, prepare, prepare_watched,
};
pub use rates::{Decay, LearningRate};
pub use references::reference_bytes;
pub use run_folder::{Holds, RunFolder, RunPhase, RunStatus, is_under_way, list_runs, request_stop, run_status};
pub use saver::{BestBy, Saving, SavingTimes};
pub use session::{Evaluation, PackedUpdate, Session, UpdateResult};
pub use task::{
    Amounts, Classification, Language, LossPart, Preference, Ranking, RankingLoss, RankingSettings, Reward, Seq2Seq,
    TASKS, Task, TaskLacks, TaskSettings, task_named,
};
