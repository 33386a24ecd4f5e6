//! Runs a planned schedule on real addresses, byte by byte, the way an unkind device would: scratch
//! and outputs are scribbled on while inputs are still being read, and freed memory is spoilt at once.

use plimsoll_graph::{Alias, OpRule};
use plimsoll_plan::{Buffer, Plan, Region, Schedule, Step};

use crate::symbols::{Outcome, Symbol, apply, byte, initial, seen, symbol};

/// Why a schedule cannot be run at all.
#[derive(Debug)]
pub enum Fault {
    OutsideArena,
    /// An operator that updates in place was given two places.
    TornUpdate,
}

/// Are freed regions left alone or spoilt?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    Left,
    Spoilt,
}

pub fn execute(plan: &Plan, schedule: &Schedule, freed: Freed) -> Result<Outcome, Fault> {
    let nothing = symbol("nothing");
    let mut memory = Memory { bytes: vec![nothing; plan.arena_bytes], scribbles: 0 };
    for (slot, &region) in plan.slot_regions.iter().enumerate() {
        memory.inside(region)?;
        memory.write(region, initial(slot), &[]);
    }
    for step in &schedule.steps {
        memory.run(step)?;
        if freed == Freed::Spoilt {
            step.frees.iter().for_each(|&region| memory.scribble(region));
        }
    }
    Ok(Outcome {
        slots: plan.slot_regions.iter().map(|&r| memory.read(r, &[])).collect(),
        results: schedule.results.iter().map(|r| memory.read(r.region, &[])).collect(),
    })
}

struct Memory {
    bytes: Vec<Symbol>,
    scribbles: u64,
}

impl Memory {
    fn run(&mut self, step: &Step) -> Result<(), Fault> {
        let operands = step.inputs.iter().chain(&step.outputs).map(|b| b.region);
        operands.chain(step.workspace).try_for_each(|region| self.inside(region))?;
        for alias in step.op.aliases() {
            if let Alias::Must { output, input } = alias
                && step.outputs[output].region != step.inputs[input].region
            {
                return Err(Fault::TornUpdate);
            }
        }
        let saw: Vec<Symbol> = (0..step.inputs.len())
            .map(|input| self.read(step.inputs[input].region, &being_written(step, input)))
            .collect();
        let made = apply(&step.op, &saw, step.outputs.len(), step.inputs[0].region.bytes);
        for (output, content) in step.outputs.iter().zip(made) {
            let others = step.outputs.iter().filter(|o| !std::ptr::eq(*o, output)).map(|o| o.region);
            let fought_over: Vec<Region> = others.chain(step.workspace).collect();
            self.write(output.region, content, &fought_over);
        }
        step.workspace.into_iter().for_each(|scratch| self.scribble(scratch));
        Ok(())
    }

    fn inside(&self, region: Region) -> Result<(), Fault> {
        if region.offset + region.bytes > self.bytes.len() { Err(Fault::OutsideArena) } else { Ok(()) }
    }

    fn read(&mut self, region: Region, being_written: &[Region]) -> Symbol {
        let spoilt = self.nonsense();
        let at = |address: usize| if covers(being_written, address) { spoilt } else { self.bytes[address] };
        seen((region.offset..region.end()).map(at))
    }

    fn write(&mut self, region: Region, content: Symbol, fought_over: &[Region]) {
        let spoilt = self.nonsense();
        for position in 0..region.bytes {
            let address = region.offset + position;
            self.bytes[address] = if covers(fought_over, address) { spoilt } else { byte(content, position) };
        }
    }

    fn scribble(&mut self, region: Region) {
        let spoilt = self.nonsense();
        self.bytes[region.offset..region.end()].fill(spoilt);
    }

    /// A symbol nothing else ever has.
    fn nonsense(&mut self) -> Symbol {
        self.scribbles += 1;
        symbol(("scribble", self.scribbles))
    }
}

fn covers(regions: &[Region], address: usize) -> bool {
    regions.iter().any(|r| (r.offset..r.end()).contains(&address))
}

/// What may already be overwritten while an input is read: all the step writes, but for an output
/// that the operator can make in this input's own place.
fn being_written(step: &Step, input: usize) -> Vec<Region> {
    let aliases = step.op.aliases();
    let in_place = |output: usize, buffer: &Buffer| {
        let allowed = [Alias::May { output, input }, Alias::Must { output, input }];
        buffer.region == step.inputs[input].region && aliases.iter().any(|a| allowed.contains(a))
    };
    let outputs = step.outputs.iter().enumerate().filter(|(o, b)| !in_place(*o, b)).map(|(_, b)| b.region);
    outputs.chain(step.workspace).collect()
}
