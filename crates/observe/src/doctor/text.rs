//! What each finding says, in one language.

use super::Finding;
use super::problem::{Problem, Starved};

pub fn english(problem: &Problem) -> Finding {
    let (text, remedy) = words(problem);
    Finding { code: problem.code(), severity: problem.severity(), text, remedy }
}

fn words(problem: &Problem) -> (String, String) {
    use Problem as P;
    match problem {
        P::Swapping { .. }
        | P::SwapInUse { .. }
        | P::HostFull { .. }
        | P::GroupNearLimit { .. }
        | P::GroupKilled { .. }
        | P::Overloaded { .. }
        | P::DiskFull { .. }
        | P::SharedMemorySmall { .. } => host(problem),
        P::NoCard | P::NoDriver { .. } | P::OldDriver { .. } | P::MissingLibrary { .. } | P::StaleRun { .. } => {
            software(problem)
        }
        P::Hot { .. }
        | P::PowerBrake { .. }
        | P::PowerLimited { .. }
        | P::PowerLimitLowered { .. }
        | P::NarrowBus { .. } => speed(problem),
        _ => card(problem),
    }
}

fn host(problem: &Problem) -> (String, String) {
    match problem {
        Problem::Swapping { bytes_per_s, used_bytes, gpu_busy_percent } => {
            let gpu = gpu_busy_percent.map_or_else(String::new, |busy| {
                format!("; the GPU was busy {busy:.0} % of the time, so any pauses come from this and not from the loading of data")
            });
            (
                format!("the host swaps {}/s, with {} swapped out{gpu}", size(*bytes_per_s), bytes(*used_bytes)),
                "give the run less host memory (--host), stop other programs, or use fewer or smaller data workers; \
                 the GPU's batch size has nothing to do with it"
                    .into(),
            )
        }
        Problem::SwapInUse { used_bytes } => (
            format!("{} are swapped out, but nothing moves now: this is from earlier", bytes(*used_bytes)),
            "nothing to do as long as the host does not swap".into(),
        ),
        Problem::HostFull { available_bytes, limit_bytes } => (
            format!("only {} of {} host memory are available", bytes(*available_bytes), bytes(*limit_bytes)),
            "lower the host budget (--host), stream the data, or stop other programs".into(),
        ),
        Problem::GroupNearLimit { used_bytes, limit_bytes, version } => (
            format!(
                "this container or job uses {} of its limit of {} (cgroup v{version})",
                bytes(*used_bytes),
                bytes(*limit_bytes)
            ),
            "raise the limit (docker --memory, Slurm --mem, Kubernetes resources.limits.memory), or lower the host \
             budget (--host): at the limit the kernel ends the process"
                .into(),
        ),
        Problem::GroupKilled { kills, limit_bytes } => (
            format!(
                "the kernel has ended {kills} processes here because the limit of {} was reached",
                bytes(*limit_bytes)
            ),
            "a run that vanished without a message was one of them; raise the limit or lower the host budget (--host)"
                .into(),
        ),
        Problem::Overloaded { load, cpus } => (
            format!("the load is {load:.1} on {cpus:.0} processors"),
            "use fewer data workers, or wait until other programs are done".into(),
        ),
        Problem::DiskFull { path, available_bytes, total_bytes } => (
            format!("{} of {} are left on the disk of {path}", bytes(*available_bytes), bytes(*total_bytes)),
            "remove old checkpoints and caches, keep fewer checkpoints (save.keep), or write to another disk (--out)"
                .into(),
        ),
        Problem::SharedMemorySmall { total_bytes } => (
            format!("/dev/shm has {}", bytes(*total_bytes)),
            "PyTorch's data workers need more: docker run --shm-size=8g, or --ipc=host. Plimsoll does not use it"
                .into(),
        ),
        _ => unreachable!("words() sends only these here"),
    }
}

fn software(problem: &Problem) -> (String, String) {
    match problem {
        Problem::NoCard => {
            ("no GPU was found".into(), "runs train on the CPU; `plan --device NAME` plans for a GPU".into())
        }
        Problem::NoDriver { cards } => (
            format!("{cards} NVIDIA GPUs are on the bus, but their driver does not answer"),
            "install the NVIDIA driver; in a container, start it with --gpus all".into(),
        ),
        Problem::OldDriver { version } => {
            (format!("the NVIDIA driver {version} is too old for CUDA 12"), "install driver 525 or newer".into())
        }
        Problem::MissingLibrary { name, install } => {
            (format!("{name} was not found, so the GPU cannot be used"), install.clone())
        }
        Problem::StaleRun { folder, pid, bytes: held, silent_s } => (
            format!(
                "the run in {folder} (process {pid}) has not made a step for {:.0} minutes and holds {} of the GPU",
                silent_s / 60.0,
                bytes(*held)
            ),
            format!("look at `plimsoll logs {folder}`; `plimsoll stop {folder}` or `plimsoll doctor --yes` ends it"),
        ),
        _ => unreachable!("words() sends only these here"),
    }
}

