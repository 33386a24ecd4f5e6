//! Walks a planned schedule. Takes the arena once, then never allocates device memory again.

use bytemuck::Pod;
use plimsoll_graph::{ScheduleId, SlotId};
use plimsoll_plan::verify::{verify, verify_schedule};
use plimsoll_plan::{Buffer, Place, Plan, Region};

use crate::numbers::{BadNumber, Sought};
use crate::{Active, Backend, RuntimeError};

/// Byte that makes every float type a NaN and every signed integer negative.
const POISON: u8 = 0xff;

/// A plan on a device.
pub struct Executor {
    backend: Box<dyn Backend>,
    plan: Plan,
    paranoid: bool,
}

impl Executor {
    /// Checks the plan once more, on this side of the boundary, and takes the memory it asks for.
    /// With `paranoid`, freed memory is poisoned and the layout re-checked while running.
    pub fn new(mut backend: Box<dyn Backend>, plan: Plan, paranoid: bool) -> Result<Self, RuntimeError> {
        verify(&plan)?;
        backend.allocate(plan.arena_bytes)?;
        let mut executor = Self { backend, plan, paranoid };
        if paranoid {
            let base = executor.slots_end();
            let rest = executor.plan.arena_bytes - base;
            executor.backend.fill(Region { place: Place::Device, offset: base, bytes: rest }, POISON)?;
        }
        Ok(executor)
    }

    /// Gives the arena back.
    pub fn release(self) -> Result<Box<dyn Backend>, RuntimeError> {
        let mut backend = self.backend;
        backend.release()?;
        Ok(backend)
    }

    /// Zeroes a slot.
    pub fn clear_slot(&mut self, slot: SlotId) -> Result<(), RuntimeError> {
        self.backend.fill(self.plan.slot(slot), 0)
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn backend(&mut self) -> &mut dyn Backend {
        &mut *self.backend
    }

    fn slots_end(&self) -> usize {
        self.plan.slot_regions.iter().map(Region::end).max().unwrap_or(0)
    }

    /// Runs every step of a schedule over a micro-batch that is filled as `active` says. A device may still be
    /// at work when it returns; whatever is read from it waits.
    pub fn run(&mut self, id: ScheduleId, active: Active) -> Result<(), RuntimeError> {
        assert!(active.fits(self.plan.batch), "{active:?} is more than was planned for");
        if self.paranoid {
            return self.run_paranoid(id, active);
        }
        // Borrowed apart so that steps need not be copied.
        let Self { backend, plan, .. } = self;
        let schedule = plan.schedule(id);
        backend.run_schedule(schedule.recorded.then_some(id), &schedule.steps, active)
    }

    /// Runs a schedule step by step; the seconds of each step, in order.
    pub fn run_timed(&mut self, id: ScheduleId, active: Active) -> Result<Vec<f64>, RuntimeError> {
        let Self { backend, plan, .. } = self;
        plan.schedule(id).steps.iter().map(|step| backend.run_timed(step, active)).collect()
    }

    fn run_paranoid(&mut self, id: ScheduleId, active: Active) -> Result<(), RuntimeError> {
        let schedule = self.plan.schedule(id).clone();
        verify_schedule(id.0, &schedule, &self.plan.slots_of(&schedule), self.plan.arena_bytes, 0)?;
        for (index, step) in schedule.steps.iter().enumerate() {
            if let Some(scratch) = step.workspace {
                self.backend.fill(scratch, POISON)?;
            }
            self.backend.run(step, active)?;
            self.backend.synchronize()?;
            if let Some(bad) = Sought::NotANumber.find(&mut *self.backend, index, step, active)? {
                return Err(bad.into());
            }
            for &freed in &step.frees {
                self.backend.fill(freed, POISON)?;
            }
        }
        Ok(())
    }

    /// Runs a schedule step by step, up to the first operator that makes a value that is not finite. The micro-step's
    /// gradients are then to be thrown away.
    pub fn run_checked(&mut self, id: ScheduleId, active: Active) -> Result<Option<BadNumber>, RuntimeError> {
        let Self { backend, plan, .. } = self;
        for (index, step) in plan.schedule(id).steps.iter().enumerate() {
            backend.run(step, active)?;
            backend.synchronize()?;
            let found = Sought::NotFinite.find(&mut **backend, index, step, active)?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Writes the first elements of a slot.
    pub fn write_slot<T: Pod>(&mut self, slot: SlotId, data: &[T]) -> Result<(), RuntimeError> {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let region = self.plan.slot(slot);
        assert!(bytes.len() <= region.bytes, "{} does not hold {} bytes", self.plan.slots.get(slot).name, bytes.len());
        self.backend.write(Region { bytes: bytes.len(), ..region }, bytes)
    }

    /// Reads the first elements of a slot.
    pub fn read_slot<T: Pod>(&self, slot: SlotId, data: &mut [T]) -> Result<(), RuntimeError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        let region = self.plan.slot(slot);
        assert!(bytes.len() <= region.bytes, "{} does not hold {} bytes", self.plan.slots.get(slot).name, bytes.len());
        self.backend.read(Region { bytes: bytes.len(), ..region }, bytes)
    }

    /// What a schedule leaves for the host to read; nothing if the plan has no such schedule.
    pub fn results(&self, id: ScheduleId) -> &[Buffer] {
        self.plan.schedules.get(&id).map_or(&[], |schedule| &schedule.results)
    }

    /// Reads the first elements of a result.
    pub fn read_result<T: Pod>(&self, buffer: &Buffer, data: &mut [T]) -> Result<(), RuntimeError> {
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(data);
        self.backend.read(Region { bytes: bytes.len(), ..buffer.region }, bytes)
    }
}
