//! A run that was stopped goes on as if it had not been.

use std::fs;

use plimsoll_files::fault::{Fault, count, inject};
use plimsoll_graph::{OPTIMIZERS, OptimizerSettings, StateStorage, WEIGHT_FORMATS};
use plimsoll_models::Recipe;
use plimsoll_plan::SavePin;
use plimsoll_train::{
    Bad, BadUpdate, BestBy, Effect, Event, Guard, Holds, Model, Resume, RunFolder, RunPhase, Saving, TrainError,
    Warning, list_runs, request_stop, run_status,
};

use crate::run::{Place, Setup, faster, lora, names, shape};
use crate::support::{recipe, trained_by, trained_with};

/// Stopped after every update in turn, the losses, the norms and the final weights are those of the run that went through.
fn check(setup: impl Fn() -> Setup) {
    let place = Place::new();
    let whole = place.train("whole", &setup()).ok();
    assert!(!whole.interrupted);
    for step in 1..setup().steps {
        let name = format!("stopped-{step}");
        let first = place.train(&name, &setup().stopped_after(step)).ok();
        assert!(first.interrupted && first.steps == step);
        assert!(first.saved.ends_with(format!("checkpoints/step-{step}")));
        let rest = place.train(&name, &setup());
        let Some(Event::Resumed(resumed)) = rest.events.first() else { panic!("{:?}", rest.events.first()) };
        assert_eq!((resumed.step, resumed.changes.len(), resumed.damaged.len()), (step, 0, 0));
        let rest = rest.ok();
        assert_eq!((rest.first_loss, rest.last_loss), (whole.first_loss, whole.last_loss));
        assert_eq!((rest.first_eval, rest.last_eval), (whole.first_eval, whole.last_eval));
        place.assert_same("whole", &name);
    }
}

#[test]
fn full_training_goes_on_bit_by_bit() {
    check(Setup::full);
}

#[test]
fn adapters_with_dropout_go_on_bit_by_bit() {
    check(|| Setup::new(recipe(Some(lora()))));
}

/// Codes are made anew from the weights that the run began with, and are the same.
#[test]
fn a_base_in_few_bits_goes_on_bit_by_bit() {
    for format in WEIGHT_FORMATS {
        check(|| {
            let mut setup = Setup {
                steps: 3,
                eval_every: None,
                ..Setup::new(Recipe { base: Some(format), ..recipe(Some(lora())) })
            };
            setup.spec.model = Model::from_shape(shape(64)).expect("valid");
            setup
        });
    }
}

/// A stream has to read its blocks again.
#[test]
fn streamed_data_goes_on_where_it_was() {
    check(|| Setup { streamed: true, ..Setup::full() });
}

/// Whatever an optimizer keeps, in whatever storage, is found by its role.
#[test]
fn every_optimizer_goes_on_bit_by_bit() {
    for (name, _) in OPTIMIZERS {
        check(|| {
            let freeze = vec!["model.layers.0.*".to_owned()];
            let recipe = Recipe { groups: trained_by(name), freeze, ..recipe(None) };
            Setup { shuffle: false, steps: 4, ..Setup::new(recipe) }
        });
    }
}

/// States of sixteen and of eight bits, rounded by a draw; matrices large enough to be stored in blocks.
#[test]
fn states_in_fewer_bits_go_on_bit_by_bit() {
    let states = [StateStorage::Bfloat16, StateStorage::Int8];
    for (name, state) in ["adamw", "muon", "adafactor"].into_iter().flat_map(|name| states.map(|state| (name, state))) {
        let settings = OptimizerSettings { state, momentum: Some(0.9), ..OptimizerSettings::default() };
        let groups = trained_with(name, settings);
        check(|| {
            let recipe = Recipe { groups: groups.clone(), ..recipe(None) };
            let mut setup = Setup { steps: 3, eval_every: None, ..Setup::new(recipe) };
            setup.spec.model = Model::from_shape(shape(64)).expect("valid");
            setup
        });
    }
}

