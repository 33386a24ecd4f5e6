//! What the page asks to have done, and what there is to ask for.

use std::path::Path;

use plimsoll_speech::Language;
use serde::Deserialize;
use serde_json::json;

use super::answer::Answer;
use super::request::Request;
use super::routes::find;
use super::spoken::spoken;
use super::{Draft, Launcher, Refused};

/// The run that something is to be done to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    run: String,
}

/// What is asked of the launcher and changes nothing; `None` if it is something else.
pub fn look(launcher: &dyn Launcher, request: &Request, language: Language) -> Option<Answer> {
    match request.path.as_str() {
        "/api/choices" => Some(Answer::json(&launcher.choices())),
        "/api/launched" => Some(Answer::json(&spoken(&launcher.launched(), language))),
        _ => None,
    }
}

pub fn act(launcher: &dyn Launcher, runs: &Path, request: &Request, language: Language) -> Answer {
    let done = match request.path.as_str() {
        "/api/draft" => {
            let planned = draft(request).and_then(|draft| launcher.plan(&draft));
            planned.map(|planned| Answer::json_with(200, &spoken(&planned, language)))
        }
        "/api/start" => draft(request)
            .and_then(|draft| launcher.start(&draft))
            .map(|name| Answer::json_with(202, &json!({"run": name}))),
        "/api/stop" => on_run(runs, request, |run| launcher.stop(run)),
        "/api/resume" => on_run(runs, request, |run| launcher.resume(run)),
        _ => return Answer::refusal(404),
    };
    done.unwrap_or_else(|refused| Answer::json_with(refused.status, &spoken(&refused, language)))
}

fn draft(request: &Request) -> Result<Draft, Refused> {
    serde_json::from_slice(&request.body).map_err(|error| Refused::wrong(format!("no draft of a run: {error}")))
}

fn on_run(runs: &Path, request: &Request, act: impl FnOnce(&Path) -> Result<(), Refused>) -> Result<Answer, Refused> {
    let named: Named =
        serde_json::from_slice(&request.body).map_err(|error| Refused::wrong(format!("no name of a run: {error}")))?;
    let no_run = || Refused { status: 404, message: "there is no such run".to_owned() };
    let run = find(runs, &named.run).ok_or_else(no_run)?;
    act(&run).map(|()| Answer::json_with(202, &json!({"run": named.run})))
}
