//! The Jinja dialect of Hugging Face's `apply_chat_template`: Python methods, `raise_exception`, `strftime_now`, plain
//! JSON, and blocks that take their line's white space with them.

use std::fmt::Write;
use std::ops::Range;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Utc};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::{limits, made, python};

/// The dialect with everything counted that a template makes.
pub(super) fn environment(now: SystemTime) -> Environment<'static> {
    let mut environment = dialect(now);
    made::apply(&mut environment);
    environment
}

/// What templates take for the present.
pub(super) fn set_now(environment: &mut Environment<'_>, now: SystemTime) {
    environment.add_function("strftime_now", move |format: String| strftime(now, &format));
}

pub(super) fn syntax() -> SyntaxConfig {
    let mut syntax = SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    syntax.build().unwrap_or_default()
}

pub(super) fn dialect(now: SystemTime) -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_syntax(syntax());
    environment.set_unknown_method_callback(python::method);
    limits::apply(&mut environment);
    environment.add_filter("trim", python::trim);
    environment.add_function("raise_exception", raise_exception);
    environment.add_filter("mark_generation", mark_generation);
    set_now(&mut environment, now);
    environment.add_filter("tojson", to_json);
    environment.add_test("iterable", is_iterable);
    environment
}

/// The message a user should see: what the template raised, or what Jinja could not do.
pub(super) fn reason(error: &Error) -> String {
    let mut text = match error.kind() {
        ErrorKind::OutOfFuel => "it takes too many steps: its loops do not end".to_owned(),
        ErrorKind::WriteFailure => {
            let cause = std::error::Error::source(error);
            cause.map_or_else(|| error.to_string(), std::string::ToString::to_string)
        }
        _ => error.detail().map_or_else(|| error.to_string(), str::to_owned),
    };
    if let Some(line) = error.line() {
        let _ = write!(text, " (template line {line})");
    }
    text
}

/// Around what a `{% generation %}` block prints. Unicode keeps these two for a program's own use and no text has them.
const BEGIN: char = '\u{FDD0}';
const END: char = '\u{FDD1}';

/// `{% generation %}` blocks become blocks of a filter that puts marks around what they print: tag for tag, so that the
/// white-space control of their tags keeps working. Also says whether there was any.
pub(super) fn with_generation_marks(source: &str) -> (String, bool) {
    let mut out = String::with_capacity(source.len());
    let (mut rest, mut any) = (source, false);
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}") else {
            break;
        };
        let (before, tag) = (&rest[..open], &rest[open..open + length + 2]);
        out.push_str(before);
        match tag.trim_matches(['{', '%', '}', '-', '+', ' ', '\t', '\n', '\r']) {
            "generation" => {
                any = true;
                out.push_str(&tag.replace("generation", "filter mark_generation"));
            }
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endfilter")),
            _ => out.push_str(tag),
        }
        rest = &rest[open + length + 2..];
    }
    out.push_str(rest);
    (out, any)
}

fn mark_generation(printed: &str) -> String {
    format!("{BEGIN}{printed}{END}")
}

/// The text without marks, and what was between them. A template may cut marked text apart; a mark without its other
/// half means nothing.
pub(super) fn take_marks(marked: &str) -> (String, Vec<Range<usize>>) {
    let mut text = String::with_capacity(marked.len());
    let (mut spans, mut begin) = (Vec::new(), None);
    let mut rest = marked;
    while let Some(at) = rest.find([BEGIN, END]) {
        text.push_str(&rest[..at]);
        let is_begin = rest[at..].starts_with(BEGIN);
        rest = &rest[at + BEGIN.len_utf8()..];
        if is_begin {
            begin = Some(text.len());
        } else if let Some(begin) = begin.take().filter(|begin| *begin < text.len()) {
            spans.push(begin..text.len());
        }
    }
    text.push_str(rest);
    (text, spans)
}

pub(super) fn holds_marks(value: &serde_json::Value) -> bool {
    match value {
        serde_json::Value::String(text) => text.contains([BEGIN, END]),
        serde_json::Value::Array(list) => list.iter().any(holds_marks),
        serde_json::Value::Object(map) => map.values().any(holds_marks),
        _ => false,
    }
}

fn raise_exception(message: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message))
}

/// MiniJinja lets none be iterated; in Python it cannot be, and templates ask `tools is iterable` to learn if there are any.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

fn strftime(now: SystemTime, format: &str) -> Result<String, Error> {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().cast_signed());
    let moment: DateTime<Utc> = DateTime::from_timestamp(seconds, 0).unwrap_or_default();
    let mut text = String::new();
    // An unknown specifier is an error from `write!`; `to_string` would panic.
    write!(text, "{}", moment.format(format)).map_err(|_| {
        let message = format!("strftime_now cannot format {format:?}");
        Error::new(ErrorKind::InvalidOperation, message)
    })?;
    Ok(text)
}