/// Written from a snapshot while training goes on, checkpoints are the same, and so is what comes of them.
#[test]
fn checkpoints_beside_training_are_those_between_updates() {
    let place = Place::new();
    let beside = |mut setup: Setup| {
        setup.spec.pins.save = SavePin::Beside;
        setup
    };
    let saving = Saving { every: Some(1), keep: 9, best: Some(BestBy::Loss), ..Saving::default() };
    for (name, make) in [("full", Setup::full as fn() -> Setup), ("lora", || Setup::new(recipe(Some(lora()))))] {
        let [between_name, beside_name] = ["between", "beside"].map(|how| format!("{name}-{how}"));
        place.train(&between_name, &Setup { saving, ..make() }).ok();
        let ran = place.train(&beside_name, &beside(Setup { saving, ..make() }));
        let saved: Vec<u64> = (ran.events.iter())
            .filter_map(|event| match event {
                Event::Saved { step, .. } => Some(*step),
                _ => None,
            })
            .collect();
        assert_eq!(saved, [1, 2, 3, 4, 5, 6, 7], "each is told once");
        ran.ok();
        place.assert_same(&between_name, &beside_name);
        assert_eq!(place.checkpoints(&between_name), place.checkpoints(&beside_name));
        let checkpoints = |run: &str| place.path(run).join("checkpoints");
        for step in names(&checkpoints(&beside_name)).iter().filter(|name| name.starts_with("step-")) {
            let files = names(&checkpoints(&beside_name).join(step));
            assert_eq!(files, names(&checkpoints(&between_name).join(step)), "{name} {step}");
            // An adapter names the folder of its base, which is each run's own.
            let named = |file: &String| name == "lora" && (file == "adapter_config.json" || file == "manifest.json");
            for file in files.iter().filter(|file| !named(file)) {
                let read = |run: &str| fs::read(checkpoints(run).join(step).join(file)).expect("readable");
                assert!(read(&between_name) == read(&beside_name), "{name} {step} {file}");
            }
        }
        // Stopped while one is being written, the run ends with it.
        let stopped = format!("{name}-stopped");
        let first = place.train(&stopped, &beside(Setup { saving, ..make() }).stopped_after(4)).ok();
        assert!(first.interrupted && first.saved.ends_with("checkpoints/step-4"));
        place.train(&stopped, &beside(Setup { saving, ..make() })).ok();
        place.assert_same(&between_name, &stopped);
    }
}

/// Adapters mean nothing beside other weights than those they were trained on.
#[test]
fn adapters_do_not_go_on_beside_another_base() {
    let place = Place::new();
    place.train("base", &Setup { steps: 1, ..Setup::full() }).ok();
    let base = place.path("base/final");
    let adapters = || {
        let mut setup = Setup::new(recipe(Some(lora())));
        setup.spec.model = Model::find(&base.display().to_string()).expect("a model");
        setup
    };
    place.train("whole", &adapters()).ok();
    place.train("run", &adapters().stopped_after(3)).ok();
    // A copy is the same model, whenever it was made.
    let weights = base.join("model.safetensors");
    let content = fs::read(&weights).expect("readable");
    fs::remove_file(&weights).expect("there");
    let mut other = content.clone();
    let at = other.len() - 4;
    other[at] ^= 1;
    fs::write(&weights, &other).expect("writable");
    let before = (place.history("run"), place.checkpoints("run"));
    let refused = place.train("run", &adapters()).outcome.expect_err("another base");
    let TrainError::BaseChanged { change, .. } = &refused else { panic!("{refused}") };
    assert_eq!(change.file.as_deref(), Some("model.safetensors"), "{refused}");
    assert_eq!((place.history("run"), place.checkpoints("run")), before, "nothing is lost");
    fs::write(&weights, &content).expect("writable");
    place.train("run", &adapters()).ok();
    place.assert_same("whole", "run");
}

