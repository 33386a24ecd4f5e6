use plimsoll_graph::{Extent, Target};
use plimsoll_plan::{Buffer, Region, Step};

use crate::RuntimeError;

/// How full the micro-batch is that a schedule runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Active {
    pub tokens: usize,
    pub sequences: usize,
}

impl Active {
    /// Rows of a buffer that hold something.
    pub fn rows(&self, buffer: &Buffer) -> usize {
        match buffer.extent {
            Extent::Fixed => buffer.shape.rows(),
            Extent::Tokens => self.tokens,
            Extent::Sequences => self.sequences,
            Extent::Boundaries => self.sequences + 1,
        }
    }
}

/// Which schedule of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Run {
    MicroStep,
    Update,
    Evaluate,
    Sample,
}

/// A device: one arena, taken once, and the operators over it. Nothing else allocates device memory.
pub trait Backend: Send {
    fn name(&self) -> &str;

    /// What operators' scratch memory depends on.
    fn target(&self) -> Target;

    /// Takes the arena. Called once, before anything else; the memory is zeroed and resident.
    fn allocate(&mut self, bytes: usize) -> Result<(), RuntimeError>;

    /// Runs one operator. `active` says how much of the micro-batch is filled.
    fn run(&mut self, step: &Step, active: Active) -> Result<(), RuntimeError>;

    /// Runs a whole schedule. A device that can record one knows it again by `which` and `active`.
    fn run_schedule(&mut self, _which: Run, steps: &[Step], active: Active) -> Result<(), RuntimeError> {
        steps.iter().try_for_each(|step| self.run(step, active))
    }

    /// Runs one operator alone and tells how many seconds the device was busy with it.
    fn run_timed(&mut self, step: &Step, active: Active) -> Result<f64, RuntimeError> {
        let began = std::time::Instant::now();
        self.run(step, active)?;
        self.synchronize()?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Device memory in use as the driver counts it, other users included; `None` where the arena is host memory.
    fn used_bytes(&self) -> Option<u64> {
        None
    }

    /// Whether a micro-batch must fill its planned shape, because schedules are recorded for that shape.
    fn fixed_shape(&self) -> bool {
        false
    }

    /// Copies host bytes into the arena.
    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), RuntimeError>;

    /// Copies from the arena into host bytes.
    fn read(&self, region: Region, bytes: &mut [u8]) -> Result<(), RuntimeError>;

    /// The arena's own bytes, where the host can address them; lets weights be read from a file
    /// straight into their place.
    fn host_bytes(&mut self, region: Region) -> Option<&mut [u8]>;

    /// Sets every byte of a region. Only used to poison memory that must not be read.
    fn fill(&mut self, region: Region, byte: u8) -> Result<(), RuntimeError> {
        match self.host_bytes(region) {
            Some(bytes) => {
                bytes.fill(byte);
                Ok(())
            }
            None => Err(RuntimeError::Device { reason: format!("{} cannot fill memory", self.name()) }),
        }
    }

    /// Waits until all lanes are idle.
    fn synchronize(&mut self) -> Result<(), RuntimeError> {
        Ok(())
    }
}
