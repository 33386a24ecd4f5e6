//! `plimsoll doctor`: what this machine is, who uses it, and what is wrong with it.

use std::path::Path;
use std::time::Duration;

use plimsoll_observe::doctor::{Finding, diagnose, stale_runs};
use plimsoll_observe::machine::{
    Driver, Gpu, GpuMoment, KnownRun, Machine, MissingLibrary, Process, Sampler, Throttle, cards_on_bus, read_host,
    read_process, read_user,
};
use plimsoll_observe::runs::{RunState, list_runs};
use plimsoll_run::{CardInventory, CardReading, Failure, Monitor, RUNS, bytes, missing_libraries};
use plimsoll_train::request_stop;
use serde_json::json;

use crate::args::DoctorArgs;
use crate::printer::{Column, Printer, Table};

/// Between two looks at the machine.
const PAUSE: Duration = Duration::from_millis(250);

pub fn run(args: &DoctorArgs, printer: &Printer) -> Result<(), Failure> {
    let machine = match &args.replay {
        Some(path) => recorded(path)?,
        None => {
            printer.note(format!("watching this machine for {} s", args.seconds));
            watched(args)
        }
    };
    if let Some(path) = &args.record {
        let text = serde_json::to_vec_pretty(&machine).expect("plain data");
        let unwritten = |error| Failure::failed(format!("cannot write {}: {error}", path.display()));
        plimsoll_files::write(path, &text).map_err(unwritten)?;
        printer.note(format!("recorded in {}", path.display()));
    }
    let findings = diagnose(&machine);
    if printer.is_json() {
        printer.json(&json!({
            "gpus": machine.gpus,
            "host": machine.host,
            "driver": machine.driver,
            "findings": findings,
        }));
    } else {
        show_cards(&machine, printer);
        show_host(&machine, printer);
        show_findings(&findings, printer);
    }
    match args.replay {
        Some(_) => Ok(()),
        None => end_stale_runs(&machine, args.yes, printer),
    }
}

/// Asks runs of ours that hang to stop: those for which somebody says so, or all where that was said before.
fn end_stale_runs(machine: &Machine, yes: bool, printer: &Printer) -> Result<(), Failure> {
    for (run, held) in stale_runs(machine) {
        let question = format!("stop the run in {}, which holds {} of GPU memory?", run.folder, bytes(held));
        if !yes && !printer.confirm(&question)? {
            continue;
        }
        let folder = Path::new(&run.folder);
        let asked = request_stop(folder)
            .map_err(|error| Failure::failed(format!("cannot ask {} to stop: {error}", run.folder)))?;
        printer.note(match asked {
            true => format!("asked {} to stop; if it does not within a minute: kill {}", run.folder, run.pid),
            false => format!("{} is no longer running", run.folder),
        });
    }
    Ok(())
}

fn recorded(path: &Path) -> Result<Machine, Failure> {
    let text = std::fs::read(path).map_err(|e| Failure::usage(format!("{}: {e}", path.display())))?;
    serde_json::from_slice(&text)
        .map_err(|e| Failure::usage(format!("{} is no recording of a machine: {e}", path.display())))
}

fn watched(args: &DoctorArgs) -> Machine {
    let root = Path::new("/");
    let monitor = Monitor::open();
    let cards = monitor.as_ref().map(Monitor::inventory).unwrap_or_default();
    let holders: Vec<u32> = cards.iter().flat_map(|card| card.holders.iter().map(|holder| holder.pid)).collect();
    let mut sampler = Sampler::new(root, &holders);
    let count = (args.seconds / PAUSE.as_secs_f64()).round() as usize + 1;
    let readings = || monitor.as_ref().map(Monitor::readings).unwrap_or_default();
    sampler.sample(count, PAUSE, || readings().iter().map(moment).collect());
    let gpus = cards.iter().map(|card| gpu(root, card, &sampler)).collect();
    Machine {
        gpus,
        host: read_host(root, &[Path::new("."), &std::env::temp_dir()]),
        driver: Driver {
            version: monitor.as_ref().and_then(Monitor::driver_version),
            cards_on_bus: cards_on_bus(root),
            missing: missing_libraries()
                .into_iter()
                .map(|library| MissingLibrary { name: library.what.to_owned(), install: library.hint.to_owned() })
                .collect(),
        },
        user: read_user(root),
        runs: known_runs(),
        moments: sampler.into_moments(),
    }
}

/// Runs under `runs/` that say they are under way.
fn known_runs() -> Vec<KnownRun> {
    let runs = list_runs(Path::new(RUNS)).unwrap_or_default();
    let running = runs.into_iter().filter(|run| run.state == RunState::Running);
    running
        .filter(|run| run.pid > 0)
        .map(|run| KnownRun { folder: run.run.display().to_string(), pid: run.pid, silent_s: run.silent_s })
        .collect()
}

