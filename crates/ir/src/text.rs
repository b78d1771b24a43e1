//! The text form of a graph: one line per declaration and per node. Printing and parsing are
//! inverses.
//!
//! ```text
//! slots constants=1 inputs=1 outputs=1 buffers=0 temps=1 values=1
//! main 0
//! input t1
//! output t2
//! name t0 "linear.weight"
//! meta t0 bf16[256,64]
//! meta t1 bf16[1..8,64]
//! meta t2 bf16[1..8,256]
//! chain 0
//!   Transpose x=t0 out=t3 perm=[1,0]
//!   Addmm mat1=t1 mat2=t3 out=t2
//! ```
//!
//! Slots (`t3`, `v1`) and names of element types and modes are bare words. Strings are quoted as in
//! JSON. Fields with default values are omitted. A dynamic size is `min..max`, or `min..` without
//! an upper bound. Lines end with a newline. Blank lines and lines that start with `#` are ignored.

use std::{collections::BTreeMap, fmt, str::FromStr};

use flambeau_tensor::DType;
use serde_json::{Number, Value};

use crate::{
    Graph, MetaDim, Node, Slot, SlotCounts, TensorMeta, Tid, Vid,
    limits::{MAX_CHAINS, MAX_MAP_ENTRIES},
};

/// Reason why a text is not a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct TextError {
    /// Line number, counted from 1.
    pub line: usize,
    pub what: String,
}

/// Names of the counts on the `slots` line.
const COUNTS: [&str; 6] = ["constants", "inputs", "outputs", "buffers", "temps", "values"];

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.slots;
        let counts = [s.constants, s.inputs, s.outputs, s.buffers, s.temps, self.values];
        f.write_str("slots")?;
        COUNTS.iter().zip(counts).try_for_each(|(name, n)| write!(f, " {name}={n}"))?;
        writeln!(f, "\nmain {}", self.main)?;
        if let Some(init) = self.init {
            writeln!(f, "init {init}")?;
        }
        self.inputs.iter().try_for_each(|slot| writeln!(f, "input {slot}"))?;
        self.outputs.iter().try_for_each(|slot| writeln!(f, "output {slot}"))?;
        self.buffers.iter().try_for_each(|slot| writeln!(f, "buffer {slot}"))?;
        self.names.iter().try_for_each(|(name, slot)| writeln!(f, "name {slot} {}", Value::from(name.as_str())))?;
        self.meta.iter().enumerate().try_for_each(|(i, meta)| writeln!(f, "meta t{i} {meta}"))?;
        for (i, chain) in self.chains.iter().enumerate() {
            writeln!(f, "chain {i}")?;
            chain.iter().try_for_each(|node| writeln!(f, "  {node}"))?;
        }
        Ok(())
    }
}

impl fmt::Display for TensorMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.shape.iter().map(MetaDim::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(","))?;
        match &self.dim_order {
            order if *order == row_major_order(self.shape.len()) => Ok(()),
            None => f.write_str(" order=none"),
            Some(order) => write!(f, " order={}", Value::from(order.as_slice())),
        }
    }
}

impl fmt::Display for MetaDim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetaDim::Static(n) => write!(f, "{n}"),
            MetaDim::Dynamic { min, max: None } => write!(f, "{min}.."),
            MetaDim::Dynamic { min, max: Some(max) } => write!(f, "{min}..{max}"),
        }
    }
}

/// The implied row-major dim order.
fn row_major_order(rank: usize) -> Option<Vec<u8>> {
    (rank > 0).then(|| (0..rank).map(|i| i as u8).collect())
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let info = &Node::ALL[usize::from(self.tag()) - 1];
        for (name, value) in self.fields() {
            let quoted = info.fields.iter().any(|field| field.name == name && field.ty.contains("String"));
            write!(f, " {name}=")?;
            write_value(f, &value, quoted)?;
        }
        Ok(())
    }
}