/// A run that was killed before its first checkpoint begins again, with no line left of what was.
#[test]
fn without_a_checkpoint_a_run_begins_again() {
    let place = Place::new();
    place.train("whole", &Setup::full()).ok();
    let saving = Saving { every: None, interval: None, ..Saving::default() };
    place.train("run", &Setup { saving, steps: 3, ..Setup::full() }).ok();
    fs::remove_dir_all(place.path("run/final")).expect("there");
    place.train("run", &Setup::full()).ok();
    place.assert_same("whole", "run");
}

#[test]
fn every_kind_of_damage_is_found_and_the_checkpoint_before_is_used() {
    let place = Place::new();
    place.train("whole", &Setup::full()).ok();
    place.train("stopped", &Setup::full().stopped_after(5)).ok();
    assert_eq!(place.checkpoints("stopped"), ["latest", "step-4", "step-5"]);
    let files = names(&place.path("stopped/checkpoints/step-5"));
    let expected = [
        "config.json",
        "manifest.json",
        "model.safetensors",
        "run.yaml",
        "state.safetensors",
        "tokenizer.json",
        "training.json",
    ];
    assert_eq!(files, expected);
    type Damage = fn(Vec<u8>) -> Option<Vec<u8>>;
    let kinds: [(&str, Damage); 4] = [
        ("flipped in the middle", |mut bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            Some(bytes)
        }),
        ("flipped at the end", |mut bytes| {
            *bytes.last_mut().expect("not empty") ^= 1;
            Some(bytes)
        }),
        ("truncated", |bytes| Some(bytes[..bytes.len() - 1].to_vec())),
        ("missing", |_| None),
    ];
    for file in &files {
        for (kind, damage) in kinds {
            let path = place.path("stopped/checkpoints/step-5").join(file);
            let whole = fs::read(&path).expect("readable");
            match damage(whole.clone()) {
                Some(bytes) => fs::write(&path, bytes).expect("writable"),
                None => fs::remove_file(&path).expect("there"),
            }
            let resume = Resume::find(&place.path("stopped")).expect("one is sound").expect("there are some");
            assert_eq!(resume.step(), 4, "{file} {kind}");
            assert_eq!(resume.damaged.len(), 1, "{file} {kind}");
            assert_eq!(&resume.damaged[0].file, file, "{kind}");
            fs::write(&path, whole).expect("writable");
        }
    }
    assert_eq!(Resume::find(&place.path("stopped")).expect("sound").expect("some").step(), 5);

    fs::write(place.path("stopped/checkpoints/step-5/state.safetensors"), "half").expect("writable");
    let rest = place.train("stopped", &Setup::full());
    let Some(Event::Resumed(resumed)) = rest.events.first() else { panic!("{:?}", rest.events.first()) };
    assert_eq!((resumed.step, resumed.damaged.len()), (4, 1));
    rest.ok();
    place.assert_same("whole", "stopped");
    assert!(place.checkpoints("stopped").contains(&"step-5.damaged".to_owned()), "whoever wants to may look at it");
}

#[test]
fn if_all_are_damaged_nothing_is_begun() {
    let place = Place::new();
    place.train("run", &Setup::full().stopped_after(5)).ok();
    for name in ["step-4", "step-5"] {
        fs::remove_file(place.path("run/checkpoints").join(name).join("training.json")).expect("there");
    }
    let history = place.history("run");
    let refused = place.train("run", &Setup::full()).outcome.expect_err("no state to go on from");
    let TrainError::NoSoundCheckpoint { damaged } = &refused else { panic!("{refused}") };
    assert_eq!(damaged.len(), 2);
    assert_eq!(place.history("run"), history, "nothing is touched");
}

