//! A thread that looks at the kernel's figures about once a second, so that training need not.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plimsoll_plan::{DeviceReport, HostReport, Report};
use plimsoll_runtime::{Counted, Used};

use super::judge::{Finding, Judge};
use super::kernel::Sample;

/// What is watched, and against which plan.
#[derive(Debug, Clone, PartialEq)]
pub struct Watching {
    /// Where `/proc` and `/sys` are: the root, or a recording.
    pub root: PathBuf,
    pub interval: Duration,
    pub host: HostReport,
    pub gpu: DeviceReport,
}

impl Watching {
    /// This process, about once a second.
    pub fn new(report: &Report) -> Self {
        let (root, interval) = (Path::new("/").to_owned(), Duration::from_secs(1));
        Self { root, interval, host: report.host.clone(), gpu: report.gpu.clone() }
    }
}

/// The thread, ended when this is dropped.
pub(crate) struct MemoryWatch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// The last update that is done.
    step: AtomicU64,
    ended: AtomicBool,
    seen: Mutex<Seen>,
}

struct Seen {
    judge: Judge,
    last: Sample,
    found: Vec<Finding>,
}

impl Shared {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MemoryWatch {
    /// The first look is taken at once. Where no thread can be started, it stays the only one.
    pub fn start(watching: &Watching) -> Self {
        let Watching { root, interval, host, gpu } = watching.clone();
        let mut judge = Judge::new(host, gpu);
        let last = Sample::read(&root, 0.0, 0);
        let found = judge.host(last);
        let seen = Mutex::new(Seen { judge, last, found });
        let shared = Arc::new(Shared { step: AtomicU64::new(0), ended: AtomicBool::new(false), seen });
        let own = shared.clone();
        let look = move || {
            let began = Instant::now();
            loop {
                thread::park_timeout(interval);
                if own.ended.load(Ordering::Acquire) {
                    return;
                }
                let step = own.step.load(Ordering::Relaxed);
                let sample = Sample::read(&root, began.elapsed().as_secs_f64(), step);
                let mut seen = own.seen();
                let found = seen.judge.host(sample);
                seen.found.extend(found);
                seen.last = sample;
            }
        };
        let thread = thread::Builder::new().name("memory".to_owned()).spawn(look).ok();
        Self { shared, thread }
    }

    /// What was found since it was last asked, once an update is done.
    pub fn findings(&self, step: u64) -> Vec<Finding> {
        self.shared.step.store(step, Ordering::Relaxed);
        std::mem::take(&mut self.shared.seen().found)
    }

    /// What the driver says, once asked anew.
    pub fn gpu(&self, used: Used, step: u64) {
        let mut seen = self.shared.seen();
        let found = seen.judge.gpu(used.bytes, used.counted == Counted::Process, step);
        seen.found.extend(found);
    }

    /// The newest look.
    pub fn last(&self) -> Sample {
        self.shared.seen().last
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
