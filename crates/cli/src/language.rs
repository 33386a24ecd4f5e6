//! The language that the user has chosen: by a flag, by the environment, or by the locale.

use clap::{CommandFactory, FromArgMatches, Parser};
use plimsoll_run::Failure;
use plimsoll_speech::Language;

use crate::args::Cli;

const FLAG: &str = "--lang";

/// Known before the command line is understood, so that what is wrong with that can be said.
pub fn chosen() -> Result<Language, Failure> {
    let flag = flagged(std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()));
    if let Some(language) = flag {
        return Ok(language);
    }
    let variable = |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    Language::of_environment(variable).map_err(|name| {
        Failure::usage(format!("{} is `{name}`, which is not a language of plimsoll", Language::VARIABLE))
            .hint("expected en or zh")
    })
}

/// The language of the flag, wherever it stands; clap finds out what is wrong with it.
fn flagged(args: impl Iterator<Item = String>) -> Option<Language> {
    let mut args = args.take_while(|arg| arg != "--");
    let mut found = None;
    while let Some(arg) = args.next() {
        let name = match arg.strip_prefix(FLAG) {
            Some("") => args.next(),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => None,
        };
        found = name.and_then(|name| Language::named(&name)).or(found);
    }
    found
}

/// Understands the command line. Help comes in whole lines where it is to be said in another language.
pub fn parse(language: Language) -> Result<Cli, clap::Error> {
    if language == Language::English {
        return Cli::try_parse();
    }
    let mut matches = Cli::command().term_width(0).try_get_matches()?;
    Cli::from_arg_matches_mut(&mut matches)
}

/// A file of keys with its comments in a language.
pub fn commented(text: &str, language: Language) -> String {
    let line = |line: &str| match line.rsplit_once("# ") {
        Some((before, comment)) => format!("{before}# {}\n", language.say(comment)),
        None => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_said_and_keys_are_left() {
        let text = "# Begin another weight file beyond this size\nseed: 42  # The file to write\nclip: 1.0\n";
        assert_eq!(commented(text, Language::English), text);
        let said = "# 超过此大小时另起一个权重文件\nseed: 42  # 要写入的文件\nclip: 1.0\n";
        assert_eq!(commented(text, Language::Chinese), said);
    }

    #[test]
    fn the_flag_is_found_wherever_it_stands() {
        let of = |args: &[&str]| flagged(args.iter().map(|arg| (*arg).to_owned()));
        assert_eq!(of(&["plan", "run.yaml"]), None);
        assert_eq!(of(&["--lang", "zh", "plan"]), Some(Language::Chinese));
        assert_eq!(of(&["plan", "--lang=zh"]), Some(Language::Chinese));
        assert_eq!(of(&["plan", "--lang", "en", "--json"]), Some(Language::English));
        assert_eq!(of(&["plan", "--lang", "fr"]), None);
        assert_eq!(of(&["plan", "--lang"]), None);
        assert_eq!(of(&["generate", "--", "--lang", "zh"]), None);
        assert_eq!(of(&["--language", "zh"]), None);
    }
}
