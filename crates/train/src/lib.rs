//! Tasks, the training loop, evaluation, the run folder. Talks to whoever watches through [`Event`]s only.

mod adapter_folder;
mod bench;
mod error;
mod event;
mod export;
mod fit;
mod folder;
mod generate;
mod inference;
mod memory;
mod metrics;
mod model;
mod prepare;
mod rates;
mod session;
mod task;
mod warm_up;
mod weights;

pub use adapter_folder::AdapterFolder;
pub use bench::{BenchReport, OperatorTime, bench, profile};
pub use error::TrainError;
pub use event::{EvalEvent, Event, StepEvent};
pub use export::export;
pub use fit::{Fit, Outcome, data_bytes, fit};
pub use folder::RunFolder;
pub use generate::{Ending, Generated, Sampling};
pub use inference::{Inference, plan_inference, prepare_inference};
pub use memory::{host_available_bytes, peak_resident_bytes, resident_bytes, return_free_memory};
pub use metrics::Metrics;
pub use model::{Model, ModelOrigin};
pub use prepare::{DataMemory, Prepared, Spec, plan_only, prepare};
pub use rates::{Decay, LearningRate};
pub use session::{Evaluation, PackedUpdate, Session, UpdateResult};
pub use task::{Amounts, Classification, Language, Reward, TASKS, Task, TaskLacks, TaskSettings, task_named};