fn card(problem: &Problem) -> (String, String) {
    match problem {
        Problem::Starved { gpu, busy_percent, why } => {
            let (evidence, remedy) = match why {
                Starved::Processors { busy } => (
                    format!("all processors are {:.0} % busy", busy * 100.0),
                    "prepare the data once instead of at every step: tokenise it into a cache",
                ),
                Starved::Disk { waiting } => (
                    format!("the processors wait for disks {:.0} % of the time", waiting * 100.0),
                    "move the data to a local disk, or read it in order instead of at random",
                ),
                Starved::OneThread { process } => (
                    format!("one thread of process {process} is at its limit while other processors are idle"),
                    "use more data workers, or larger micro-batches: the one thread prepares data or launches kernels",
                ),
            };
            (format!("{gpu} was busy {busy_percent:.0} % of the time; {evidence}"), remedy.into())
        }
        Problem::IdleHolder { gpu, pid, name, owner: None, bytes: held } => (
            format!("process {pid} ({name}) holds {} of {gpu} and computes nothing", bytes(*held)),
            format!("if it is yours and done, end it: kill {pid}"),
        ),
        Problem::IdleHolder { gpu, pid, name, owner: Some(owner), bytes: held } => (
            format!("process {pid} ({name} of {owner}) holds {} of {gpu} and computes nothing", bytes(*held)),
            format!("ask {owner} whether it is still needed, or use another GPU"),
        ),
        Problem::HalfEmpty { gpu, used_bytes, total_bytes, busy_percent } => (
            format!(
                "{gpu} is {busy_percent:.0} % busy with {} of {} in use",
                bytes(*used_bytes),
                bytes(*total_bytes)
            ),
            format!(
                "{} would pay for larger micro-batches or for less recompute; `plimsoll plan RUN.yaml` shows what they bring",
                bytes(total_bytes - used_bytes)
            ),
        ),
        Problem::CardFull { gpu, used_bytes, total_bytes, python: None } => (
            format!("{gpu} is full: {} of {}", bytes(*used_bytes), bytes(*total_bytes)),
            "nothing else fits beside it; give a run that starts now another GPU".into(),
        ),
        Problem::CardFull { gpu, used_bytes, total_bytes, python: Some(pid) } => (
            format!(
                "{gpu} is full: {} of {}; if process {pid} is PyTorch, part of it may be reserved and not in use, which \
                 cannot be seen from outside",
                bytes(*used_bytes),
                bytes(*total_bytes)
            ),
            "nothing else fits beside it; in that process torch.cuda.memory_allocated() says what is in use and \
             torch.cuda.memory_reserved() what is held"
                .into(),
        ),
        Problem::Spill { gpu, used_bytes, total_bytes, bus_bytes_per_s, power_w, limit_w } => (
            format!(
                "{gpu} seems to compute in host memory: {} of {} in use, busy, yet at {power_w:.0} of {limit_w:.0} W and \
                 with {}/s over the bus",
                bytes(*used_bytes),
                bytes(*total_bytes),
                size(*bus_bytes_per_s)
            ),
            "give the run a budget below the card's memory (--gpu), and on Windows set \"CUDA - Sysmem Fallback Policy\" \
             to \"Prefer No Sysmem Fallback\""
                .into(),
        ),
        Problem::Fragmented { pid, name, reserved_bytes, allocated_bytes } => (
            format!(
                "process {pid} ({name}) has reserved {} and uses {} of it",
                bytes(*reserved_bytes),
                bytes(*allocated_bytes)
            ),
            "in PyTorch, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True before it starts, and pad less unevenly"
                .into(),
        ),
        Problem::Shared { gpu, processes } => {
            let list = processes.iter().map(|(pid, name, user, held)| match user.is_empty() {
                true => format!("{pid} ({name}, {})", bytes(*held)),
                false => format!("{pid} ({name} of {user}, {})", bytes(*held)),
            });
            (
                format!("several processes share {gpu}: {}", list.collect::<Vec<_>>().join(", ")),
                "each slows the others down and may take the memory they count on; use another GPU or wait".into(),
            )
        }
        _ => unreachable!("words() sends only these here"),
    }
}

fn speed(problem: &Problem) -> (String, String) {
    let clock =
        |share: &Option<f64>| share.map_or_else(String::new, |s| format!(", at {:.0} % of its clock", s * 100.0));
    match problem {
        Problem::Hot { gpu, temperature_c, share, clock_share } => {
            let degrees = temperature_c.map_or_else(|| "its".to_owned(), |c| format!("{c:.0} °C"));
            (
                format!(
                    "{gpu} slows down because of {degrees} temperature in {:.0} % of the samples{}",
                    share * 100.0,
                    clock(clock_share)
                ),
                "improve the air flow, clean the fans, or lower the power limit a little (nvidia-smi -pl)".into(),
            )
        }
        Problem::PowerBrake { gpu, share } => (
            format!("the power supply slows {gpu} down in {:.0} % of the samples", share * 100.0),
            "check the supply and its cables; in a rack, ask for its power cap".into(),
        ),
        Problem::PowerLimited { gpu, power_w, limit_w, clock_share } => (
            format!("{gpu} runs at its power limit: {power_w:.0} of {limit_w:.0} W{}", clock(clock_share)),
            "this is normal for a card that is well used; less work per token (less recompute) is what makes it faster"
                .into(),
        ),
        Problem::PowerLimitLowered { gpu, limit_w, default_w } => (
            format!("the power limit of {gpu} is {limit_w:.0} W, below its default of {default_w:.0} W"),
            format!("if nobody wants it so: nvidia-smi -pl {default_w:.0}"),
        ),
        Problem::NarrowBus { gpu, width, width_max } => (
            format!("{gpu} is connected with {width} of {width_max} PCIe lanes"),
            "offloading will be slower by that factor; seat the card in a full slot".into(),
        ),
        _ => unreachable!("words() sends only these here"),
    }
}

fn bytes(bytes: u64) -> String {
    size(bytes as f64)
}

fn size(bytes: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1073741824.0, "GiB"), (1048576.0, "MiB"), (1024.0, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes / unit),
        None => format!("{bytes:.0} B"),
    }
}
