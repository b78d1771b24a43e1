//! Limits against hostile templates.
//!
//! The template engine counts steps, but one step can double a string. So every operation with a
//! result longer than its operands first pays for the result out of a budget. These are the
//! operators `+`, `~` and `*` in the compiled instructions, the filters and methods that repeat
//! their arguments, and printing itself.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use minijinja::formatting::{FormatStyle, format};
use minijinja::machinery::{Instruction, Instructions};
use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};

use super::{json, list, meter};
use crate::clock::Clock;
use crate::error::TemplateLimit;

/// Bytes of text that any template may make in one rendering, counting intermediate results.
const BASE_BYTES: u64 = 16 << 20;
/// Further bytes for each byte of the conversation.
const BYTES_PER_INPUT_BYTE: u64 = 256;
/// Longest text that one operation may make.
const MAX_VALUE_BYTES: u64 = 16 << 20;
/// Maximum number of items that a list operation may produce.
const MAX_ITEMS: usize = 100_000;
/// Largest width or precision in a format string.
const MAX_FORMAT_NUMBER: u32 = 4096;

/// The remaining budget of a rendering for making text.
#[derive(Debug)]
pub(super) struct Budget {
    total: u64,
    used: AtomicU64,
    exceeded: AtomicBool,
}

fn refuse(what: &'static str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what)
}

impl Budget {
    pub(super) fn new(input_bytes: u64) -> Self {
        let total = BASE_BYTES.saturating_add(input_bytes.saturating_mul(BYTES_PER_INPUT_BYTE));
        Self { total, used: AtomicU64::new(0), exceeded: AtomicBool::new(false) }
    }

    /// The limits, for messages.
    pub(super) fn limit(&self) -> TemplateLimit {
        TemplateLimit::Values { value: MAX_VALUE_BYTES, items: MAX_ITEMS, total: self.total }
    }

    pub(super) fn exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }

    /// Pays for `bytes` of text.
    pub(super) fn charge(&self, bytes: usize) -> Result<(), Error> {
        let bytes = bytes as u64;
        let used = self.used.fetch_add(bytes.min(self.total), Ordering::Relaxed).saturating_add(bytes);
        if bytes > MAX_VALUE_BYTES || used > self.total { Err(self.refuse("the template makes too much text")) } else { Ok(()) }
    }

    /// Maximum number of items of a value, nested items included: a constant plus a share for the
    /// conversation's size.
    pub(super) fn max_items(&self) -> usize {
        MAX_ITEMS + usize::try_from((self.total - BASE_BYTES) / BYTES_PER_INPUT_BYTE).unwrap_or(usize::MAX - MAX_ITEMS)
    }

    /// Ends the rendering: it has gone beyond a limit.
    pub(super) fn refuse(&self, what: &'static str) -> Error {
        self.exceeded.store(true, Ordering::Relaxed);
        refuse(what)
    }

    /// The value as it would be printed.
    fn text<'v>(&self, value: &'v Value) -> Result<Cow<'v, str>, Error> {
        if let Some(text) = value.as_str() {
            self.charge(text.len())?;
            return Ok(Cow::Borrowed(text));
        }
        if let Some(number) = json::float(value) {
            return Ok(Cow::Owned(number));
        }
        let mut out = Limited::new(self);
        write!(out, "{value}").map_err(|_| refuse("the template makes too much text"))?;
        Ok(Cow::Owned(out.into_text()))
    }
}

/// Text that is paid for as it grows.
pub(super) struct Limited<'b> {
    budget: &'b Budget,
    text: String,
}

impl<'b> Limited<'b> {
    pub(super) fn new(budget: &'b Budget) -> Self {
        Self { budget, text: String::new() }
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }
}

impl std::fmt::Write for Limited<'_> {
    fn write_str(&mut self, part: &str) -> std::fmt::Result {
        let long = (self.text.len() + part.len()) as u64 > MAX_VALUE_BYTES;
        self.budget.charge(if long { usize::MAX } else { part.len() }).map_err(|_| std::fmt::Error)?;
        self.text.push_str(part);
        Ok(())
    }
}

/// Replaces the operators that can make text longer, and has the others paid for. With
/// `owns_lists`, the template can change the lists that it makes.
pub(super) fn install<'s>(main: &mut Instructions<'s>, blocks: &mut BTreeMap<&'s str, Instructions<'s>>, owns_lists: bool) {
    for code in std::iter::once(main).chain(blocks.values_mut()) {
        meter::install(code, owns_lists);
        let mut at = 0;
        while let Some(instruction) = code.get_mut(at) {
            let replacement = match instruction {
                Instruction::Add => "guarded_add",
                Instruction::Mul => "guarded_mul",
                Instruction::StringConcat => "guarded_concat",
                Instruction::Rem => "guarded_rem",
                Instruction::Pow => "guarded_pow",
                _ => "",
            };
            if !replacement.is_empty() {
                *instruction = Instruction::ApplyFilter(replacement, Some(2), u8::MAX);
            }
            at += 1;
        }
    }
}

