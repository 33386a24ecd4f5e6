//! What a template makes on the way to its text. One that doubles a string needs thirty steps for a gibibyte, so beside
//! steps every byte is counted that operators, filters and methods make and that is printed.

use std::borrow::Cow;
use std::cell::Cell;
use std::fmt::{self, Write};
use std::sync::LazyLock;

use minijinja::machinery::{Instruction, Instructions, Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Rest, Tuple, Value, ValueKind, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Output, State, context, escape_formatter, filters};

use super::jinja;
use super::limits::RENDERED_BYTES_MAX;

/// Of all values that one rendering makes, also of those that it drops.
const MADE_BYTES_MAX: usize = 2 * RENDERED_BYTES_MAX;
/// Of constants that are made while a template is compiled.
const CONSTANT_BYTES_MAX: usize = 16 << 20;
/// A value in a list.
const VALUE_BYTES: usize = size_of::<Value>();
/// What each piece of a text counts beside its bytes: many small ones take time.
pub(super) const PIECE_BYTES: usize = 32;

thread_local! {
    static MADE: Cell<usize> = const { Cell::new(0) };
    static PRINTED: Cell<usize> = const { Cell::new(0) };
}

/// A rendering begins on this thread.
pub(super) fn begin() {
    MADE.set(0);
    PRINTED.set(0);
}

fn count(
    counter: &'static std::thread::LocalKey<Cell<usize>>,
    bytes: usize,
    max: usize,
    what: &str,
) -> Result<(), Error> {
    let sum = counter.get().saturating_add(bytes);
    counter.set(sum);
    if sum <= max {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidOperation, format!("the template {what} more than {max} bytes")))
}

pub(super) fn charge(bytes: usize) -> Result<(), Error> {
    count(&MADE, bytes, MADE_BYTES_MAX, "makes values of")
}

/// Text that is counted while it grows.
#[derive(Default)]
struct Counted(String);

impl Write for Counted {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        charge(text.len() + PIECE_BYTES).map_err(|_| fmt::Error)?;
        self.0.push_str(text);
        Ok(())
    }
}

fn printed(arguments: fmt::Arguments<'_>) -> Result<String, Error> {
    let mut text = Counted::default();
    // The only reason why it can fail.
    text.write_fmt(arguments)
        .map_err(|_| charge(MADE_BYTES_MAX).err().unwrap_or_else(|| ErrorKind::WriteFailure.into()))?;
    Ok(text.0)
}

/// What a value takes, its parts not counted.
fn shallow_bytes(value: &Value) -> usize {
    match value.as_str() {
        Some(text) => text.len(),
        None => value.len().unwrap_or(0).saturating_mul(VALUE_BYTES),
    }
}

/// Operators by the functions that stand for them, which no template can name.
const OPERATORS: [&str; 4] = ["~", "+", "*", "[:]"];

/// Filters whose result grows with what they are given.
const FILTERS: [&str; 21] = [
    "lower",
    "upper",
    "title",
    "capitalize",
    "trim",
    "reverse",
    "sort",
    "unique",
    "slice",
    "batch",
    "split",
    "lines",
    "items",
    "dictsort",
    "groupby",
    "chain",
    "zip",
    "urlencode",
    "escape",
    "e",
    "list",
];

/// The dialect itself, where values are not counted.
static PLAIN: LazyLock<Environment<'static>> = LazyLock::new(|| jinja::dialect(std::time::UNIX_EPOCH));

