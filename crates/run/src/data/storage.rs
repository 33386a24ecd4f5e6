//! Storing a dataset as the run says: in memory, in a cache, or nowhere (streamed).

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_data::{
    DataError, Dataset, Footprint, Limits, Options, Progress, Source, Sources, StorageMode, Swept, Tokenizer, Weighted,
    choose, sweep_cache,
};

use super::Context;
use crate::config::{Budget, DataMode, Length, SourceEntry};
use crate::observer::{Event, Observer};

/// The folder beside the run in which tokenised data is cached.
const CACHE_FOLDER: &str = "token-cache";

/// What a stream may hold of tokenised data where nobody says.
const STREAM_BUFFER_BYTES: u64 = 96 << 20;

pub struct Store<'a> {
    pub context: &'a Context<'a>,
    pub tokenizer: &'a Arc<Tokenizer>,
}

/// How a dataset is stored, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub mode: StorageMode,
    /// Of a cache.
    pub folder: Option<PathBuf>,
    pub reason: String,
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { mode, folder, reason } = self;
        match folder {
            Some(folder) => write!(f, "data mode: {mode} in {}, because {reason}", folder.display()),
            None => write!(f, "data mode: {mode}, because {reason}"),
        }
    }
}

/// Without weights the entries are one source, so that each file counts once.
pub fn sources(entries: &[SourceEntry], options: &Options) -> Result<Sources, DataError> {
    if entries.iter().all(|entry| entry.weight.is_none()) {
        let paths: Vec<&str> = entries.iter().map(|entry| entry.path.as_str()).collect();
        return Sources::open(vec![Weighted::alone(Source::open(&paths)?)], options);
    }
    let weighted = |entry: &SourceEntry| Ok(Weighted { source: Source::open(&[&entry.path])?, weight: entry.weight });
    Sources::open(entries.iter().map(weighted).collect::<Result<_, DataError>>()?, options)
}

impl Store<'_> {
    /// `counted`: whether the run's length may depend on how many groups there are.
    pub fn open(
        &self,
        sources: Sources,
        options: &Options,
        counted: bool,
        observer: &mut dyn Observer,
    ) -> Result<(Dataset, Stored), DataError> {
        let folder = self.folder();
        let (sources, mode, reason) = self.mode(sources, options, &folder)?;
        observer.observe(Event::DatasetStarted);
        let mut tick = |progress: &Progress| observer.observe(Event::Tokenising(*progress));
        let dataset = match mode {
            StorageMode::Memory => Dataset::in_memory(sources, self.tokenizer, options, &mut tick)?,
            StorageMode::Cached => Dataset::cached(sources, self.tokenizer, options, &folder, &mut tick)?,
            StorageMode::Streamed => {
                let stream = Dataset::streamed(sources, self.tokenizer.clone(), options, self.buffer_bytes())?;
                // Only epochs need to know how many groups there are.
                let by_epochs = counted && matches!(self.context.resolved.run.schedule.length(), Length::Epochs(_));
                if by_epochs { stream.counted(&mut tick)? } else { stream }
            }
        };
        observer.observe(Event::DatasetFinished);
        if mode == StorageMode::Cached {
            sweep(&folder, observer);
        }
        let folder = (mode == StorageMode::Cached).then_some(folder);
        Ok((dataset, Stored { mode, folder, reason }))
    }

    /// What the dataset would take in memory.
    pub fn forecast(&self, sources: Sources, options: &Options) -> Result<Footprint, DataError> {
        let (sources, mode, _) = self.mode(sources, options, &self.folder())?;
        Footprint::forecast(sources, self.tokenizer, options, mode, self.buffer_bytes())
    }

    /// How the data is to be stored, and why.
    fn mode(
        &self,
        sources: Sources,
        options: &Options,
        folder: &Path,
    ) -> Result<(Sources, StorageMode, String), DataError> {
        let given = "data.mode is set".to_owned();
        Ok(match self.context.resolved.run.data.mode {
            DataMode::Auto => {
                let limits = Limits { host_bytes: self.context.host_bytes, folder };
                let (sources, choice) = choose(sources, self.tokenizer, options, &limits)?;
                (sources, choice.mode, choice.why)
            }
            DataMode::Memory => (sources, StorageMode::Memory, given),
            DataMode::Cached => (sources, StorageMode::Cached, given),
            DataMode::Streaming => (sources, StorageMode::Streamed, given),
        })
    }

    fn buffer_bytes(&self) -> u64 {
        match self.context.resolved.run.data.buffer {
            // The order depends on it, so it must not depend on how much memory happens to be available.
            Budget::Auto => STREAM_BUFFER_BYTES,
            given => given.bytes_of(self.context.host_bytes),
        }
    }

    fn folder(&self) -> PathBuf {
        match &self.context.resolved.run.data.cache {
            Some(folder) => PathBuf::from(folder),
            None => self.context.out.parent().unwrap_or(Path::new("")).join(CACHE_FOLDER),
        }
    }
}

fn sweep(folder: &Path, observer: &mut dyn Observer) {
    let Swept { files, bytes } = sweep_cache(folder);
    if files > 0 {
        observer.observe(Event::CacheSwept { folder, files, bytes });
    }
}
