//! The text form: one call per line, as PyTorch prints a graph.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use crate::{Argument, Exported, Graph, InputSpec, Node, Passing, SymArg};

/// Prints the graph in PyTorch's form. Multiple results of a call appear as `getitem` calls, as in
/// PyTorch.
impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_graph(f, self, &self.inputs.iter().map(input_name).collect::<Vec<_>>())
    }
}

/// Prints the graph, then every graph that it runs, under its name.
impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |(arg, spec): (&Argument, &InputSpec)| match spec {
            InputSpec::ConstantInput { name, .. } => name.clone(),
            _ => input_name(arg),
        };
        write_graph(f, &self.graph, &self.graph.inputs.iter().zip(&self.signature.inputs).map(name).collect::<Vec<_>>())?;
        write_subgraphs(f, &self.graph)
    }
}

fn write_subgraphs(f: &mut fmt::Formatter<'_>, graph: &Graph) -> fmt::Result {
    graph.subgraphs().try_for_each(|sub| {
        write!(f, "\n\n{} = {}", sub.name, sub.graph)?;
        write_subgraphs(f, &sub.graph)
    })
}

fn input_name(arg: &Argument) -> String {
    arg.names().first().map_or_else(|| value(arg), |&name| name.to_owned())
}

fn write_graph(f: &mut fmt::Formatter<'_>, graph: &Graph, inputs: &[String]) -> fmt::Result {
    let users = count_users(graph);
    let count = |name: &str| users.get(name).copied().unwrap_or(0);
    f.write_str("graph():")?;
    for name in inputs {
        write!(f, "\n    %{name} : [num_users={}] = placeholder[target={name}]", count(name))?;
    }
    for (i, node) in graph.nodes.iter().enumerate() {
        for input in &node.inputs {
            if let Argument::Graph(sub) = &input.arg {
                let users = subgraph_users(graph, &sub.name);
                write!(f, "\n    %{0} : [num_users={users}] = get_attr[target={0}]", sub.name)?;
            }
        }
        let (name, items) = (node_name(node, i), items(node));
        let users = if items.is_empty() { count(&name) } else { items.len() };
        write!(f, "\n    %{name} : [num_users={users}] = call_function[target={}]{}", target(node), operands(node))?;
        for (index, item) in items.into_iter().enumerate() {
            let users = count(item);
            write!(
                f,
                "\n    %{item} : [num_users={users}] = call_function[target=operator.getitem](args = (%{name}, {index}), kwargs = {{}})"
            )?;
        }
    }
    write!(f, "\n    return {}", returned(graph))
}

fn returned(graph: &Graph) -> String {
    match &graph.outputs[..] {
        [only] if graph.single_tensor_return => result(only),
        outputs => tuple(outputs.iter().map(result)),
    }
}

/// Number of calls that use each value. The return counts as one call.
fn count_users(graph: &Graph) -> HashMap<&str, usize> {
    let mut users = HashMap::new();
    let operands = graph.nodes.iter().map(|node| node.inputs.iter().flat_map(|i| i.arg.names()).collect::<HashSet<_>>());
    let returned = graph.outputs.iter().flat_map(Argument::names).collect::<HashSet<_>>();
    for name in operands.chain([returned]).flatten() {
        *users.entry(name).or_insert(0) += 1;
    }
    users
}

fn subgraph_users(graph: &Graph, name: &str) -> usize {
    graph.nodes.iter().filter(|n| n.inputs.iter().any(|i| matches!(&i.arg, Argument::Graph(sub) if sub.name == name))).count()
}

/// Results that PyTorch extracts from a call's tuple or list. Empty if the call itself is the
/// value.
fn items(node: &Node) -> Vec<&str> {
    match &node.outputs[..] {
        [Argument::Tensors(list)] => list.iter().map(String::as_str).collect(),
        [_] if node.target.starts_with(HIGHER_ORDER) && node.hop_single_tensor == Some(false) => node.output_names(),
        [] | [_] => Vec::new(),
        _ => node.output_names(),
    }
}

const HIGHER_ORDER: &str = "torch.ops.higher_order.";

fn node_name(node: &Node, index: usize) -> String {
    match (&node.outputs[..], items(node).is_empty()) {
        ([only], true) if !only.names().is_empty() => only.names().concat(),
        ([Argument::None], _) => format!("{}_unused", label(&node.target)),
        _ => node.name.clone().unwrap_or_else(|| format!("{}_{index}", label(&node.target))),
    }
}

/// The name and overload of a target, joined by `_`.
fn label(target: &str) -> String {
    let mut parts = target.rsplit('.');
    let (overload, name) = (parts.next().unwrap_or(target), parts.next());
    name.map_or(overload.to_owned(), |name| format!("{name}_{overload}"))
}

fn target(node: &Node) -> String {
    match node.target.strip_prefix("_operator.") {
        Some(name) => format!("operator.{name}"),
        None => node.target.clone(),
    }
}

fn operands(node: &Node) -> String {
    let with = |passing| node.inputs.iter().filter(move |i| i.passing == passing);
    let args = tuple(with(Passing::Positional).map(|i| value(&i.arg)));
    let kwargs: Vec<String> = with(Passing::Keyword).map(|i| format!("{}: {}", i.name, value(&i.arg))).collect();
    format!("(args = {args}, kwargs = {{{}}})", kwargs.join(", "))
}

