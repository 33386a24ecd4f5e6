//! Which language is spoken.

use std::borrow::Cow;

use crate::catalogue::chinese;
use crate::phrases::{Listening, Phrases};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Language {
    #[default]
    English,
    Chinese,
}

/// Chooses the language of Plimsoll alone.
pub const VARIABLE: &str = "PLIMSOLL_LANG";
/// Those of the locale, the strongest first; the first that is set decides.
const LOCALE: [&str; 3] = ["LC_ALL", "LC_MESSAGES", "LANG"];

impl Language {
    pub const VARIABLE: &str = VARIABLE;
    pub const ALL: [Self; 2] = [Self::English, Self::Chinese];

    /// Its code, as `--lang` takes it.
    pub const fn code(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::Chinese => "zh",
        }
    }

    /// What a page calls its language.
    pub const fn tag(self) -> &'static str {
        match self {
            Self::English => "en",
            Self::Chinese => "zh-CN",
        }
    }

    /// The language of a code or of a locale's name: `zh`, `zh_CN.UTF-8`, `en_GB`.
    pub fn named(name: &str) -> Option<Self> {
        let code = name.split(['_', '-', '.', '@']).next().unwrap_or_default();
        Self::ALL.into_iter().find(|language| code.eq_ignore_ascii_case(language.code()))
    }

    /// The language of an environment; what is wrong with [`VARIABLE`] where it names none.
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        match set(VARIABLE) {
            Some(name) => Self::named(&name).ok_or(name),
            // A locale of a language that is not spoken here is none of the user's mistakes.
            None => {
                Ok(LOCALE.iter().find_map(|name| set(name)).and_then(|name| Self::named(&name)).unwrap_or_default())
            }
        }
    }

    /// A text for people: every line a sentence. Words alone are left, since they may be names.
    pub fn say(self, text: &str) -> Cow<'_, str> {
        self.spoken(text, Listening::ForSentences)
    }

    /// What stands in a table, on a button or before a bar, where words alone are meant as words.
    pub fn word(self, text: &str) -> Cow<'_, str> {
        self.spoken(text, Listening::ForWords)
    }

    /// A text that the program always has, such as a label.
    pub fn label(self, text: &'static str) -> &'static str {
        match self {
            Self::English => text,
            Self::Chinese => chinese().exact(text).unwrap_or(text),
        }
    }

    fn spoken(self, text: &str, listening: Listening) -> Cow<'_, str> {
        match self {
            Self::English => Cow::Borrowed(text),
            Self::Chinese => Cow::Owned(lines(text, |line| Phrases::of(chinese(), line).spoken(listening))),
        }
    }
}

/// Each line on its own, in the place where it stands.
fn lines(text: &str, say: impl Fn(&str) -> Option<String>) -> String {
    let line = |line: &str| {
        let inner = line.trim();
        let Some(said) = say(inner) else { return line.to_owned() };
        let begin = line.len() - line.trim_start().len();
        let end = line.trim_end().len();
        format!("{}{said}{}", &line[..begin], &line[end.max(begin)..])
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_strongest_variable_decides() {
        let of = |set: &[(&str, &str)]| {
            Language::of_environment(|name| set.iter().find(|(known, _)| *known == name).map(|(_, v)| (*v).to_owned()))
        };
        let (english, chinese) = (Ok(Language::English), Ok(Language::Chinese));
        assert_eq!(of(&[]), english);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8")]), chinese);
        assert_eq!(of(&[("LANG", "zh")]), chinese);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8"), ("LC_ALL", "C")]), english);
        assert_eq!(of(&[("LANG", "en_US.UTF-8"), ("LC_MESSAGES", "zh_TW")]), chinese);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8"), ("LC_ALL", "")]), chinese, "empty is not set");
        assert_eq!(of(&[("LANG", "de_DE.UTF-8")]), english);
        assert_eq!(of(&[("PLIMSOLL_LANG", "en"), ("LC_ALL", "zh_CN")]), english);
        assert_eq!(of(&[("PLIMSOLL_LANG", "zh-CN"), ("LC_ALL", "C")]), chinese);
        assert_eq!(of(&[("PLIMSOLL_LANG", "fr")]), Err("fr".to_owned()));
    }

    #[test]
    fn english_is_left_as_it_is() {
        assert!(matches!(Language::English.say("nothing is wrong"), Cow::Borrowed("nothing is wrong")));
    }

    #[test]
    fn a_line_keeps_its_place() {
        let say = |line: &str| (line == "a b").then(|| "甲乙".to_owned());
        assert_eq!(lines("  a b\nc\n\ta b ", say), "  甲乙\nc\n\t甲乙 ");
        assert_eq!(lines("", say), "");
    }
}