/// What may change and what may not.
#[test]
fn changes_are_told_or_refused() {
    let place = Place::new();
    place.train("run", &Setup::full().stopped_after(2)).ok();
    let copy = |name: &str| {
        let from = place.path("run");
        let done = std::process::Command::new("cp").arg("-a").arg(from).arg(place.path(name)).status();
        assert!(done.expect("runs").success());
    };
    type Change = fn(&mut Setup);
    let told: [(&str, Effect, Change); 7] = [
        ("batch", Effect::Course, |s| s.spec.sequences = 6),
        ("schedule", Effect::Course, |s| s.steps = 9),
        ("clip", Effect::Course, |s| s.spec.recipe.clip = Some(0.5)),
        ("optimizer", Effect::Course, |s| s.spec.recipe.groups = faster("adamw", 0.5)),
        ("plan.micro_batch_tokens", Effect::Rounding, |s| s.spec.pins.micro_batch_tokens = Some(3 * 24)),
        ("plan.loss_chunks", Effect::Rounding, |s| s.spec.pins.loss_chunks = Some(4)),
        ("plan.mlp_chunks", Effect::Rounding, |s| s.spec.pins.mlp_chunks = Some(2)),
    ];
    for (key, effect, change) in told {
        copy(key);
        let mut setup = Setup::full();
        change(&mut setup);
        let ran = place.train(key, &setup);
        let Some(Event::Resumed(resumed)) = ran.events.first() else { panic!("{key}: {:?}", ran.outcome) };
        assert_eq!(resumed.changes.iter().map(|c| (c.key, c.effect)).collect::<Vec<_>>(), [(key, effect)]);
        assert_eq!(ran.ok().steps, setup.steps);
        assert_eq!(place.history(key)[..3], place.history("run")[..3], "what was done stays");
    }
    let refused: [(&str, Change); 7] = [
        ("model", |s| s.spec.model = Model::from_shape(shape(32)).expect("valid")),
        ("method", |s| s.spec.recipe.lora = Some(lora())),
        ("optimizer.name", |s| s.spec.recipe.groups = trained_by("sgd")),
        ("seed", |s| s.spec.seed = 8),
        ("schedule", |s| s.steps = 1),
        ("data", |s| s.shuffle = false),
        ("task", |s| s.spec.task = std::sync::Arc::new(plimsoll_train::Language::pretrain())),
    ];
    let before = (place.history("run"), place.checkpoints("run"));
    for (key, change) in refused {
        let mut setup = Setup::full();
        change(&mut setup);
        let error = place.train("run", &setup).outcome.expect_err(key);
        match &error {
            TrainError::Changed(change) => assert_eq!(change.key, key),
            TrainError::Data(_) => assert_eq!(key, "data"),
            other => panic!("{key}: {other}"),
        }
        assert_eq!((place.history("run"), place.checkpoints("run")), before, "{key}: nothing is lost");
    }
}

/// Whatever the disk refuses, the run goes on or ends with an error that says so, and the folder is good for another try.
#[test]
fn a_disk_that_refuses_loses_nothing() {
    refused_by_the_disk(SavePin::Between);
}

/// The same where checkpoints are written by a thread of their own.
#[test]
fn a_disk_that_refuses_beside_training_loses_nothing() {
    refused_by_the_disk(SavePin::Beside);
}

fn refused_by_the_disk(save: SavePin) {
    let place = Place::new();
    let setup = || {
        let mut setup = Setup { steps: 5, ..Setup::full() };
        setup.spec.pins.save = save;
        setup
    };
    let (whole, operations) = count(|| place.train("whole", &setup()));
    whole.ok();
    let mut went_on = 0;
    for at in 0..operations {
        let (number, lasting) =
            [(libc::ENOSPC, true), (libc::EIO, false), (libc::EROFS, true), (libc::ENOSPC, false)][at as usize % 4];
        let fault = if lasting { Fault::Lasting(number) } else { Fault::Once(number) };
        let name = format!("run-{at}");
        let (ran, _) = inject(fault, at, || place.train(&name, &setup()));
        match ran.outcome {
            Ok(outcome) => {
                went_on += u32::from(ran.events.iter().any(|event| matches!(event, Event::Warning { .. })));
                assert_eq!(outcome.steps, 5);
            }
            Err(error) => {
                let source =
                    std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>());
                assert_eq!(source.and_then(std::io::Error::raw_os_error), Some(number), "operation {at}: {error}");
            }
        }
        place.train(&name, &setup()).ok();
        place.assert_same("whole", &name);
        fs::remove_dir_all(place.path(&name)).expect("there");
    }
    assert!(went_on > 5, "a run survives many of these faults: {went_on}");
}