pub(super) fn apply(environment: &mut Environment<'static>) {
    environment.add_function("~", concat);
    environment.add_function("+", add);
    environment.add_function("*", multiply);
    environment.add_function("[:]", slice);
    for name in FILTERS {
        environment.add_filter(name, move |arguments: Rest<ValueOrKwargs>| {
            let made = PLAIN.empty_state().apply_filter(name, &arguments.into_values())?;
            charge(shallow_bytes(&made))?;
            Ok::<Value, Error>(made)
        });
    }
    apply_to_items(environment);
    environment.add_filter("string", |value: Value| match value.as_str() {
        Some(_) => Ok(value),
        None => printed(format_args!("{value}")).map(Value::from),
    });
    environment.add_filter("pprint", |value: &Value| printed(format_args!("{value:#?}")));
    environment.add_filter("replace", |text: String, from: String, to: String| {
        charge_replaced(&text, &from, &to)?;
        Ok::<String, Error>(text.replace(&from, &to))
    });
    environment.add_filter("join", |value: &Value, rest: Rest<ValueOrKwargs>| {
        let rest = rest.into_values();
        let between = rest.first().and_then(Value::as_str).map_or(0, str::len);
        charge_joined(value, between)?;
        let arguments: Vec<Value> = std::iter::once(value.clone()).chain(rest).collect();
        PLAIN.empty_state().apply_filter("join", &arguments)
    });
    environment.set_formatter(print);
}

/// Filters that apply others, which must be the counted ones.
fn apply_to_items(environment: &mut Environment<'static>) {
    type More = Rest<ValueOrKwargs>;
    fn counted(made: Result<Vec<Value>, Error>) -> Result<Vec<Value>, Error> {
        let made = made?;
        charge(made.len() * VALUE_BYTES)?;
        Ok(made)
    }
    environment
        .add_filter("map", |state: &mut State, list: Value, more: More| counted(filters::map(state, list, more)));
    environment.add_filter("select", |state: &mut State, list: Value, test: Option<Cow<'_, str>>, more: More| {
        counted(filters::select(state, list, test, more))
    });
    environment.add_filter("reject", |state: &mut State, list: Value, test: Option<Cow<'_, str>>, more: More| {
        counted(filters::reject(state, list, test, more))
    });
    environment.add_filter(
        "selectattr",
        |state: &mut State, list: Value, attribute: Cow<'_, str>, test: Option<Cow<'_, str>>, more: More| {
            counted(filters::selectattr(state, list, attribute, test, more))
        },
    );
    environment.add_filter(
        "rejectattr",
        |state: &mut State, list: Value, attribute: Cow<'_, str>, test: Option<Cow<'_, str>>, more: More| {
            counted(filters::rejectattr(state, list, attribute, test, more))
        },
    );
}

/// Prints into the text or into a variable.
fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    let bytes = match value.as_str() {
        Some(text) => text.len(),
        // It could be a list of lists of lists that are all the same.
        None => printed(format_args!("{value}"))?.len(),
    };
    count(&PRINTED, bytes, RENDERED_BYTES_MAX, "writes")?;
    escape_formatter(out, state, value)
}

fn charge_replaced(text: &str, from: &str, to: &str) -> Result<(), Error> {
    let times = if from.is_empty() { text.chars().count() + 1 } else { text.matches(from).count() };
    charge(text.len().saturating_add(times.saturating_mul(to.len())))
}

fn charge_joined(list: &Value, between: usize) -> Result<(), Error> {
    for item in list.try_iter()? {
        let bytes = match item.as_str() {
            Some(text) => text.len(),
            None => printed(format_args!("{item}"))?.len(),
        };
        charge(bytes + between)?;
    }
    Ok(())
}

/// Before a method runs that can make more than it is given.
pub(super) fn before_method(value: &Value, method: &str, arguments: &[Value]) -> Result<(), Error> {
    match (method, value.as_str(), arguments) {
        ("replace", Some(text), [from, to, ..]) => match (from.as_str(), to.as_str()) {
            (Some(from), Some(to)) => charge_replaced(text, from, to),
            _ => Ok(()),
        },
        ("join", Some(between), [list]) => charge_joined(list, between.len()),
        _ => Ok(()),
    }
}

pub(super) fn after_method(made: Value) -> Result<Value, Error> {
    charge(shallow_bytes(&made))?;
    Ok(made)
}

fn concat(left: &Value, right: &Value) -> Result<Value, Error> {
    printed(format_args!("{left}{right}")).map(Value::from)
}

fn add(left: Value, right: Value) -> Result<Value, Error> {
    match (left.as_str(), right.as_str()) {
        (Some(left), Some(right)) => return printed(format_args!("{left}{right}")).map(Value::from),
        (None, None) if left.kind() != ValueKind::Number => {
            charge(shallow_bytes(&left).saturating_add(shallow_bytes(&right)))?
        }
        _ => {}
    }
    computed("a + b", left, right)
}