fn write_value(f: &mut fmt::Formatter<'_>, value: &Value, quoted: bool) -> fmt::Result {
    match value {
        Value::Array(items) => {
            f.write_str("[")?;
            for (i, item) in items.iter().enumerate() {
                f.write_str(if i == 0 { "" } else { "," })?;
                write_value(f, item, quoted)?;
            }
            f.write_str("]")
        }
        Value::String(word) if !quoted => f.write_str(word),
        value => write!(f, "{value}"),
    }
}

impl FromStr for Graph {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Graph, TextError> {
        let mut graph = Graph::default();
        for (i, line) in text.lines().enumerate() {
            parse_line(&mut graph, line).map_err(|what| TextError { line: i + 1, what })?;
        }
        Ok(graph)
    }
}

fn parse_line(graph: &mut Graph, line: &str) -> Result<(), String> {
    if line.trim().is_empty() || line.starts_with('#') {
        return Ok(());
    }
    if let Some(node) = line.strip_prefix("  ") {
        let chain = graph.chains.last_mut().ok_or("a node before the first chain")?;
        chain.push(node.parse()?);
        return Ok(());
    }
    let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
    match word {
        "slots" => (graph.slots, graph.values) = parse_counts(rest)?,
        "main" => graph.main = parse_number(rest)?,
        "init" => graph.init = Some(parse_number(rest)?),
        "input" => graph.inputs.push(parse_slot(rest)?),
        "output" => graph.outputs.push(parse_slot(rest)?),
        "buffer" => match parse_slot(rest)? {
            Slot::Tensor(tid) => graph.buffers.push(tid),
            Slot::Value(_) => return Err(format!("expected a tensor slot, found `{rest}`")),
        },
        "name" => {
            let (slot, name) = rest.split_once(' ').ok_or("expected a slot and a name")?;
            let name: String = serde_json::from_str(name).map_err(|_| format!("expected a quoted name, found `{name}`"))?;
            graph.names.push((name, parse_slot(slot)?));
        }
        "meta" => {
            let (slot, meta) = rest.split_once(' ').ok_or("expected a slot and its metadata")?;
            if parse_slot(slot)? != Slot::Tensor(Tid(graph.meta.len() as u32)) {
                return Err(format!("expected metadata of t{}, found `{slot}`", graph.meta.len()));
            }
            graph.meta.push(meta.parse()?);
        }
        "chain" if parse_number::<usize>(rest)? == graph.chains.len() => graph.chains.push(Vec::new()),
        "chain" => return Err(format!("expected chain {}, found `{rest}`", graph.chains.len())),
        other => return Err(format!("expected a fact or an indented node, found `{other}`")),
    }
    let most = [graph.names.len(), graph.meta.len(), graph.inputs.len(), graph.outputs.len(), graph.buffers.len()];
    if most.iter().any(|&n| n > MAX_MAP_ENTRIES) || graph.chains.len() > MAX_CHAINS {
        return Err(format!("more than {MAX_MAP_ENTRIES} entries"));
    }
    Ok(())
}

fn parse_number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("expected a number, found `{text}`"))
}

fn parse_slot(text: &str) -> Result<Slot, String> {
    let number = |rest: &str| if rest.starts_with('+') { None } else { rest.parse().ok() };
    let tensor = text.strip_prefix('t').and_then(number).map(|n| Slot::Tensor(Tid(n)));
    let value = || text.strip_prefix('v').and_then(number).map(|n| Slot::Value(Vid(n)));
    tensor.or_else(value).ok_or_else(|| format!("expected a slot, found `{text}`"))
}