#[test]
fn a_run_that_cannot_save_says_so_and_goes_on() {
    let place = Place::new();
    place.train("whole", &Setup::full()).ok();
    // Until the fifth update, a file stands where the folder of checkpoints is to be.
    fs::create_dir(place.path("run")).expect("writable");
    let folder = RunFolder::claim(&place.path("run")).expect("empty");
    fs::write(place.path("run/checkpoints"), "").expect("writable");
    drop(folder);
    let ran = place.train("run", &Setup::full());
    let warned = ran.events.iter().filter(|e| matches!(e, Event::Warning { warning: Warning::Checkpoint { .. }, .. }));
    assert_eq!(warned.count(), 1, "tried again after a while, not at once");
    ran.ok();
    place.assert_same("whole", "run");
}

#[test]
fn a_run_takes_only_folders_of_its_own() {
    let place = Place::new();
    let claim = |name: &str| RunFolder::claim(&place.path(name));
    // Somebody else's.
    fs::create_dir_all(place.path("mine/final")).expect("writable");
    fs::write(place.path("mine/final/model.safetensors"), "precious").expect("writable");
    assert!(matches!(claim("mine"), Err(TrainError::NotARun { .. })));
    assert!(matches!(claim("."), Err(TrainError::NotARun { .. })));
    assert_eq!(names(&place.path("mine")), ["final"]);
    // One that nothing came of leaves nothing, and takes nothing that was there.
    fs::create_dir(place.path("empty")).expect("writable");
    drop(claim("empty").expect("empty"));
    assert!(names(&place.path("empty")).is_empty());
    drop(claim("new/below").expect("new"));
    assert!(!place.path("new").exists());
    let mut at = 0;
    while let Err(error) = inject(Fault::Lasting(libc::ENOSPC), at, || claim("full/below")).0 {
        assert!(!place.path("full").exists(), "operation {at} leaves something: {error}");
        at += 1;
    }
    assert!(at > 3, "there are operations that may fail");
    // One at a time.
    let held = claim("run").expect("new");
    assert_eq!(held.holds(), Holds::Nothing);
    assert!(matches!(claim("run"), Err(TrainError::InUse { .. })));
    drop(held);
    place.train("run", &Setup::full().stopped_after(2)).ok();
    assert_eq!(claim("run").expect("free").holds(), Holds::Unfinished);
    place.train("run", &Setup::full()).ok();
    assert_eq!(claim("run").expect("free").holds(), Holds::Finished);
}

#[test]
fn names_never_collide() {
    let place = Place::new();
    let runs = place.path("runs");
    let claimed: Vec<RunFolder> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..6).map(|_| scope.spawn(|| RunFolder::claim_new(&runs, "run").expect("free"))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut paths: Vec<String> = claimed
        .iter()
        .map(|folder| folder.path().file_name().and_then(|name| name.to_str()).expect("UTF-8").to_owned())
        .collect();
    paths.sort();
    assert_eq!(paths, ["run", "run-2", "run-3", "run-4", "run-5", "run-6"]);
    drop(claimed);
    assert!(names(&runs).is_empty());
    // What a run that was killed before it began leaves is taken; a run that has begun is not.
    fs::create_dir_all(runs.join("run")).expect("writable");
    fs::write(runs.join("run/.plimsoll-run"), "").expect("writable");
    let taken = || RunFolder::claim_new(&runs, "run").expect("free").path().to_owned();
    assert_eq!(taken(), runs.join("run"));
    fs::create_dir_all(runs.join("run")).expect("writable");
    fs::write(runs.join("run/.plimsoll-run"), "").expect("writable");
    fs::write(runs.join("run/metrics.jsonl"), "").expect("writable");
    assert_eq!(taken(), runs.join("run-2"));
}