fn multiply(left: Value, right: Value) -> Result<Value, Error> {
    for (value, times) in [(&left, &right), (&right, &left)] {
        if let Some(times) = times.as_usize().filter(|_| value.kind() != ValueKind::Number) {
            charge(shallow_bytes(value).saturating_mul(times))?;
        }
    }
    computed("a * b", left, right)
}

/// `value[start:stop:step]`. Backwards it is done here, as Python does it: MiniJinja panics where there is nothing.
fn slice(value: Value, start: &Value, stop: &Value, step: &Value) -> Result<Value, Error> {
    let whole = |number: &Value| if number.is_none() { Ok(None) } else { i64::try_from(number.clone()).map(Some) };
    let (start, stop, step) = (whole(start)?, whole(stop)?, whole(step)?.unwrap_or(1));
    let is_sequence = matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable);
    let made = match value.as_str() {
        Some(text) if step < 0 => {
            let letters: Vec<char> = text.chars().collect();
            let places = backwards(start, stop, step, letters.len());
            Value::from(places.map(|place| letters[place]).collect::<String>())
        }
        None if step < 0 && is_sequence => {
            let items: Vec<Value> = value.try_iter()?.collect();
            charge(items.len().saturating_mul(VALUE_BYTES))?;
            let places = backwards(start, stop, step, items.len());
            let items: Vec<Value> = places.map(|place| items[place].clone()).collect();
            if value.is_tuple() { Value::from(Tuple::from(items)) } else { Value::from(items) }
        }
        None if step < 0 && !value.is_none() && !value.is_undefined() => {
            let message = format!("value of type {} cannot be sliced backwards", value.kind());
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
        // Of nothing, whatever the step is.
        None if step < 0 => Value::from(Vec::<Value>::new()),
        _ => {
            let result =
                PLAIN.compile_expression("a[b:c:d]")?.eval(context! { a => value, b => start, c => stop, d => step });
            result.map_err(in_no_place)?
        }
    };
    charge(shallow_bytes(&made))?;
    Ok(made)
}

/// Places from the last one down, each in the sequence.
fn backwards(start: Option<i64>, stop: Option<i64>, step: i64, length: usize) -> impl Iterator<Item = usize> {
    let length = i64::try_from(length).unwrap_or(i64::MAX);
    let place = |at: i64| if at < 0 { at.saturating_add(length).max(-1) } else { at.min(length - 1) };
    let (first, end) = (start.map_or(length - 1, place), stop.map_or(-1, place));
    std::iter::successors(Some(first), move |at| at.checked_add(step))
        .take_while(move |at| *at > end)
        .filter_map(|at| usize::try_from(at).ok())
}

/// What the operator itself does. Its place in the template is known to the caller.
fn computed(expression: &'static str, a: Value, b: Value) -> Result<Value, Error> {
    PLAIN.compile_expression(expression)?.eval(context! { a, b }).map_err(in_no_place)
}

fn in_no_place(error: Error) -> Error {
    match error.detail() {
        Some(detail) => Error::new(error.kind(), detail.to_owned()),
        None => error.kind().into(),
    }
}

/// Puts the functions into the place of the operators. Returns the longest text that is printed as it stands.
pub(super) fn count_operators(instructions: &mut Instructions<'static>) -> usize {
    let (mut at, mut longest) = (0, 0);
    while let Some(instruction) = instructions.get_mut(at) {
        let [concat, add, multiply, slice] = OPERATORS;
        let operator = match instruction {
            Instruction::StringConcat => Some((concat, 2)),
            Instruction::Add => Some((add, 2)),
            Instruction::Mul => Some((multiply, 2)),
            Instruction::Slice => Some((slice, 4)),
            Instruction::EmitRaw(text) => {
                longest = longest.max(text.len());
                None
            }
            _ => None,
        };
        if let Some((name, operands)) = operator {
            *instruction = Instruction::CallFunction(name, Some(operands));
        }
        at += 1;
    }
    longest
}

