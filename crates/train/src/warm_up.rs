//! Everything a run executes, once, before there are weights. Drivers and libraries load code and take memory as operators
//! first run; behind this, what they take is there and can be measured.

use plimsoll_data::{MicroBatch, TokenStream};
use plimsoll_graph::{Role, ScheduleId, SlotId, StreamShape};

use crate::session::{flat_batch, flat_stream};
use crate::{Session, TrainError};

/// A schedule runs step by step, is recorded the second time, and replayed the third.
const TIMES: usize = 3;

impl Session {
    /// Runs all schedules over an arena without weights, and leaves gradients and states zeroed.
    pub(crate) fn warm_up(&mut self) -> Result<(), TrainError> {
        let mut full =
            MicroBatch { streams: vec![TokenStream::default(); self.shapes().len()], ..MicroBatch::default() };
        self.fill_shape(&mut full);
        let schedules: Vec<ScheduleId> = self.executor().plan().schedules.keys().copied().collect();
        for id in schedules {
            match id {
                ScheduleId::UPDATE => (0..TIMES).try_for_each(|_| self.apply(1, 0.0).map(|_| ()))?,
                ScheduleId::SAMPLE => {
                    let longest = |stream: StreamShape| vec![0; stream.max_length];
                    let texts: Vec<Vec<u32>> = self.shapes().as_slice().iter().copied().map(longest).collect();
                    let mut batch = flat_batch([texts[0].as_slice()].into_iter());
                    batch.streams.extend(texts[1..].iter().map(|text| flat_stream([text.as_slice()].into_iter())));
                    let active = self.load(&batch)?;
                    self.executor().run(id, active)?;
                }
                _ => {
                    let active = self.load(&full)?;
                    (0..TIMES).try_for_each(|_| self.executor().run(id, active))?;
                }
            }
        }
        self.executor().backend().synchronize()?;
        let written = |role: Role| matches!(role, Role::Gradient | Role::OptimizerState | Role::Loss);
        let slots = self.executor().plan().slots.iter().filter(|(_, slot)| written(slot.role));
        let slots: Vec<SlotId> = slots.map(|(id, _)| id).collect();
        slots.into_iter().try_for_each(|slot| Ok(self.executor().clear_slot(slot)?))
    }
}