/// Adds the template functions of `transformers`, with limits.
pub(super) fn environment(env: &mut Environment<'_>, budget: &Arc<Budget>, now: Option<Clock>) {
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    if let Some(now) = now {
        env.add_function("strftime_now", move |format: String| now.format(&format));
    }
    for name in ["batch", "slice", "chain", "zip", "pprint", "urlencode"] {
        env.remove_filter(name);
    }
    operators(env, budget);
    filters(env, budget);
    meter::environment(env, budget);
    env.add_filter(list::OWN, list::to_template_list);
    let paid = Arc::clone(budget);
    env.set_unknown_method_callback(move |state, value, method, args| match (value.as_str(), method, args) {
        (Some(text), "replace", [from, to, ..]) => {
            paid.charge(replaced_len(text, from.as_str().unwrap_or_default(), to.as_str().unwrap_or_default()))?;
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
        }
        (Some(text), "title", []) => {
            paid.charge(text.len().saturating_mul(2))?;
            Ok(Value::from(titled(text)))
        }
        (Some(glue), "join", [items]) => join(&paid, items, glue, None),
        (Some(text), "format", args) => formatted(&paid, FormatStyle::StrFormat, text, args),
        (None, method, args) if list::changes_by(method) => list::change(&paid, value, method, args),
        _ => {
            paid.charge(value.as_str().map_or(0, str::len))?;
            minijinja_contrib::pycompat::unknown_method_callback(state, value, method, args)
        }
    });
    let paid = Arc::clone(budget);
    env.set_formatter(move |out, state, value| {
        if value.is_undefined() {
            return Ok(());
        }
        let text = paid.text(value)?;
        if matches!(state.auto_escape(), AutoEscape::Html) && !value.is_safe() {
            let text = escaped(&text);
            paid.charge(text.len())?;
            return out.write_str(&text).map_err(Error::from);
        }
        out.write_str(&text).map_err(Error::from)
    });
}

fn operators(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let paid = Arc::clone(budget);
    env.add_filter("guarded_concat", move |a: &Value, b: &Value| -> Result<Value, Error> {
        let mut text = paid.text(a)?.into_owned();
        text.push_str(&paid.text(b)?);
        paid.charge(text.len())?;
        Ok(Value::from(text))
    });
    let paid = Arc::clone(budget);
    env.add_filter("guarded_add", move |a: Value, b: Value| -> Result<Value, Error> {
        pay_for_items(&paid, a.len().unwrap_or(0).saturating_add(b.len().unwrap_or(0)), &a, &b)?;
        paid.charge(a.as_str().map_or(0, str::len).saturating_add(b.as_str().map_or(0, str::len)))?;
        operate("a + b", a, b)
    });
    let paid = Arc::clone(budget);
    env.add_filter("guarded_mul", move |a: Value, b: Value| -> Result<Value, Error> {
        let times = a.as_usize().or(b.as_usize()).unwrap_or(1);
        let items = a.len().or(b.len()).unwrap_or(0);
        pay_for_items(&paid, items.saturating_mul(times), &a, &b)?;
        paid.charge(a.as_str().or(b.as_str()).map_or(0, str::len).saturating_mul(times))?;
        match (a.kind(), b.kind()) {
            (ValueKind::Seq, ValueKind::Number) => repeated(&a, times),
            (ValueKind::Number, ValueKind::Seq) => repeated(&b, times),
            _ => operate("a * b", a, b),
        }
    });
    let paid = Arc::clone(budget);
    env.add_filter("guarded_rem", move |a: Value, b: Value| -> Result<Value, Error> {
        match a.as_str() {
            Some(text) => formatted(&paid, FormatStyle::Printf, text, &fields(text, b)?),
            None => operate("a % b", a, b),
        }
    });
    env.add_filter("guarded_pow", |a: Value, b: Value| -> Result<Value, Error> {
        let base = f64::try_from(a.clone());
        match (base, b.as_i64().filter(|power| *power < 0)) {
            (Ok(base), Some(power)) if base != 0.0 => Ok(Value::from(base.powf(power as f64))),
            _ => operate("a ** b", a, b),
        }
    });
}

/// The text as Jinja escapes it for HTML.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// The list repeated `times` times.
fn repeated(list: &Value, times: usize) -> Result<Value, Error> {
    let items: Vec<Value> = list.try_iter()?.collect();
    Ok(Value::from(std::iter::repeat_n(items, times).flatten().collect::<Vec<_>>()))
}

/// The values for the fields of a format string: the items of a list with one item per field, else
/// the value itself.
fn fields(text: &str, value: Value) -> Result<Vec<Value>, Error> {
    let count = text.replace("%%", "").matches('%').count();
    let is_list = value.kind() == ValueKind::Seq && value.len() == Some(count);
    if is_list { Ok(value.try_iter()?.collect()) } else { Ok(vec![value]) }
}

