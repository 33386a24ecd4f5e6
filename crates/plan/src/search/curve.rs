//! What more memory would buy.

use plimsoll_graph::Program;

use super::{Request, Search};
use crate::report::SpeedAt;
use crate::{Backing, PlanError};

/// Added to the budget, one after another, in GiB.
const STEPS_GIB: [u64; 7] = [1, 2, 4, 8, 16, 32, 64];
/// A gain below this is none: predictions are not that precise.
const GAIN_MIN: f64 = 0.01;

/// The speed of the fastest plan under larger budgets, up to where memory no longer limits it. Nothing is laid out: these
/// plans fit but for what their addresses take above their lower bound.
pub fn speed_curve<B, E>(request: &Request<B, E>) -> Result<Vec<SpeedAt>, E>
where
    B: AsRef<Program>,
    E: From<PlanError>,
{
    let mut search = Search::new(request)?;
    let arena_budget = search.arena_budget;
    let budget = match request.device.backing {
        Backing::Gpu => request.budgets.gpu_bytes,
        Backing::Host => request.budgets.host_bytes,
    };
    let mut reached = search.fastest_speed()?.unwrap_or(0.0);
    let mut curve = Vec::new();
    for added in STEPS_GIB.map(|gib| gib << 30) {
        search.arena_budget = arena_budget + added;
        let Some(tokens_per_s) = search.fastest_speed()? else { continue };
        if tokens_per_s <= reached * (1.0 + GAIN_MIN) {
            continue;
        }
        reached = tokens_per_s;
        let bytes = budget + added;
        let (gpu_bytes, host_bytes) = match request.device.backing {
            Backing::Gpu => (bytes, request.budgets.host_bytes),
            Backing::Host => (0, bytes),
        };
        curve.push(SpeedAt { gpu_bytes, host_bytes, tokens_per_s });
    }
    Ok(curve)
}

impl<B: AsRef<Program>, E: From<PlanError>> Search<'_, B, E> {
    /// Of the plan that would be tried first; `None` if nothing fits.
    fn fastest_speed(&self) -> Result<Option<f64>, E> {
        Ok(self.fastest_that_fit()?.first().map(|candidate| self.tokens_per_s(candidate)))
    }
}
