//! Memory by category over the time of a schedule, in few numbers: for views that are too small for the whole picture.

use plimsoll_plan::Timeline;
use serde_json::{Value, json};

use super::scene::PlanPicture;

/// Moments of a schedule, evenly spread over its predicted time.
const MOMENTS: usize = 64;

/// Of every schedule, the bytes in use by category at each moment: the most there are until the next one.
pub fn courses(plan: &PlanPicture) -> Value {
    let of = |timeline: &Timeline| json!({"name": timeline.name, "categories": course(plan, timeline)});
    json!(plan.picture.timelines.iter().map(of).collect::<Vec<_>>())
}

fn course(plan: &PlanPicture, timeline: &Timeline) -> serde_json::Map<String, Value> {
    let steps = timeline.steps.len();
    let total: f64 = timeline.steps.iter().map(|step| step.seconds).sum();
    let mut began = 0.0;
    let moments: Vec<usize> = timeline
        .steps
        .iter()
        .map(|step| {
            let at = if total > 0.0 { began / total } else { 0.0 };
            began += step.seconds;
            ((at * MOMENTS as f64) as usize).min(MOMENTS - 1)
        })
        .collect();
    let mut by_category: Vec<(&str, Vec<i64>)> = Vec::new();
    let mut add = |category: &'static str, first: usize, last: usize, bytes: u64| {
        let index = by_category.iter().position(|(name, _)| *name == category).unwrap_or_else(|| {
            by_category.push((category, vec![0; steps + 1]));
            by_category.len() - 1
        });
        by_category[index].1[first] += bytes as i64;
        by_category[index].1[last + 1] -= bytes as i64;
    };
    for band in plan.picture.bands.iter().filter(|_| steps > 0) {
        add(band.category, 0, steps - 1, band.bytes);
    }
    for buffer in &timeline.buffers {
        add(buffer.category, buffer.first, buffer.last, buffer.bytes);
    }
    by_category.into_iter().map(|(name, changes)| (name.to_owned(), json!(peaks(&changes, &moments)))).collect()
}

/// The most at each moment; where no step begins in one, what there is goes on.
fn peaks(changes: &[i64], moments: &[usize]) -> Vec<i64> {
    let mut peaks: Vec<Option<i64>> = vec![None; MOMENTS];
    let mut now = 0;
    for (change, &moment) in changes.iter().zip(moments) {
        now += change;
        peaks[moment] = Some(peaks[moment].map_or(now, |peak| peak.max(now)));
    }
    let mut before = 0;
    let continued = peaks.into_iter().map(|peak| {
        before = peak.unwrap_or(before);
        before
    });
    continued.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_keep_their_peak() {
        // Three steps: two in the first moment, the third half-way.
        let found = peaks(&[5, 10, -12, -3], &[0, 0, 32]);
        assert_eq!((found[0], found[1], found[31], found[32], found[63]), (15, 15, 15, 3, 3));
        assert_eq!(peaks(&[], &[]), vec![0; MOMENTS]);
    }
}
