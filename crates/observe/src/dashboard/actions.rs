//! What the page asks to have done, and what there is to ask for.

use std::path::Path;

use serde::Deserialize;
use serde_json::json;

use super::answer::Answer;
use super::request::Request;
use super::routes::find;
use super::{Draft, Launcher, Refused};

/// The run that something is to be done to.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    run: String,
}

/// What is asked of the launcher and changes nothing; `None` if it is something else.
pub fn look(launcher: &dyn Launcher, request: &Request) -> Option<Answer> {
    match request.path.as_str() {
        "/api/choices" => Some(Answer::json(&launcher.choices())),
        "/api/launched" => Some(Answer::json(&launcher.launched())),
        _ => None,
    }
}

pub fn act(launcher: &dyn Launcher, runs: &Path, request: &Request) -> Answer {
    let done = match request.path.as_str() {
        "/api/draft" => {
            draft(request).and_then(|draft| launcher.plan(&draft)).map(|planned| Answer::json_with(200, &planned))
        }
        "/api/start" => draft(request)
            .and_then(|draft| launcher.start(&draft))
            .map(|name| Answer::json_with(202, &json!({"run": name}))),
        "/api/stop" => on_run(runs, request, |run| launcher.stop(run)),
        "/api/resume" => on_run(runs, request, |run| launcher.resume(run)),
        _ => return Answer::refusal(404),
    };
    done.unwrap_or_else(|refused| Answer::json_with(refused.status, &refused))
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
