//! JSON values into template values, and back out as text the way Python's `json.dumps` writes it.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};
use serde_json::Value as Json;

use super::guard::{Budget, Limited};

/// Maximum nesting of written values.
const MAX_DEPTH: usize = 128;

pub(super) fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(b) => Value::from(*b),
        Json::Number(n) => match (n.as_i64(), n.as_u64()) {
            (Some(i), _) => Value::from(i),
            (None, Some(u)) => Value::from(u),
            (None, None) => Value::from(n.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(s) => Value::from(s.as_str()),
        Json::Array(items) => list(items),
        Json::Object(map) => Value::from_pairs(map.iter().map(|(key, value)| (Value::from(key.as_str()), to_value(value)))),
    }
}

pub(super) fn list(items: &[Json]) -> Value {
    Value::from(items.iter().map(to_value).collect::<Vec<_>>())
}

/// Approximate size of the values' text in bytes.
pub(super) fn size(items: &[Json]) -> u64 {
    let of = |json: &Json| match json {
        Json::String(s) => s.len() as u64,
        Json::Array(items) => size(items),
        Json::Object(map) => map.iter().map(|(key, value)| key.len() as u64 + size(std::slice::from_ref(value))).sum(),
        _ => 0,
    };
    items.iter().map(|json| 8 + of(json)).sum()
}

/// A float as Python writes it: with an exponent from 1e16 on and below 1e-4; `None` for other
/// values.
pub(super) fn float(value: &Value) -> Option<String> {
    let number = f64::try_from(value.clone()).ok().filter(|_| value.is_number() && !value.is_integer())?;
    let size = number.abs();
    if number.is_nan() || number.is_infinite() || size == 0.0 || (1e-4..1e16).contains(&size) {
        return None;
    }
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    let sign = if exponent < 0 { '-' } else { '+' };
    Some(format!("{digits}e{sign}{:02}", exponent.abs()))
}

/// The layout that the arguments of the `tojson` filter ask for.
struct Layout {
    indent: Option<usize>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
    ensure_ascii: bool,
}

/// The `tojson` filter of `transformers`: nothing is escaped for HTML, and the keyword arguments
/// are Python's.
pub(super) fn tojson(budget: &Budget, value: &Value, args: &Kwargs) -> Result<String, Error> {
    let separators: Option<Vec<String>> = args.get("separators")?;
    let indent: Option<usize> = args.get("indent")?;
    let (item, key) = match separators.as_deref() {
        Some([item, key]) => (item.clone(), key.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "separators must be a pair of strings")),
        None => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let layout = Layout {
        indent: indent.map(|n| n.min(64)),
        item_separator: item,
        key_separator: key,
        sort_keys: args.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: args.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    args.assert_all_used()?;
    let mut out = Limited::new(budget);
    layout.write(&mut out, value, 0)?;
    Ok(out.into_text())
}

fn too_long(_: std::fmt::Error) -> Error {
    Error::new(ErrorKind::InvalidOperation, "the JSON text is too long")
}

impl Layout {
    fn write(&self, out: &mut Limited<'_>, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::InvalidOperation, "value is nested too deeply for JSON"));
        }
        match value.kind() {
            ValueKind::Undefined | ValueKind::None => out.write_str("null").map_err(too_long),
            ValueKind::Bool => out.write_str(if value.is_true() { "true" } else { "false" }).map_err(too_long),
            ValueKind::Number => match float(value) {
                Some(text) => out.write_str(&text).map_err(too_long),
                None => write!(out, "{value}").map_err(too_long),
            },
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()).map_err(too_long),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item));
                self.container(out, ['[', ']'], items, depth)
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                let items = keys.into_iter().map(|key| {
                    let item = value.get_item(&key).unwrap_or_default();
                    (Some(key.to_string()), item)
                });
                self.container(out, ['{', '}'], items, depth)
            }
            other => Err(Error::new(ErrorKind::InvalidOperation, format!("{other} cannot be written as JSON"))),
        }
    }

    fn container(
        &self,
        out: &mut Limited<'_>,
        [open, close]: [char; 2],
        items: impl Iterator<Item = (Option<String>, Value)>,
        depth: usize,
    ) -> Result<(), Error> {
        out.write_char(open).map_err(too_long)?;
        let mut any = false;
        for (key, item) in items {
            if any {
                out.write_str(&self.item_separator).map_err(too_long)?;
            }
            any = true;
            self.line(out, depth + 1).map_err(too_long)?;
            if let Some(key) = key {
                self.string(out, &key).map_err(too_long)?;
                out.write_str(&self.key_separator).map_err(too_long)?;
            }
            self.write(out, &item, depth + 1)?;
        }
        if any {
            self.line(out, depth).map_err(too_long)?;
        }
        out.write_char(close).map_err(too_long)
    }

    fn line(&self, out: &mut Limited<'_>, depth: usize) -> std::fmt::Result {
        match self.indent {
            Some(indent) => write!(out, "\n{:1$}", "", indent * depth),
            None => Ok(()),
        }
    }

    fn string(&self, out: &mut Limited<'_>, text: &str) -> std::fmt::Result {
        out.write_char('"')?;
        for c in text.chars() {
            match c {
                '"' => out.write_str("\\\"")?,
                '\\' => out.write_str("\\\\")?,
                '\n' => out.write_str("\\n")?,
                '\r' => out.write_str("\\r")?,
                '\t' => out.write_str("\\t")?,
                '\u{8}' => out.write_str("\\b")?,
                '\u{c}' => out.write_str("\\f")?,
                c if u32::from(c) < 0x20 || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        write!(out, "\\u{unit:04x}")?;
                    }
                }
                c => out.write_char(c)?,
            }
        }
        out.write_char('"')
    }
}