/// Products of constants are made by the compiler, which nothing bounds: at most what their factors say.
pub(super) fn check_constants(source: &str, syntax: SyntaxConfig) -> Result<(), Error> {
    // What cannot be divided into tokens is the compiler's to refuse.
    let tokens: Vec<Token<'_>> = tokenize(source, false, syntax).map_while(|token| Some(token.ok()?.0)).collect();
    let mut most = source.len();
    for (at, token) in tokens.iter().enumerate() {
        if !matches!(token, Token::Mul | Token::Pow) {
            continue;
        }
        // With a value that is only known later, nothing is made yet.
        if !ends_constant(&tokens[..at]) || !begins_constant(&tokens[at + 1..]) {
            continue;
        }
        let number = |token: Option<&Token<'_>>| match token {
            Some(Token::Int(number)) => usize::try_from(*number).unwrap_or(usize::MAX),
            // What stands in parentheses is of a size that only the compiler knows.
            Some(Token::Int128(_) | Token::ParenOpen) => usize::MAX,
            _ => 1,
        };
        let (left, right) = (number(tokens[..at].last()), number(tokens.get(at + 1)));
        let factor = if matches!(token, Token::Pow) { power(left, right) } else { left.max(right) };
        most = most.saturating_mul(factor.max(1));
    }
    if most <= CONSTANT_BYTES_MAX {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidOperation, "a product of constants is too large"))
}

fn power(base: usize, exponent: usize) -> usize {
    if base <= 1 { exponent } else { base.saturating_pow(exponent.min(64) as u32) }
}

/// Whether the operand that these tokens begin with has no name in it.
fn begins_constant(tokens: &[Token<'_>]) -> bool {
    is_constant(tokens.iter(), |token| match token {
        Token::ParenOpen | Token::BracketOpen => 1,
        Token::ParenClose | Token::BracketClose => -1,
        _ => 0,
    })
}

/// The same of the operand that they end with.
fn ends_constant(tokens: &[Token<'_>]) -> bool {
    is_constant(tokens.iter().rev(), |token| match token {
        Token::ParenClose | Token::BracketClose => 1,
        Token::ParenOpen | Token::BracketOpen => -1,
        _ => 0,
    })
}

/// `step`: by how much a token changes the depth of brackets.
fn is_constant<'a, 't: 'a>(tokens: impl Iterator<Item = &'a Token<'t>>, step: fn(&Token<'_>) -> i32) -> bool {
    let mut depth = 0;
    for token in tokens {
        depth += step(token);
        if matches!(token, Token::Ident(_)) {
            return false;
        }
        if depth <= 0 && !matches!(token, Token::Minus) {
            return true;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backwards_is_pythons() {
        let check = |start: Option<i64>, stop: Option<i64>, step: i64, expected: &str| {
            let number = |value: Option<i64>| Value::from(value);
            let made = slice(Value::from("abcde"), &number(start), &number(stop), &Value::from(step)).expect("a text");
            assert_eq!(made.as_str(), Some(expected), "[{start:?}:{stop:?}:{step}]");
            let letters: Vec<String> = "abcde".chars().map(String::from).collect();
            let made = slice(Value::from(letters), &number(start), &number(stop), &Value::from(step)).expect("a list");
            let made: Vec<String> = made.try_iter().expect("a list").map(|item| item.to_string()).collect();
            assert_eq!(made.concat(), expected, "[{start:?}:{stop:?}:{step}]");
        };
        check(None, None, -1, "edcba");
        check(Some(3), Some(0), -1, "dcb");
        check(Some(-2), None, -2, "db");
        check(Some(9), Some(1), -1, "edc");
        check(None, Some(-3), -1, "ed");
        check(Some(-9), None, -1, "");
        check(Some(1), Some(3), -1, "");
        check(None, None, i64::MIN, "e");
        check(Some(1), Some(-1), 2, "bd");
        let empty = slice(Value::from(""), &Value::from(()), &Value::from(()), &Value::from(-1)).expect("nothing");
        assert_eq!(empty.as_str(), Some(""));
    }
}
