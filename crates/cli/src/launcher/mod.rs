//! What the dashboard has done for its page: every wish becomes a command of this program, in a process of its own. So a
//! run goes on without the dashboard, and planning leaves no memory behind, neither here nor on a GPU.

mod choices;
mod settings;
mod started;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use plimsoll_observe::dashboard::{Choices, Draft, Launched, Launcher, Planned, Refused};
use plimsoll_run::Code;
use plimsoll_speech::Language;
use plimsoll_train::{RunPhase, is_under_way, request_stop, run_status};

pub use choices::found;
use settings::{Settings, shown};
use started::Started;

pub struct Commands {
    /// The folder of the runs.
    runs: PathBuf,
    /// Below which models and data are looked for.
    folders: Vec<PathBuf>,
    offered: Mutex<Choices>,
    /// One plan at a time: each takes all processors.
    planning: Mutex<()>,
    started: Started,
    /// That of the pictures that runs draw.
    language: Language,
}

const POISONED: &str = "nobody panics while holding it";

impl Commands {
    pub fn new(runs: &Path, folders: &[PathBuf], language: Language) -> Self {
        Self {
            runs: runs.to_owned(),
            folders: folders.to_owned(),
            offered: Mutex::default(),
            planning: Mutex::default(),
            started: Started::default(),
            language,
        }
    }

    /// What a draft comes to. It may only name what was offered, so that no path of the page's own is ever opened.
    fn settings(&self, draft: &Draft) -> Result<Settings, Refused> {
        let settings = settings::of(draft, &self.offered.lock().expect(POISONED));
        // What was put there since is offered, too.
        settings.or_else(|_| settings::of(draft, &self.choices()))
    }

    /// The name of a new run and its folder.
    fn place(&self, draft: &Draft) -> Result<(String, PathBuf), Refused> {
        let name = settings::run_name(draft)?;
        let free = |name: &String| !self.runs.join(name).exists();
        if draft.name.is_empty() {
            let numbered = (2..).map(|n| format!("{name}-{n}"));
            let name = std::iter::once(name.clone()).chain(numbered).find(free).expect("numbers do not end");
            let folder = self.runs.join(&name);
            return Ok((name, folder));
        }
        if !free(&name) {
            return Err(Refused::conflict(format!("there is a run named {name}; choose another name")));
        }
        let folder = self.runs.join(&name);
        Ok((name, folder))
    }
}

impl Launcher for Commands {
    fn choices(&self) -> Choices {
        let choices = choices::found(&self.folders, &self.runs);
        self.offered.lock().expect(POISONED).clone_from(&choices);
        choices
    }

    fn plan(&self, draft: &Draft) -> Result<Planned, Refused> {
        let settings = self.settings(draft)?;
        let _turn = self.planning.lock().expect(POISONED);
        // What it says goes to the page, which puts it into the language of whoever looks at it.
        let mut command = program(Language::English)?;
        command.arg("plan").args(settings.args()).args(["--json", "--quiet"]).stdin(Stdio::null());
        let output = command.output().map_err(|error| Refused::failed(format!("cannot plan: {error}")))?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let report = serde_json::from_slice(&output.stdout).unwrap_or_default();
        let command = shown("train", &settings);
        match output.status.code() {
            Some(0) => Ok(Planned { fits: true, report, said, command }),
            Some(code) if code == Code::DoesNotFit as i32 => Ok(Planned { fits: false, report, said, command }),
            _ => Err(Refused::wrong(said)),
        }
    }

    fn start(&self, draft: &Draft) -> Result<String, Refused> {
        let settings = self.settings(draft)?;
        let (name, folder) = self.place(draft)?;
        let mut command = program(self.language)?;
        command.arg("train").args(settings.args()).args(["--fresh", "--quiet", "--out"]).arg(folder);
        self.started.spawn(&name, command)?;
        Ok(name)
    }

    fn stop(&self, run: &Path) -> Result<(), Refused> {
        match request_stop(run) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Refused::conflict("the run is not under way")),
            Err(error) => Err(Refused::failed(format!("cannot ask the run to stop: {error}"))),
        }
    }

    fn resume(&self, run: &Path) -> Result<(), Refused> {
        let state = run_status(run).map(|status| status.state);
        if is_under_way(run) || !matches!(state, Some(RunPhase::Stopped | RunPhase::Failed)) {
            return Err(Refused::conflict("only a run that was stopped or has failed can go on"));
        }
        let name = run.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let mut command = program(self.language)?;
        // Under the configuration that it has; without a checkpoint, from its beginning.
        command.arg("train").arg(run.join("run.yaml")).args(["--quiet", "--out"]).arg(run);
        self.started.spawn(&name, command)
    }

    fn launched(&self) -> Vec<Launched> {
        self.started.list()
    }
}

/// This program, speaking a language.
fn program(language: Language) -> Result<Command, Refused> {
    let path = std::env::current_exe().map_err(|error| Refused::failed(format!("cannot find plimsoll: {error}")))?;
    let mut command = Command::new(path);
    command.env(Language::VARIABLE, language.code());
    Ok(command)
}