fn parse_counts(text: &str) -> Result<(SlotCounts, u32), String> {
    let mut counts = [0u32; 6];
    for pair in text.split_whitespace() {
        let (name, number) = pair.split_once('=').ok_or_else(|| format!("expected name=count, found `{pair}`"))?;
        let at = COUNTS.iter().position(|c| *c == name).ok_or_else(|| format!("no slots are called `{name}`"))?;
        counts[at] = parse_number(number)?;
    }
    let [constants, inputs, outputs, buffers, temps, values] = counts;
    Ok((SlotCounts { constants, inputs, outputs, buffers, temps }, values))
}

impl FromStr for TensorMeta {
    type Err = String;

    fn from_str(text: &str) -> Result<TensorMeta, String> {
        let expected = || format!("expected a type and a shape like `f32[2,1..8]`, found `{text}`");
        let (spec, order) = text.split_once(' ').map_or((text, None), |(spec, order)| (spec, Some(order)));
        let (dtype, dims) = spec.strip_suffix(']').and_then(|s| s.split_once('[')).ok_or_else(expected)?;
        let dtype = DType::from_name(dtype).ok_or_else(expected)?;
        let shape: Vec<MetaDim> =
            if dims.is_empty() { Vec::new() } else { dims.split(',').map(str::parse).collect::<Result<_, String>>()? };
        let dim_order = match order {
            None => row_major_order(shape.len()),
            Some("order=none") => None,
            Some(order) => {
                let list = order.strip_prefix("order=").ok_or_else(expected)?;
                Some(serde_json::from_str(list).map_err(|_| format!("expected a list of dims, found `{list}`"))?)
            }
        };
        Ok(TensorMeta { shape, dtype, dim_order })
    }
}

impl FromStr for MetaDim {
    type Err = String;

    fn from_str(text: &str) -> Result<MetaDim, String> {
        match text.split_once("..") {
            None => Ok(MetaDim::Static(parse_number(text)?)),
            Some((min, "")) => Ok(MetaDim::Dynamic { min: parse_number(min)?, max: None }),
            Some((min, max)) => Ok(MetaDim::Dynamic { min: parse_number(min)?, max: Some(parse_number(max)?) }),
        }
    }
}

impl FromStr for Node {
    type Err = String;

    fn from_str(line: &str) -> Result<Node, String> {
        let (name, mut rest) = line.split_once(' ').unwrap_or((line, ""));
        let info = Node::ALL.iter().find(|info| info.name == name).ok_or_else(|| format!("no node is called `{name}`"))?;
        let mut fields = BTreeMap::new();
        while !rest.is_empty() {
            let (field, value) = rest.split_once('=').ok_or_else(|| format!("expected field=value, found `{rest}`"))?;
            if !info.fields.iter().any(|known| known.name == field) {
                return Err(format!("{name} has no field `{field}`"));
            }
            let (value, after) = parse_value(value)?;
            if fields.insert(field, value).is_some() {
                return Err(format!("field `{field}` occurs twice"));
            }
            rest = match after.strip_prefix(' ') {
                Some(next) => next,
                None if after.is_empty() => after,
                None => return Err(format!("expected a space, found `{after}`")),
            };
        }
        let missing = || format!("a field of {name} is missing or has a value of another type");
        Node::from_fields(name, &|field| fields.get(field).cloned()).ok_or_else(missing)
    }
}

/// Parses a value, and returns it with the rest of the text.
fn parse_value(text: &str) -> Result<(Value, &str), String> {
    let Some(mut rest) = text.strip_prefix('[') else { return parse_scalar(text) };
    let mut items = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix(']') {
            return Ok((Value::Array(items), after));
        }
        if !items.is_empty() {
            rest = rest.strip_prefix(',').ok_or("expected `,` or `]` in a list")?;
        }
        let (item, after) = parse_scalar(rest)?;
        items.push(item);
        rest = after;
    }
}