fn tuple(items: impl Iterator<Item = String>) -> String {
    match &items.collect::<Vec<_>>()[..] {
        [only] => format!("({only},)"),
        items => format!("({})", items.join(", ")),
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}

fn node(name: &String) -> String {
    format!("%{name}")
}

fn optional(name: &Option<String>) -> String {
    name.as_ref().map_or("None".into(), node)
}

fn symbolic<T>(arg: &SymArg<T>, literal: impl Fn(&T) -> String) -> String {
    match arg {
        SymArg::Literal(value) => literal(value),
        SymArg::Name(name) => node(name),
    }
}

/// Formats an operand like PyTorch: values by name with `%`, strings without quotes.
fn value(arg: &Argument) -> String {
    match arg {
        Argument::None => "None".into(),
        Argument::Tensor(name) | Argument::CustomObj { name, .. } => node(name),
        Argument::OptionalTensor(name) => optional(name),
        Argument::Tensors(names) => list(names.iter().map(node)),
        Argument::OptionalTensors(names) => list(names.iter().map(optional)),
        Argument::NestedTensors(lists) => list(lists.iter().map(|names| list(names.iter().map(node)))),
        Argument::Int(v) => v.to_string(),
        Argument::Ints(v) => list(v.iter().map(i64::to_string)),
        Argument::IntLists(v) => list(v.iter().map(|v| list(v.iter().map(i64::to_string)))),
        Argument::Float(v) => float(*v),
        Argument::Floats(v) => list(v.iter().map(|&v| float(v))),
        Argument::FloatLists(v) => list(v.iter().map(|v| list(v.iter().map(|&v| float(v))))),
        Argument::Bool(v) => boolean(*v).into(),
        Argument::Bools(v) => list(v.iter().map(|&v| boolean(v).into())),
        Argument::String(v) => v.clone(),
        Argument::Strings(v) => list(v.iter().cloned()),
        Argument::Complex(re, im) => complex(*re, *im),
        Argument::SymInt(v) => symbolic(v, i64::to_string),
        Argument::SymInts(v) => list(v.iter().map(|v| symbolic(v, i64::to_string))),
        Argument::SymFloat(v) => symbolic(v, |&v| float(v)),
        Argument::SymFloats(v) => list(v.iter().map(|v| symbolic(v, |&v| float(v)))),
        Argument::SymBool(v) => symbolic(v, |&v| boolean(v).into()),
        Argument::SymBools(v) => list(v.iter().map(|v| symbolic(v, |&v| boolean(v).into()))),
        Argument::ScalarType(v) => v.to_string(),
        Argument::MemoryFormat(v) => v.to_string(),
        Argument::Layout(v) => v.to_string(),
        Argument::Device(v) => v.to_string(),
        Argument::Graph(sub) => node(&sub.name),
        Argument::Operator(v) => v.strip_prefix("torch.ops.").unwrap_or(v).into(),
        Argument::Dict(map) => {
            let entries: Vec<String> = map.iter().map(|(key, arg)| format!("{key}: {}", value(arg))).collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

/// Formats a returned value: values by bare name, strings quoted.
fn result(arg: &Argument) -> String {
    match arg {
        Argument::String(text) => format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'").replace('\n', "\\n")),
        other => value(other).replace('%', ""),
    }
}

fn boolean(v: bool) -> &'static str {
    if v { "True" } else { "False" }
}

fn complex(re: f64, im: f64) -> String {
    let part = |v: f64| float(v).trim_end_matches(".0").to_owned();
    let sign = if im.is_sign_negative() { "" } else { "+" };
    if re == 0.0 && re.is_sign_positive() { format!("{}j", part(im)) } else { format!("({}{sign}{}j)", part(re), part(im)) }
}

/// The shortest text that parses to the same double, in Python's notation.
fn float(v: f64) -> String {
    if v.is_nan() {
        return "nan".into();
    }
    if v.is_infinite() {
        return if v > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{v:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    match exponent.parse::<i32>() {
        Ok(e) if v != 0.0 && !(-4..16).contains(&e) => format!("{digits}e{}{:02}", if e < 0 { '-' } else { '+' }, e.abs()),
        _ => format!("{v:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_print_as_in_python() {
        let check = |v: f64, want: &str| assert_eq!(float(v), want);
        check(1.0, "1.0");
        check(-0.0, "-0.0");
        check(1e-5, "1e-05");
        check(1.5e-7, "1.5e-07");
        check(0.0001, "0.0001");
        check(0.1, "0.1");
        check(1e16, "1e+16");
        check(123456789012345.0, "123456789012345.0");
        check(-3.4028234663852886e38, "-3.4028234663852886e+38");
        check(f64::NEG_INFINITY, "-inf");
        check(f64::NAN, "nan");
    }

    #[test]
    fn operands_print_as_in_pytorch() {
        let check = |arg: Argument, want: &str| assert_eq!(value(&arg), want);
        check(Argument::OptionalTensors(vec![None, Some("t".into())]), "[None, %t]");
        check(Argument::SymInts(vec![SymArg::Literal(-1), SymArg::Name("n".into())]), "[-1, %n]");
        check(Argument::Complex(1.0, -2.5), "(1-2.5j)");
        check(Argument::Complex(0.0, 1.0), "1j");
        check(Argument::Operator("torch.ops.mlx.kv_cache_update.default".into()), "mlx.kv_cache_update.default");
        check(Argument::Dict([("k".to_owned(), Argument::Bool(true))].into_iter().collect()), "{k: True}");
        assert_eq!(result(&Argument::String("it's".into())), "'it\\'s'");
    }
}
