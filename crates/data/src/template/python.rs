//! Python's notion of white space, which is wider than Unicode's by the four separators U+001C to U+001F.

use minijinja::value::Value;
use minijinja::value::from_args;
use minijinja::{Error, State};
use minijinja_contrib::pycompat;

use super::made;

pub(crate) fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1C}'..='\u{1F}')
}

pub(crate) fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

/// Jinja's filter: `str.strip`.
pub(super) fn trim(value: &Value, chars: Option<String>) -> String {
    let text = value.to_str().map_or_else(|| value.to_string(), |text| text.to_string());
    match chars {
        Some(chars) => text.trim_matches(|c| chars.contains(c)).to_owned(),
        None => strip(&text).to_owned(),
    }
}

/// Methods of strings that depend on white space; all others are left to MiniJinja's own.
pub(super) fn method(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    made::before_method(value, method, args)?;
    made::after_method(called(state, value, method, args)?)
}

fn called(state: &mut State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else { return pycompat::unknown_method_callback(state, value, method, args) };
    // Asked for one argument that may be none: `strip(none)` is `strip()`.
    let by_space = |args: &[Value]| matches!(args, []) || matches!(args, [only] if only.is_none());
    match method {
        "strip" if by_space(args) => Ok(Value::from(strip(text))),
        "lstrip" if by_space(args) => Ok(Value::from(text.trim_start_matches(is_space))),
        "rstrip" if by_space(args) => Ok(Value::from(text.trim_end_matches(is_space))),
        "isspace" => {
            let () = from_args(args)?;
            Ok(Value::from(!text.is_empty() && text.chars().all(is_space)))
        }
        "split" if by_space(args) => {
            Ok(text.split(is_space).filter(|word| !word.is_empty()).map(Value::from).collect())
        }
        "format" => {
            super::limits::check_format(text)?;
            pycompat::unknown_method_callback(state, value, method, args)
        }
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}
