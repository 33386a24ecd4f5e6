//! What a template may cost: it comes with a model, from whoever published it.
//!
//! Instructions are counted (fuel), what it makes and writes is bounded, and so is every width by which a filter would
//! fill up text. Numbers far above anything that a conversation needs.

use minijinja::value::{Kwargs, Rest, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State, filters};

use super::made;
use crate::read::ROW_BYTES_MAX;

/// Instructions of one rendering: a few dozen for each message, some thousand for tools and nested loops.
const FUEL: u64 = 4_000_000;
/// Of the text rendered: a row may be this large, and its markup not larger than itself.
pub(super) const RENDERED_BYTES_MAX: usize = 2 * ROW_BYTES_MAX;
/// Columns that text is indented or filled up by.
pub(super) const WIDTH_MAX: usize = 256;
/// Parts that a list is divided into.
const PARTS_MAX: usize = 10_000;

pub(super) fn apply(environment: &mut Environment<'static>) {
    environment.set_fuel(Some(FUEL));
    environment.add_filter("indent", indent);
    environment.add_filter("slice", slice);
    environment.add_filter("batch", batch);
    environment.add_filter("format", format);
}

fn too_large(what: &str, value: usize, max: usize) -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("{what} of {value} is more than {max}"))
}

pub(super) fn check_width(width: usize) -> Result<usize, Error> {
    if width <= WIDTH_MAX { Ok(width) } else { Err(too_large("an indentation", width, WIDTH_MAX)) }
}

/// Jinja's own, with a bound: lines but the first are indented, blank ones are not, unless told.
fn indent(
    text: String,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    options: Kwargs,
) -> Result<String, Error> {
    let width = check_width(width.or(options.get("width")?).unwrap_or(4))?;
    let first = first.or(options.get("first")?).unwrap_or(false);
    let blank = blank.or(options.get("blank")?).unwrap_or(false);
    options.assert_all_used()?;
    let lines = text.bytes().filter(|byte| *byte == b'\n').count() + 1;
    made::charge(text.len().saturating_add(lines.saturating_mul(width)))?;
    let by = " ".repeat(width);
    let mut out = String::with_capacity(text.len());
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        if if number == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&by);
        }
        out.push_str(line);
    }
    Ok(out)
}

fn slice(state: &State, value: Value, count: usize, fill_with: Option<Value>) -> Result<Value, Error> {
    if count <= PARTS_MAX {
        filters::slice(state, value, count, fill_with)
    } else {
        Err(too_large("a number of slices", count, PARTS_MAX))
    }
}

fn batch(state: &State, value: Value, count: usize, fill_with: Option<Value>) -> Result<Value, Error> {
    if count <= PARTS_MAX {
        filters::batch(state, value, count, fill_with)
    } else {
        Err(too_large("a batch", count, PARTS_MAX))
    }
}

/// printf's way; the width is part of the text.
fn format(state: &mut State, text: &Value, values: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    check_format(text.as_str().unwrap_or_default())?;
    filters::format(state, text, values)
}

/// Widths and precisions of up to three digits, none that are computed.
pub(super) fn check_format(text: &str) -> Result<(), Error> {
    let digits = text.as_bytes().split(|byte| !byte.is_ascii_digit()).map(<[u8]>::len).max().unwrap_or(0);
    if digits > 3 || text.contains('*') || text.contains(":{") {
        let message = "a format with a width of more than three digits, or a computed one";
        return Err(Error::new(ErrorKind::InvalidOperation, message));
    }
    Ok(())
}

/// Of what is printed as it stands in a template, step for step the longest piece.
const RAW_BYTES_MAX: usize = 4 * RENDERED_BYTES_MAX;

/// Instructions for a template whose longest piece of text is so long.
pub(super) fn fuel(longest: usize) -> u64 {
    FUEL.min((RAW_BYTES_MAX / longest.max(1)) as u64)
}
