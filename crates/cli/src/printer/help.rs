//! Help and usage errors of clap in another language: its text comes in English with every help on one line, is said line
//! by line, and broken here, where the width of Chinese characters counts.

use plimsoll_speech::Language;
use unicode_width::UnicodeWidthStr;

use super::wrap::{words, wrapped};

/// As wide as help ever is.
pub const WIDTH_MAX: usize = 100;

/// Between a flag and its help.
const GAP: &str = "  ";
/// What stands for others in a line of usage.
const PLACES: [(&str, &str); 3] = [("[OPTIONS]", "[选项]"), ("[COMMAND]", "[命令]"), ("<COMMAND>", "<命令>")];

pub fn said(text: &str, language: Language, width: usize) -> String {
    let width = width.min(WIDTH_MAX);
    let lines: Vec<String> = text.trim_end().lines().map(|line| said_line(line, language, width)).collect();
    lines.join("\n")
}

fn said_line(line: &str, language: Language, width: usize) -> String {
    let inner = line.trim_start();
    let indent = line.len() - inner.len();
    let head = " ".repeat(indent);
    // A flag, a command or a value stands before its help.
    if let Some((flag, help)) = inner.split_once(GAP).filter(|_| indent > 0) {
        let gap = help.len() - help.trim_start().len();
        let column = indent + flag.width() + GAP.len() + gap;
        let room = width.saturating_sub(column).max(1);
        let mut parts = words(&said_help(help.trim_start(), language), room, room).into_iter();
        let mut text = format!("{head}{flag}{GAP}{}{}", " ".repeat(gap), parts.next().unwrap_or_default());
        for part in parts {
            text += &format!("\n{}{part}", " ".repeat(column));
        }
        return text;
    }
    if let Some(message) = inner.strip_prefix("error: ") {
        return wrapped(&format!("{}{}", language.label("error:"), language.say(message)), Some(width));
    }
    let mut said = said_help(inner, language);
    if inner.starts_with("Usage: ") {
        said = PLACES.into_iter().fold(said, |said, (place, word)| said.replace(place, word));
    }
    wrapped(&format!("{head}{said}"), Some(width))
}

/// A help, with what clap puts behind it in brackets.
fn said_help(help: &str, language: Language) -> String {
    let said = language.say(help);
    if said != help {
        return said.into_owned();
    }
    match help.rsplit_once(" [").filter(|_| help.ends_with(']')) {
        Some((before, bracket)) => {
            let bracket = format!("[{bracket}");
            format!("{} {}", said_help(before, language), language.word(&bracket))
        }
        None => language.word(help).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_said_and_broken_behind_its_flag() {
        let text = "Options:\n      --gpu <SIZE>  GPU memory budget: a size such as 12GiB, a percentage of the available memory, or auto\n  \
                    -h, --help        Print help\n\nUsage: plimsoll plan [OPTIONS]\n";
        assert_eq!(
            said(text, Language::Chinese, 48),
            "选项：\n      --gpu <SIZE>  显存预算：大小（如 12GiB）、\n                    可用显存的百分比，或 auto\n  \
             -h, --help        打印帮助\n\n用法：plimsoll plan [选项]"
        );
    }

    #[test]
    fn what_clap_puts_behind_is_said_too() {
        let help = |text| said_help(text, Language::Chinese);
        assert_eq!(help("The shell"), "shell");
        assert_eq!(
            help("Overwrite an existing file [default: a] [possible values: a, b]"),
            "覆盖已有的文件 [默认：a] [可取的值：a, b]"
        );
        assert_eq!(help("Begin with the last N lines [default: all]"), "从最后 N 行开始 [默认：全部]");
    }

    #[test]
    fn errors_are_said() {
        let error = "error: unexpected argument '--x' found\n\n  tip: a similar argument exists: '--gpu'\n\nFor more information, try '--help'.\n";
        assert_eq!(
            said(error, Language::Chinese, 80),
            "错误：未知的参数 '--x'\n\n  提示：有相似的参数：'--gpu'\n\n更多信息请使用 '--help'。"
        );
    }
}
