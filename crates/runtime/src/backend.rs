use std::io;

use plimsoll_graph::{BackendTraits, BatchShape, DType, Extent, ScheduleId, StreamId, Streams};
use plimsoll_plan::{Buffer, Region, Step};

use crate::{Draw, RuntimeError};

/// Writes a piece of a region, given how many of the region's bytes lie before it.
pub type Fill<'a> = dyn FnMut(usize, &mut [u8]) -> io::Result<()> + 'a;

/// Bytes of a piece, a multiple of every element's size, where a device has no memory for this.
const PIECE_BYTES: usize = 1 << 20;

/// How full one stream of a micro-batch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ActiveStream {
    pub tokens: usize,
    pub sequences: usize,
}

/// How full the micro-batch is that a schedule runs over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Active {
    pub streams: Streams<ActiveStream>,
}

impl Active {
    /// A micro-batch with one stream.
    pub const fn one(tokens: usize, sequences: usize) -> Self {
        Self { streams: Streams::one(ActiveStream { tokens, sequences }) }
    }

    /// Of schedules that no micro-batch is loaded for.
    pub fn nothing(batch: BatchShape) -> Self {
        Self { streams: batch.streams.map(|_| ActiveStream { tokens: 0, sequences: 0 }) }
    }

    pub fn of(&self, stream: StreamId) -> ActiveStream {
        self.streams[stream]
    }

    /// Whether a micro-batch of this shape holds it.
    pub fn fits(&self, batch: BatchShape) -> bool {
        let holds = |(stream, active): (StreamId, ActiveStream)| {
            let shape = batch.streams[stream];
            active.tokens <= shape.tokens && active.sequences <= shape.sequences
        };
        self.streams.len() == batch.streams.len() && self.streams.iter().all(holds)
    }

    /// Rows of a buffer that hold something.
    pub fn rows(&self, buffer: &Buffer) -> usize {
        match buffer.extent {
            Extent::Fixed => buffer.shape.rows(),
            Extent::Tokens(stream) => self.of(stream).tokens,
            Extent::Run { stream, start } => self.of(stream).tokens.saturating_sub(start).min(buffer.shape.rows()),
            Extent::Sequences(stream) => self.of(stream).sequences,
            Extent::Boundaries(stream) => self.of(stream).sequences + 1,
        }
    }
}

/// Whose memory a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// This process's, by the driver.
    Process,
    /// All that came to be in use on the device since before this process used it, whoever took it.
    SinceStart,
    /// Everyone's on the device.
    Device,
}

impl Counted {
    pub fn name(self) -> &'static str {
        match self {
            Counted::Process => "process",
            Counted::SinceStart => "since start",
            Counted::Device => "device",
        }
    }
}

/// Device memory in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Used {
    pub bytes: u64,
    pub counted: Counted,
}

/// A device: one arena, taken once, and the operators over it. Nothing else allocates device memory.
pub trait Backend: Send {
    fn name(&self) -> &str;

    /// What operators' scratch memory depends on.
    fn traits(&self) -> BackendTraits;

    /// Takes the arena. Called once, before anything else; the memory is zeroed and resident.
    fn allocate(&mut self, bytes: usize) -> Result<(), RuntimeError>;

    /// Runs one operator. `active` says how much of the micro-batch is filled.
    fn run(&mut self, step: &Step, active: Active) -> Result<(), RuntimeError>;

    /// Runs a whole schedule. With `record`, a device may record it and knows it again by that name and `active`.
    fn run_schedule(
        &mut self,
        _record: Option<ScheduleId>,
        steps: &[Step],
        active: Active,
    ) -> Result<(), RuntimeError> {
        steps.iter().try_for_each(|step| self.run(step, active))
    }

    /// Runs one operator alone and tells how many seconds the device was busy with it.
    fn run_timed(&mut self, step: &Step, active: Active) -> Result<f64, RuntimeError> {
        let began = std::time::Instant::now();
        self.run(step, active)?;
        self.synchronize()?;
        Ok(began.elapsed().as_secs_f64())
    }

    /// Device memory in use by this process; `None` where the arena is host memory.
    fn used(&self) -> Option<Used> {
        None
    }

    /// Whether driver and libraries load code and take memory as operators first run, so that what a run takes is only
    /// known once all of it has run.
    fn loads_lazily(&self) -> bool {
        false
    }

    /// Gives the arena back, and whatever was recorded over it, so that another can be taken.
    fn release(&mut self) -> Result<(), RuntimeError> {
        Err(RuntimeError::Device { reason: format!("{} takes its arena once", self.name()) })
    }

    /// Whether a micro-batch must fill its planned shape, because schedules are recorded for that shape.
    fn fixed_shape(&self) -> bool {
        false
    }

    /// Copies host bytes into the arena, behind everything queued so far. They are no longer needed when it
    /// returns, though the copy may still be on its way.
    fn write(&mut self, region: Region, bytes: &[u8]) -> Result<(), RuntimeError>;

    /// Has `fill` write the region, a piece after another, where it lies or in memory from which a device takes
    /// it. A failure of `fill` itself is the inner result.
    fn write_with(&mut self, region: Region, fill: &mut Fill) -> Result<io::Result<()>, RuntimeError> {
        if let Some(place) = self.host_bytes(region) {
            return Ok(fill(0, place));
        }
        let mut piece = vec![0; PIECE_BYTES.min(region.bytes)];
        for done in (0..region.bytes).step_by(PIECE_BYTES) {
            let piece = &mut piece[..PIECE_BYTES.min(region.bytes - done)];
            if let Err(error) = fill(done, piece) {
                return Ok(Err(error));
            }
            self.write(Region { offset: region.offset + done, bytes: piece.len(), ..region }, piece)?;
        }
        Ok(Ok(()))
    }

    /// Fills a region with drawn elements, the first of which has the index 0: the same bits on every device.
    fn draw(&mut self, region: Region, dtype: DType, draw: Draw) -> Result<(), RuntimeError> {
        let filled = self.write_with(region, &mut |done, piece| {
            draw.fill(dtype, (done / dtype.bytes()) as u64, piece);
            Ok(())
        })?;
        filled.map_err(|error| RuntimeError::Device { reason: error.to_string() })
    }

    /// Copies from the arena into host bytes, once everything queued so far is done.
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