#[test]
fn a_run_can_be_watched_and_stopped_from_outside() {
    let place = Place::new();
    assert!(run_status(&place.path("run")).is_none());
    assert!(!request_stop(&place.path("run")).expect("readable"), "nobody is there to be asked");
    let setup = Setup { steps: 100_000, eval_every: None, ..Setup::full() };
    let stopped = std::thread::scope(|scope| {
        let run = scope.spawn(|| place.train("run", &setup));
        while !request_stop(&place.path("run")).expect("writable") {
            std::thread::yield_now();
        }
        // It may be asked before it has begun.
        while !run.is_finished() {
            if let Some(status) = run_status(&place.path("run")) {
                assert!(status.steps == 100_000 && status.pid == std::process::id());
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        run.join().expect("no panic").ok()
    });
    assert!(stopped.interrupted && stopped.steps < 100_000);
    let runs = list_runs(&place.path("."));
    assert_eq!(runs.len(), 1);
    assert_eq!((runs[0].1.state, runs[0].1.step), (RunPhase::Stopped, stopped.steps));
    place.train("run", &Setup { steps: stopped.steps + 1, ..setup }).ok();
    assert_eq!(run_status(&place.path("run")).expect("a run").state, RunPhase::Finished);
}

#[test]
fn the_best_is_kept_without_any_other_checkpoint() {
    let place = Place::new();
    let saving = Saving { every: None, interval: None, keep: 1, best: Some(BestBy::Loss) };
    // With such a rate the loss soon rises.
    let recipe = Recipe { groups: faster("sgd", 500.0), clip: None, ..recipe(None) };
    let setup = Setup { saving, eval_every: Some(1), ..Setup::new(recipe) };
    let ran = place.train("run", &setup);
    let evals: Vec<(f64, u64)> = (ran.events.iter())
        .filter_map(|event| match event {
            Event::Eval { step, eval } if *step > 0 => Some((eval.loss, *step)),
            _ => None,
        })
        .collect();
    let (loss, step) = evals.iter().copied().min_by(|a, b| a.0.total_cmp(&b.0)).expect("some");
    assert!(step < setup.steps, "the loss rises in the end: {evals:?}");
    let (best, folder) = ran.ok().best.expect("the best is named");
    assert_eq!((best.value, best.step), (loss, step));
    assert!(folder.join("model.safetensors").exists());
    assert_eq!(place.checkpoints("run"), ["best", "latest", &format!("step-{step}")]);
    assert_eq!(
        fs::read_link(place.path("run/checkpoints/best")).expect("a link").to_str(),
        Some(&*format!("step-{step}"))
    );
}

#[test]
fn time_is_a_reason_to_save() {
    let place = Place::new();
    let saving = Saving { every: None, interval: Some(std::time::Duration::ZERO), ..Saving::default() };
    place.train("run", &Setup { saving, ..Setup::full() }).ok();
    assert_eq!(place.checkpoints("run"), ["latest", "step-5", "step-6"]);
}

/// One row has a letter whose embedding is not a number.
fn with_a_bad_row() -> Place {
    let place = Place::new();
    let mut rows = fs::read_to_string(place.path("rows.jsonl")).expect("readable");
    rows.push_str("{\"prompt\": \"~\", \"response\": \"1\"}\n");
    fs::write(place.path("rows.jsonl"), rows).expect("writable");
    place
}

fn guarded(guard: Guard) -> Setup {
    let change = |session: &mut plimsoll_train::Session| {
        let tokenizer = plimsoll_data::quickstart::tokenizer().expect("built in");
        let token = tokenizer.encode("~", false).expect("encodes")[0] as usize;
        let embedding = session.parameters().iter().find(|p| p.name.contains("embed")).expect("there is one");
        let (slot, cols) = (embedding.slot, embedding.shape.cols());
        let mut values = vec![0f32; embedding.shape.elements()];
        session.executor().read_slot(slot, &mut values).expect("readable");
        values[token * cols..(token + 1) * cols].fill(f32::NAN);
        session.executor().write_slot(slot, &values).expect("writable");
    };
    // All rows come once in seven updates of three.
    Setup { guard, change, eval_every: None, ..Setup::full() }
}

#[test]
fn a_bad_update_stops_the_run_and_its_origin_is_named() {
    let place = with_a_bad_row();
    let ran = place.train("run", &guarded(Guard::default()));
    let error = ran.outcome.expect_err("not a number");
    let TrainError::NotANumber { step, origin: Some(origin), .. } = &error else { panic!("{error}") };
    assert_eq!((origin.op, origin.layer), ("embed", None), "{error}");
    let last = step - 1;
    assert_eq!(place.history("run").len() as u64, last);
    if last > 0 {
        assert_eq!(Resume::find(&place.path("run")).expect("sound").expect("saved").step(), last);
    }
    // It would meet the same data again.
    let again = place.train("run", &guarded(Guard::default())).outcome.expect_err("not a number");
    assert_eq!(again.to_string(), error.to_string());
    assert_eq!(run_status(&place.path("run")).expect("a run").state, RunPhase::Failed);
}

#[test]
fn a_bad_update_is_passed_over_within_the_limit() {
    let place = with_a_bad_row();
    let skip = |limit| guarded(Guard { action: BadUpdate::Skip, limit, ..Guard::default() });
    let ran = place.train("whole", &skip(1));
    let skips: Vec<u64> = (ran.events.iter())
        .filter_map(|event| match event {
            Event::Skipped { step, skip } => {
                assert_eq!((skip.count, skip.limit), (1, 1));
                Some(*step)
            }
            _ => None,
        })
        .collect();
    assert_eq!(skips.len(), 1);
    let outcome = ran.ok();
    assert!(outcome.last_loss.is_some_and(f64::is_finite));
    // What was passed over stays so, wherever the run is stopped.
    for step in 1..7 {
        let name = format!("stopped-{step}");
        place.train(&name, &skip(1).stopped_after(step)).ok();
        place.train(&name, &skip(1)).ok();
        place.assert_same("whole", &name);
    }
    let refused = place.train("none", &skip(0)).outcome.expect_err("the limit is reached");
    assert!(matches!(refused, TrainError::NotANumber { .. }), "{refused}");
}

/// A row unlike all others stands out once the others are learnt.
#[test]
fn a_spike_is_passed_over_and_nothing_of_it_is_applied() {
    let place = Place::new();
    let rows = fs::read_to_string(place.path("rows.jsonl")).expect("readable");
    let odd = "{\"prompt\": \"~\", \"response\": \"@@@@@@@@@@@@\"}\n";
    fs::write(place.path("rows.jsonl"), rows + odd).expect("writable");
    let guard = Guard { action: BadUpdate::Skip, limit: 50, spike: Some(1.1) };
    let ran = place.train("run", &Setup { guard, steps: 80, eval_every: None, ..Setup::full() });
    let (mut losses, mut skipped) = (Vec::new(), 0);
    for event in &ran.events {
        match event {
            Event::Step(step) => losses.push(step.loss),
            Event::Skipped { skip, .. } => {
                let Bad::Spike { loss, usual } = skip.bad else { panic!("{skip}") };
                assert!(loss > 1.1 * usual);
                skipped += 1;
            }
            _ => {}
        }
    }
    assert!(skipped > 0 && losses.len() == 80, "every update is done once: {losses:?}");
    ran.ok();
}
