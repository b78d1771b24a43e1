//! The table of schemas, searched by name.

use std::{cmp::Ordering, sync::OnceLock};

use crate::{Schema, parse::parse};

const PYTORCH: &str = include_str!("pytorch.txt");
const CUSTOM: &str = include_str!("custom.txt");

const PYTORCH_COUNT: usize = line_count(PYTORCH);
const COUNT: usize = PYTORCH_COUNT + line_count(CUSTOM);

/// All schema lines: PyTorch's, then the custom ones; each part is sorted by name.
const LINES: &[&str; COUNT] = &{
    let mut lines = [""; COUNT];
    fill(&mut lines, 0, PYTORCH);
    fill(&mut lines, PYTORCH_COUNT, CUSTOM);
    lines
};

/// The schema of each line, parsed at its first use.
static SCHEMAS: [OnceLock<Schema>; COUNT] = [const { OnceLock::new() }; COUNT];

const fn line_count(text: &str) -> usize {
    let (bytes, mut i, mut count) = (text.as_bytes(), 0, 0);
    while i < bytes.len() {
        if bytes[i] == b'\n' {
            count += 1;
        }
        i += 1;
    }
    count
}

const fn fill(lines: &mut [&'static str], first: usize, text: &'static str) {
    let (mut rest, mut at, mut i) = (text, first, 0);
    while i < rest.len() {
        if rest.as_bytes()[i] == b'\n' {
            // A checkout may end lines with CRLF.
            let end = if i > 0 && rest.as_bytes()[i - 1] == b'\r' { i - 1 } else { i };
            (lines[at], rest) = (rest.split_at(end).0, rest.split_at(i + 1).1);
            (at, i) = (at + 1, 0);
        } else {
            i += 1;
        }
    }
}

/// Compares a target such as `aten.add.Tensor` with the name at the start of a line, such as
/// `aten::add.Tensor`. A line omits the overload name `default`.
const fn compare(target: &[u8], line: &[u8]) -> Ordering {
    let end = match target {
        [name @ .., b'.', b'd', b'e', b'f', b'a', b'u', b'l', b't'] => name.len(),
        _ => target.len(),
    };
    let (mut t, mut l, mut in_namespace) = (0, 0, true);
    loop {
        let found = if line[l] == b'(' { 0 } else { line[l] };
        let wanted = match t < end {
            true if in_namespace && target[t] == b'.' => b':',
            true => target[t],
            false => 0,
        };
        if wanted != found {
            return if wanted < found { Ordering::Less } else { Ordering::Greater };
        }
        if wanted == 0 {
            return Ordering::Equal;
        }
        if wanted == b':' {
            in_namespace = false;
            l += 1;
        }
        (t, l) = (t + 1, l + 1);
    }
}

/// An operator with a schema. Operators order by table line: PyTorch's by name, then the custom
/// ones by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Operator(u16);

impl Operator {
    /// The operator with the given target, such as `aten.add.Tensor`.
    ///
    /// # Panics
    /// Panics if the table has no such target. In a constant, this fails the build. To add the
    /// operator, name it in quotes and run `crates/aten/schemas.py`, or add a line to `custom.txt`.
    pub const fn named(target: &str) -> Operator {
        match Operator::find(target) {
            Some(operator) => operator,
            None => panic!("the operator has no schema: run crates/aten/schemas.py"),
        }
    }

    /// The operator with the given target, such as `aten.add.Tensor`; `None` if the table lacks it.
    pub const fn find(target: &str) -> Option<Operator> {
        match search(target, 0, PYTORCH_COUNT) {
            None => search(target, PYTORCH_COUNT, COUNT),
            found => found,
        }
    }

    /// The operator's schema.
    pub fn schema(self) -> &'static Schema {
        let at = usize::from(self.0);
        SCHEMAS[at].get_or_init(|| parse(self, LINES[at]).expect("every line is a schema, as the tests of this crate hold"))
    }

    /// All overloads of an operator name, such as `aten::add`.
    pub(crate) fn of_name(namespace: &str, name: &str) -> impl Iterator<Item = Operator> {
        let prefix = format!("{namespace}::{name}");
        let parts = [(0, PYTORCH_COUNT), (PYTORCH_COUNT, COUNT)];
        parts.into_iter().flat_map(move |(first, end)| {
            let base = |line: &'static str| line.split(['.', '(']).next().unwrap_or(line);
            let start = first + LINES[first..end].partition_point(|line| base(line) < prefix.as_str());
            let of_name = LINES[start..end].iter().take_while(|line| base(line) == prefix).count();
            (start..start + of_name).map(|at| Operator(at as u16))
        })
    }
}

const fn search(target: &str, mut first: usize, mut end: usize) -> Option<Operator> {
    while first < end {
        let middle = first.midpoint(end);
        match compare(target.as_bytes(), LINES[middle].as_bytes()) {
            Ordering::Equal => return Some(Operator(middle as u16)),
            Ordering::Less => end = middle,
            Ordering::Greater => first = middle + 1,
        }
    }
    None
}

/// The schema of a target, such as `aten.add.Tensor` or `aten.relu.default`.
pub fn schema(target: &str) -> Option<&'static Schema> {
    Operator::find(target).map(Operator::schema)
}

/// All operators with a schema.
pub fn all() -> impl Iterator<Item = Operator> {
    (0..COUNT as u16).map(Operator)
}
