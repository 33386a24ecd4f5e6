//! What the view says.

use plimsoll_speech::Language;

#[derive(Clone, Copy)]
pub struct Text {
    pub language: Language,
    pub loss: &'static str,
    pub evaluation: &'static str,
    pub learning_rate: &'static str,
    pub memory: &'static str,
    pub by_category: &'static str,
    pub within_update: &'static str,
    pub planned: &'static str,
    pub budget: &'static str,
    pub used: &'static str,
    pub update_time: &'static str,
    pub forward_backward: &'static str,
    pub optimizer: &'static str,
    pub waiting: &'static str,
    pub rest: &'static str,
    pub machine: &'static str,
    pub processors: &'static str,
    pub host: &'static str,
    pub swap: &'static str,
    pub of: &'static str,
    pub log: &'static str,
    pub step: &'static str,
    pub left: &'static str,
    pub nothing_yet: &'static str,
    /// Shorter and shorter: the first that fits is shown.
    pub keys: [&'static str; 3],
    pub running: &'static str,
    pub stopped: &'static str,
    pub finished: &'static str,
    pub failed: &'static str,
}

impl Text {
    pub fn of(language: Language) -> Self {
        let say = |text| language.label(text);
        Self {
            language,
            loss: say("Loss"),
            evaluation: say("evaluation"),
            learning_rate: say("Learning rate"),
            memory: say("Memory"),
            by_category: say("Planned memory"),
            within_update: say("Planned over"),
            planned: say("planned"),
            budget: say("budget"),
            used: say("used"),
            update_time: say("An update's time"),
            forward_backward: say("forward, backward"),
            optimizer: say("optimizer"),
            waiting: say("waiting for data"),
            rest: say("the rest"),
            machine: say("This machine"),
            processors: say("processors"),
            host: say("host memory"),
            swap: say("swap"),
            of: say("of"),
            log: say("Log"),
            step: say("step"),
            left: say("left"),
            nothing_yet: say("no update has been written yet"),
            keys: [
                say(
                    "q leave (the run goes on)   r recent / all   s smooth   m used / planned memory   t schedule   ↑ ↓ scroll the log",
                ),
                say("q leave (the run goes on)  r recent  s smooth  m memory  t schedule  ↑ ↓ log"),
                say("q leave  r s m t ↑ ↓"),
            ],
            running: say("running"),
            stopped: say("stopped"),
            finished: say("finished"),
            failed: say("failed"),
        }
    }
}