/// The text with capitals at the beginning of words, as by Python's `str.title`. A word begins
/// after any character that is not a letter.
fn titled(text: &str) -> String {
    let mut follows_letter = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if follows_letter {
            out.extend(c.to_lowercase());
        } else {
            out.extend(c.to_uppercase());
        }
        follows_letter = c.is_alphabetic();
    }
    out
}

/// Refuses lists that grow too long; strings count by their bytes.
fn pay_for_items(budget: &Budget, items: usize, a: &Value, b: &Value) -> Result<(), Error> {
    if a.as_str().is_some() || b.as_str().is_some() {
        return Ok(());
    }
    budget.charge(if items > MAX_ITEMS { usize::MAX } else { items * 16 })
}

/// The engine's own operator on values that are known to be small enough.
fn operate(expression: &'static str, a: Value, b: Value) -> Result<Value, Error> {
    Environment::empty().compile_expression(expression)?.eval(Value::from_pairs([("a", a), ("b", b)]))
}

fn filters(env: &mut Environment<'_>, budget: &Arc<Budget>) {
    let paid = Arc::clone(budget);
    env.add_filter("tojson", move |value: &Value, indent: Option<usize>, args: Kwargs| -> Result<Value, Error> {
        let args = match indent {
            Some(indent) => Kwargs::from_iter([("indent", Value::from(indent))]),
            None => args,
        };
        json::tojson(&paid, value, &args).map(Value::from)
    });
    let paid = Arc::clone(budget);
    env.add_filter("replace", move |value: &Value, from: &str, to: &str| -> Result<Value, Error> {
        let text = paid.text(value)?;
        paid.charge(replaced_len(&text, from, to))?;
        Ok(Value::from(text.replace(from, to)))
    });
    let paid = Arc::clone(budget);
    env.add_filter("join", move |items: &Value, glue: Option<&str>, args: Kwargs| -> Result<Value, Error> {
        let attribute: Option<&str> = args.get("attribute")?;
        let named: Option<&str> = args.get("d")?;
        args.assert_all_used()?;
        join(&paid, items, glue.or(named).unwrap_or_default(), attribute)
    });
    let paid = Arc::clone(budget);
    env.add_filter("format", move |text: &str, args: Rest<Value>| formatted(&paid, FormatStyle::Printf, text, &args));
    let paid = Arc::clone(budget);
    env.add_filter("indent", move |text: &str, width: Option<usize>, first: Option<bool>, blank: Option<bool>, args: Kwargs| {
        let width = width.or(args.get("width")?).unwrap_or(4);
        let first = first.or(args.get("first")?).unwrap_or(false);
        let blank = blank.or(args.get("blank")?).unwrap_or(false);
        args.assert_all_used()?;
        paid.charge(text.split('\n').count().saturating_mul(width).saturating_add(text.len()))?;
        Ok::<_, Error>(indented(text, width, first, blank))
    });
}

fn indented(text: &str, width: usize, first: bool, blank: bool) -> String {
    let pad = " ".repeat(width);
    let line = |(at, line): (usize, &str)| {
        let wanted = if at == 0 { first } else { blank || !line.is_empty() };
        if wanted { format!("{pad}{line}") } else { line.to_owned() }
    };
    text.split('\n').enumerate().map(line).collect::<Vec<_>>().join("\n")
}

fn replaced_len(text: &str, from: &str, to: &str) -> usize {
    let grows = to.len().saturating_sub(from.len());
    text.len().saturating_add(text.matches(from).count().saturating_mul(grows))
}

fn join(budget: &Budget, items: &Value, glue: &str, attribute: Option<&str>) -> Result<Value, Error> {
    if matches!(items.kind(), ValueKind::Undefined | ValueKind::None) {
        return Ok(Value::from(""));
    }
    let mut out = Limited::new(budget);
    let long = |_| refuse("the template makes too much text");
    for (at, item) in items.try_iter()?.enumerate() {
        if at > 0 {
            out.write_str(glue).map_err(long)?;
        }
        let item = match attribute {
            Some(name) => item.get_attr(name)?,
            None => item,
        };
        write!(out, "{item}").map_err(long)?;
    }
    Ok(Value::from(out.into_text()))
}

/// Formats after looking at the numbers in the format string, which are widths and precisions.
fn formatted(budget: &Budget, style: FormatStyle, text: &str, args: &[Value]) -> Result<Value, Error> {
    let fits = |digits: &str| digits.is_empty() || digits.parse::<u32>().is_ok_and(|n| n <= MAX_FORMAT_NUMBER);
    if !text.split(|c: char| !c.is_ascii_digit()).all(fits) || text.contains('*') {
        return Err(refuse("a width in the format string is too large"));
    }
    let fields = text.bytes().filter(|b| matches!(b, b'%' | b'{')).count();
    let mut longest = MAX_FORMAT_NUMBER as usize;
    for arg in args {
        longest = longest.max(budget.text(arg)?.len());
    }
    budget.charge(fields.saturating_mul(longest).saturating_add(text.len()))?;
    format(style, text, args).map(Value::from)
}