fn gpu(root: &Path, card: &CardInventory, sampler: &Sampler) -> Gpu {
    let process = |holder: &plimsoll_run::Holder| {
        let found = read_process(root, holder.pid).unwrap_or_default();
        let name = if found.name.is_empty() { holder.name.clone().unwrap_or_default() } else { found.name.clone() };
        let (pid, bytes) = (holder.pid, holder.bytes.unwrap_or(0));
        Process { pid, name, bytes, cpus: sampler.cpus(pid), ..found }
    };
    Gpu {
        name: card.name.clone(),
        total_bytes: card.total_bytes,
        used_bytes: card.used_bytes,
        power_limit_w: card.power_limit_w,
        power_default_w: card.power_default_w,
        temperature_slowdown_c: card.temperature_slowdown_c,
        pcie_width: card.pcie_width,
        pcie_width_max: card.pcie_width_max,
        processes: card.holders.iter().map(process).collect(),
    }
}

fn moment(reading: &CardReading) -> GpuMoment {
    let slowed = reading.slowed;
    let reasons =
        [(slowed.by_power, Throttle::Power), (slowed.by_heat, Throttle::Heat), (slowed.by_brake, Throttle::Brake)];
    GpuMoment {
        busy_percent: reading.busy_percent,
        used_bytes: reading.used_bytes,
        power_w: reading.power_w,
        temperature_c: reading.temperature_c,
        clock_mhz: reading.clock_mhz,
        clock_max_mhz: reading.clock_max_mhz,
        bus_bytes_per_s: reading.pcie_bytes_per_s,
        throttled: reasons.into_iter().filter_map(|(is_so, reason)| is_so.then_some(reason)).collect(),
    }
}

fn show_cards(machine: &Machine, printer: &Printer) {
    if machine.gpus.is_empty() {
        return;
    }
    let columns = [Column::names("GPU"), Column::right("used"), Column::right("total"), Column::right("busy")];
    let more = [Column::right("temperature"), Column::right("power"), Column::right("limit")];
    let mut cards = Table::new(&[&columns[..], &more].concat());
    let columns = [Column::right("process"), Column::names("name"), Column::names("user"), Column::right("GPU memory")];
    let mut processes = Table::new(&[&columns[..], &[Column::names("command")]].concat());
    let mut any = false;
    for (index, gpu) in machine.gpus.iter().enumerate() {
        let now = machine.moments.last().and_then(|moment| moment.gpus.get(index)).cloned().unwrap_or_default();
        let watts = |watts: Option<f64>| watts.map_or_else(String::new, |w| format!("{w:.0} W"));
        cards.row([
            format!("{index} {}", gpu.name),
            bytes(gpu.used_bytes),
            bytes(gpu.total_bytes),
            format!("{:.0} %", now.busy_percent),
            now.temperature_c.map_or_else(String::new, |c| format!("{c:.0} °C")),
            watts(now.power_w),
            watts(gpu.power_limit_w),
        ]);
        for p in &gpu.processes {
            any = true;
            processes.row([p.pid.to_string(), p.name.clone(), p.user.clone(), bytes(p.bytes), p.command.clone()]);
        }
    }
    printer.tables(&[cards]);
    if any {
        printer.tables(&[processes]);
    }
}

fn show_host(machine: &Machine, printer: &Printer) {
    let host = &machine.host;
    let mut table = Table::new(&[Column::left("host"), Column::right("available"), Column::right("total")]);
    table.row(["memory".to_owned(), bytes(host.available_bytes), bytes(host.total_bytes)]);
    if let Some(group) = &host.group {
        let available = group.limit_bytes.saturating_sub(group.used_bytes);
        table.row([format!("cgroup v{} limit", group.version), bytes(available), bytes(group.limit_bytes)]);
    }
    if host.swap_total_bytes > 0 {
        let free = host.swap_total_bytes.saturating_sub(host.swap_used_bytes);
        table.row(["swap".to_owned(), bytes(free), bytes(host.swap_total_bytes)]);
    }
    for disk in host.shared_memory.iter().chain(&host.disks) {
        table.row([disk.path.clone(), bytes(disk.available_bytes), bytes(disk.total_bytes)]);
    }
    table.row([
        "processors".to_owned(),
        format!("{:.1}", (host.cpus - host.load).max(0.0)),
        format!("{:.0}", host.cpus),
    ]);
    printer.tables(&[table]);
    if let Some(version) = &machine.driver.version {
        printer.data(format!("NVIDIA driver {version}"));
    }
}

fn show_findings(findings: &[Finding], printer: &Printer) {
    if findings.is_empty() {
        printer.data("nothing is wrong");
    }
    for finding in findings {
        printer.finding(finding);
    }
}
