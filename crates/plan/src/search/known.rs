//! What the search has found out about the programs of variants, so that it asks nothing twice.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use plimsoll_graph::{Cadence, Graph, Program, ScheduleGraph};

use crate::DeviceProfile;
use crate::assemble::{Ground, Laid};
use crate::recompute::{Drops, recompute};
use crate::sizing::{Sizes, Sizing};

const NOTHING: &Drops = &Drops { classes: BTreeMap::new(), on_the_way: false };

/// A schedule's graph, with values dropped and rebuilt if it is the one with a backward pass.
pub(crate) fn with_drops<'g>(schedule: &'g ScheduleGraph, drops: &Drops) -> Cow<'g, Graph> {
    match schedule.cadence {
        Cadence::MicroBatch if !drops.is_empty() => Cow::Owned(recompute(&schedule.graph, drops)),
        _ => Cow::Borrowed(&schedule.graph),
    }
}

/// A position of the dial, with what is dropped there.
pub(super) type Position<'a> = (usize, &'a Drops);

/// The program of a variant.
pub(super) struct Known<B> {
    pub built: Rc<B>,
    pub ground: Ground,
    /// In the order of the program's.
    schedules: Vec<KnownSchedule>,
}

impl<B: AsRef<Program>> Known<B> {
    pub(super) fn new(built: B, device: &DeviceProfile) -> Self {
        let program = built.as_ref();
        let ground = Ground::new(&program.slots);
        let schedules = program.schedules.values().map(|schedule| KnownSchedule {
            base: ground.below(&schedule.graph),
            sizing: Sizing::new(&schedule.graph, device),
            sizes: RefCell::default(),
            laid: RefCell::default(),
        });
        let schedules = schedules.collect();
        Self { ground, schedules, built: Rc::new(built) }
    }

    pub(super) fn schedules(&self) -> impl Iterator<Item = (&ScheduleGraph, &KnownSchedule)> {
        (*self.built).as_ref().schedules.values().zip(&self.schedules)
    }
}

pub(super) struct KnownSchedule {
    /// Where its buffers begin.
    pub base: usize,
    pub sizing: Sizing,
    sizes: RefCell<BTreeMap<usize, Rc<Sizes>>>,
    laid: RefCell<BTreeMap<usize, Rc<Laid>>>,
}

impl KnownSchedule {
    pub(super) fn sizes(&self, schedule: &ScheduleGraph, at: Position, device: &DeviceProfile) -> Rc<Sizes> {
        let (level, drops) = dropped(schedule, at);
        let made = || Rc::new(self.sizing.with(&schedule.graph, drops, device));
        self.sizes.borrow_mut().entry(level).or_insert_with(made).clone()
    }

    pub(super) fn laid(&self, schedule: &ScheduleGraph, at: Position, device: &DeviceProfile) -> Rc<Laid> {
        let (level, drops) = dropped(schedule, at);
        let made = || Rc::new(Laid::new(self.sizing.lifetimes(&schedule.graph, drops, device)));
        self.laid.borrow_mut().entry(level).or_insert_with(made).clone()
    }
}

/// As [`with_drops`] has it: of most schedules nothing, wherever the dial is.
fn dropped<'a>(schedule: &ScheduleGraph, at: Position<'a>) -> Position<'a> {
    if schedule.cadence == Cadence::MicroBatch { at } else { (0, NOTHING) }
}