fn parse_scalar(text: &str) -> Result<(Value, &str), String> {
    if text.starts_with('"') {
        let end = quoted_len(text).ok_or("a string has no closing quote")?;
        let (string, rest) = text.split_at(end);
        let string = serde_json::from_str(string).map_err(|_| format!("expected a string as JSON writes it, found {string}"))?;
        return Ok((Value::String(string), rest));
    }
    let end = text.find([' ', ',', ']']).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let value = match word {
        "" => return Err("expected a value".to_owned()),
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        word if word.starts_with(|c: char| c.is_ascii_digit() || c == '-') && word != "-inf" => {
            Value::Number(parse_json_number(word).ok_or_else(|| format!("expected a number, found `{word}`"))?)
        }
        word => Value::String(word.to_owned()),
    };
    Ok((value, rest))
}

/// Length in bytes of the quoted string at the start of the text, including quotes.
fn quoted_len(text: &str) -> Option<usize> {
    let mut escaped = false;
    let close = text.bytes().skip(1).position(|b| {
        let ends = b == b'"' && !escaped;
        escaped = b == b'\\' && !escaped;
        ends
    })?;
    Some(close + 2)
}

/// Parses a number exactly if Rust printed it. JSON parsers do not guarantee this.
fn parse_json_number(word: &str) -> Option<Number> {
    let integer = word.parse::<i64>().map(Number::from).or_else(|_| word.parse::<u64>().map(Number::from));
    integer.ok().or_else(|| Number::from_f64(word.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::any_graph;

    #[test]
    fn a_graph_reads_as_documented() {
        let text = "slots constants=1 inputs=1 outputs=1 buffers=0 temps=1 values=1\n\
            main 0\ninput t1\noutput t2\nname t0 \"linear \\\"weight\\\"\"\n\
            meta t0 bf16[256,64]\nmeta t1 bf16[1..8,64] order=none\nmeta t2 f32[]\n\
            chain 0\n  Transpose x=t0 out=t3 perm=[1,0]\n  Addmm mat1=t1 mat2=t3 out=t2\n  Gelu x=t2 out=t2 approximate=\"tanh\"\n\
            \x20 RMSNorm x=t2 out=t2 eps=0.00001\n";
        let graph: Graph = text.parse().unwrap();
        assert_eq!(graph.to_string(), text);
        assert_eq!(graph.meta[1].shape, [MetaDim::Dynamic { min: 1, max: Some(8) }, MetaDim::Static(64)]);
        assert_eq!(graph.names[0].0, "linear \"weight\"");
    }

    #[test]
    fn what_cannot_be_read_is_located() {
        let check = |text: &str, line: usize, part: &str| {
            let error = text.parse::<Graph>().unwrap_err();
            assert!(error.line == line && error.what.contains(part), "{text:?}: {error}");
        };
        check("\nmain x", 2, "expected a number");
        check("  Noop", 1, "before the first chain");
        check("chain 1", 1, "expected chain 0");
        check("chain 0\n  Nope", 2, "no node is called");
        check("chain 0\n  Exp x=t0 y=t1", 2, "no field `y`");
        check("chain 0\n  Exp x=t0 x=t0", 2, "occurs twice");
        check("chain 0\n  Exp x=t0", 2, "missing");
        check("chain 0\n  Exp x=\"t0", 2, "closing quote");
        check("chain 0\n  Flip x=t0 out=t0 axes=[1", 2, "in a list");
        check("meta t1 f32[]", 1, "metadata of t0");
        check("meta t0 f33[]", 1, "type and a shape");
        check("buffer v0", 1, "tensor slot");
        check("slots chairs=1", 1, "chairs");
        check("what is this", 1, "expected a fact");
    }

    proptest! {
        #[test]
        fn parsing_is_the_inverse_of_printing(graph in any_graph()) {
            let text = graph.to_string();
            let back: Graph = text.parse().map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
            prop_assert_eq!(back.to_string(), text);
            prop_assert_eq!(back, graph);
        }

        #[test]
        fn any_text_is_a_graph_or_an_error(text in "(\\PC|\n){0,200}") {
            let _ = text.parse::<Graph>();
        }
    }
}