/// Jinja's own filter escapes `<`, `>`, `&` and `'` for HTML; templates for models expect what Python's `json.dumps`
/// writes.
fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<Vec<String>> = options.get("separators")?;
    let sort_keys: Option<bool> = options.get("sort_keys")?;
    // Text is never escaped to ASCII here, which is what Hugging Face's own filter defaults to.
    let _: Option<Value> = options.get("ensure_ascii")?;
    options.assert_all_used()?;
    if sort_keys == Some(true) {
        let message = "tojson(sort_keys=true) is not supported";
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    let compact = separators.is_some_and(|s| s.first().is_some_and(|item| item == ","));
    let mut out = CountedJson::default();
    let written = match indent {
        None if compact => value.serialize(&mut Serializer::new(&mut out)),
        None => value.serialize(&mut Serializer::with_formatter(&mut out, Spaced)),
        Some(width) => {
            let spaces = vec![b' '; limits::check_width(width)?];
            let pretty = PrettyFormatter::with_indent(&spaces);
            value.serialize(&mut Serializer::with_formatter(&mut out, pretty))
        }
    };
    let invalid = |error: String| Error::new(ErrorKind::InvalidOperation, error);
    written.map_err(|error| invalid(error.to_string()))?;
    String::from_utf8(out.0).map_err(|error| invalid(error.to_string()))
}

/// JSON that is counted while it grows.
#[derive(Default)]
struct CountedJson(Vec<u8>);

impl std::io::Write for CountedJson {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        made::charge(bytes.len() + made::PIECE_BYTES).map_err(std::io::Error::other)?;
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// `, ` and `: ` between items, as Python writes JSON by default.
struct Spaced;

impl Formatter for Spaced {
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, writer: &mut W, first: bool) -> std::io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, writer: &mut W) -> std::io::Result<()> {
        writer.write_all(b": ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use minijinja::context;

    fn check(template: &str, expected: &str) {
        let mut env = environment(UNIX_EPOCH);
        let (source, _) = with_generation_marks(template);
        env.add_template_owned("t", source).expect("compiles");
        let data = context! { m => context! { k => "a<b'" }, s => "  x-y " };
        let template = env.get_template("t").expect("is there");
        let text = template.render(data).expect("renders");
        assert_eq!(text.replace(BEGIN, "<<").replace(END, ">>"), expected);
    }

    #[test]
    fn speaks_the_dialect() {
        check("{{ m | tojson }}", r#"{"k": "a<b'"}"#);
        check("{{ [1, m] | tojson(indent=2) }}", "[\n  1,\n  {\n    \"k\": \"a<b'\"\n  }\n]");
        check("{{ m | tojson(separators=(',', ':')) }}", r#"{"k":"a<b'"}"#);
        check("{{ s.strip().split('-')[1] }}", "y");
        check("{{ s.lstrip().startswith('x') and 'yes' }}", "yes");
        check("{{ strftime_now('%d %b %Y') }}", "01 Jan 1970");
        check("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc");
        check("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01");
        check(
            "{{ none is iterable }} {{ s is iterable }} {{ [] is iterable }} {{ 1 is iterable }}",
            "False True True False",
        );
        check("{{ m.get('z', 'none') ~ m['k'] }}", "nonea<b'");
    }

    #[test]
    fn generation_blocks_are_marked_and_see_what_is_around_them() {
        check("x {%- generation -%} y {% endgeneration %}\nz", "x<<y >>z");
        check(
            "{% for i in [1, 2] %}{% generation %}{{ i }}{{ loop.index }}{{ s|trim }}{% endgeneration %}{% endfor %}",
            "<<11x-y>><<22x-y>>",
        );
        check("{% set n = namespace(k=0) %}{% generation %}{% set n.k = 2 %}{% endgeneration %}{{ n.k }}", "<<>>2");
        check(
            "{% for i in [1, 2] %}\n    {% generation %}\n    a\n    {% endgeneration %}\n{% endfor %}",
            "<<    a\n>><<    a\n>>",
        );
        let (text, spans) = take_marks("a\u{FDD0}b\u{FDD1}\u{FDD1}c\u{FDD0}\u{FDD1}\u{FDD0}d");
        assert_eq!(text, "abcd");
        assert_eq!(spans, std::iter::once(1..2).collect::<Vec<_>>());
    }

    #[test]
    fn white_space_is_pythons() {
        check("[{{ '\u{1f}\u{a0} a \u{1c}\u{85}'.strip() }}]", "[a]");
        check("[{{ '\u{1f} a\u{1d} ' | trim }}{{ '\u{1f}b'.lstrip() }}{{ 'c\u{1e}'.rstrip() }}]", "[abc]");
        check("{{ 'a\u{1c}b c'.split() | join('+') }} {{ '\u{1f}'.isspace() }}", "a+b+c True");
        check("[{{ 'xxax'.strip('x') }}{{ 'yby' | trim('y') }}{{ ' d\u{200b}' | trim }}]", "[abd\u{200b}]");
        check("{{ 'a\nb\n\nc' | indent(2) }}|{{ 'a\nb' | indent(width=1, first=true) }}", "a\n  b\n\n  c| a\n b");
        check("{{ '%s=%d' | format('a', 3) }} {{ '{}-{:>3}'.format(1, 'b') }}", "a=3 1-  b");
    }

    #[test]
    fn a_raised_exception_is_the_reason() {
        let mut env = environment(UNIX_EPOCH);
        env.add_template("t", "\n{{ raise_exception('roles must alternate') }}").expect("compiles");
        let error = env.get_template("t").expect("is there").render(context! {});
        let text = reason(&error.expect_err("raises"));
        assert_eq!(text, "roles must alternate (template line 2)");
    }

    #[test]
    fn an_unknown_date_specifier_is_an_error() {
        assert!(strftime(UNIX_EPOCH, "%Q!").is_err());
    }
}
