use plimsoll_plan::{Categories, HostCategories};

use super::*;

const MIB: u64 = 1 << 20;

fn planned_mib(mib: u64) -> Judge {
    let arena = Categories { weights: (mib - 50) * MIB, ..Categories::default() };
    let categories =
        HostCategories { process: 50 * MIB, offload: 0, pinned: 0, data: 0, snapshot: 0, arena: Some(arena) };
    let gpu = Categories { weights: 1000 * MIB, ..Categories::default() };
    Judge::new(HostReport::new(4 << 30, categories), DeviceReport::new(4 << 30, gpu))
}

/// A machine with 16 GiB of which half is available, and a process of so much.
fn calm(second: u32, resident_mib: u64) -> Sample {
    Sample {
        at_s: f64::from(second),
        step: u64::from(second) * 10,
        resident: Resident {
            total_bytes: resident_mib * MIB,
            anonymous_bytes: (resident_mib - 40) * MIB,
            file_bytes: 40 * MIB,
            ..Resident::default()
        },
        available_bytes: 8 << 30,
        total_bytes: 16 << 30,
        ..Sample::default()
    }
}

/// What is found at which second of so many, each sample as `make` has it.
fn watched(judge: &mut Judge, seconds: std::ops::Range<u32>, make: impl Fn(u32) -> Sample) -> Vec<(u32, Finding)> {
    seconds.flat_map(|second| judge.host(make(second)).into_iter().map(move |finding| (second, finding))).collect()
}

#[test]
fn a_run_within_its_plan_is_left_alone() {
    let mut judge = planned_mib(500);
    let allowance = judge.planned.allowance_bytes / MIB;
    assert!(allowance >= 16, "{allowance}");
    // Up to the last byte of the allowance, and for two seconds above it.
    let make = |second| calm(second, if second % 7 < 2 { 500 + allowance + 100 } else { 500 + allowance });
    assert_eq!(watched(&mut judge, 0..300, make), []);
}

#[test]
fn growth_above_the_plan_is_reported_once_with_the_update_since_when() {
    let mut judge = planned_mib(500);
    let found = watched(&mut judge, 0..200, |second| calm(second, 400 + u64::from(second) * 2));
    let [(second, Finding::Overgrown(grown))] = found.as_slice() else { panic!("{found:?}") };
    let first = (0..).find(|second| 400 + second * 2 > 500 + judge.planned.allowance_bytes / MIB).expect("some");
    assert_eq!((*second, grown.since), (first as u32 + BEGINS - 1, first * 10));
    assert_eq!((grown.memory, grown.planned_bytes), ("host", 500 * MIB));
    assert_eq!(grown.planned, [("weights", 450 * MIB), ("process", 50 * MIB)]);
    assert_eq!(grown.used_bytes, (400 + u64::from(*second) * 2) * MIB);
    let text = grown.to_string();
    for part in ["since update", "500.0 MiB were planned (weights 450.0 MiB, process 50.0 MiB)", "40.0 MiB of files"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn what_was_moved_out_to_swap_is_still_the_processes_own() {
    let mut judge = planned_mib(500);
    let found = watched(&mut judge, 0..10, |second| {
        let mut sample = calm(second, 450);
        sample.resident.swapped_bytes = if second < 4 { 0 } else { 300 * MIB };
        sample.swap_traffic_bytes = u64::from(second.clamp(3, 5)) * 100 * MIB;
        sample
    });
    let [(6, Finding::Overgrown(grown)), (6, Finding::Warning(MemoryWarning::OwnSwap { bytes }))] = found.as_slice()
    else {
        panic!("{found:?}")
    };
    assert_eq!((grown.used_bytes, *bytes), (750 * MIB, 300 * MIB));
}

#[test]
fn pressure_from_others_is_told_once_for_each_episode() {
    let mut judge = planned_mib(500);
    // Little memory from second 10 to 40 with a gap, and again from 100 on.
    let found = watched(&mut judge, 0..140, |second| {
        let is_short = (10..40).contains(&second) && second != 20 || second >= 100;
        Sample { available_bytes: if is_short { 300 * MIB } else { 8 << 30 }, ..calm(second, 450) }
    });
    let short = Finding::Warning(MemoryWarning::Short { available_bytes: 300 * MIB, total_bytes: 16 << 30 });
    assert_eq!(found, [(12, short.clone()), (102, short)]);
    // A run that was given nearly all there was leaves little from its first second on.
    let given =
        watched(&mut planned_mib(500), 0..60, |second| Sample { available_bytes: 300 * MIB, ..calm(second, 450) });
    assert_eq!(given, []);
}

#[test]
fn swapping_of_others_and_of_our_own_are_told_apart() {
    let traffic = |second: u32| u64::from(second) * 5 * MIB;
    let others = watched(&mut planned_mib(500), 0..20, |second| Sample {
        swap_traffic_bytes: traffic(second),
        ..calm(second, 450)
    });
    let [(3, Finding::Warning(MemoryWarning::Swapping { bytes_per_s }))] = others.as_slice() else {
        panic!("{others:?}")
    };
    assert_eq!(*bytes_per_s, 5.0 * MIB as f64);
    let own = watched(&mut planned_mib(500), 0..20, |second| {
        let mut sample = Sample { swap_traffic_bytes: traffic(second), ..calm(second, 450) };
        sample.resident.swapped_bytes = traffic(second).min(20 * MIB);
        sample.resident.total_bytes -= sample.resident.swapped_bytes;
        sample
    });
    let [(3, Finding::Warning(MemoryWarning::OwnSwap { .. }))] = own.as_slice() else { panic!("{own:?}") };
    // What had been out before the run was watched costs it nothing.
    let before = watched(&mut planned_mib(500), 0..20, |second| {
        let mut sample = calm(second, 400);
        sample.resident.swapped_bytes = 30 * MIB;
        sample
    });
    assert_eq!(before, []);
}

#[test]
fn waiting_for_pages_and_for_memory_is_noticed() {
    let faulting = watched(&mut planned_mib(500), 0..10, |second| Sample {
        major_faults: 1000 + u64::from(second) * 250,
        ..calm(second, 450)
    });
    assert_eq!(faulting, [(3, Finding::Warning(MemoryWarning::Faults { per_s: 250.0 }))]);
    let stalled = watched(&mut planned_mib(500), 0..10, |second| Sample { stalled_percent: 35.0, ..calm(second, 450) });
    assert_eq!(stalled, [(2, Finding::Warning(MemoryWarning::Stalled { percent: 35.0 }))]);
}

#[test]
fn the_drivers_figure_is_an_error_only_where_it_is_this_processs_own() {
    let see = |is_own: bool| {
        let mut judge = planned_mib(500);
        let used = 1000 * MIB + judge.gpu.allowance_bytes;
        let mut found: Vec<Finding> = (0..5).filter_map(|step| judge.gpu(used, is_own, step)).collect();
        assert_eq!(found, [], "within the allowance");
        found.extend((5..20).filter_map(|step| judge.gpu(used + 1, is_own, step)));
        found
    };
    let own = see(true);
    let [Finding::Overgrown(grown)] = own.as_slice() else { panic!("{own:?}") };
    assert_eq!((grown.memory, grown.since), ("GPU", 5));
    let others = see(false);
    assert!(matches!(others.as_slice(), [Finding::Warning(MemoryWarning::Gpu { .. })]), "{others:?}");
    // Without a GPU there is nothing to outgrow.
    let mut judge = planned_mib(500);
    judge.gpu = DeviceReport::new(0, Categories::default());
    assert_eq!((0..10).filter_map(|step| judge.gpu(1, true, step)).count(), 0);
}
