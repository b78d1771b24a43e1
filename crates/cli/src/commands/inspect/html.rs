//! `inspect --html`: a program as one page for a browser.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    path::Path,
};

use anyhow::{Context, Result};
use flambeau::{
    ir::{Checked, Graph, Node, Slot, SlotClass, check},
    runtime::{MLX_BACKEND, Program, verify::readers},
    wire::pte::{EValue, ExecutionPlan, Instruction},
};
use serde_json::{Value as Json, json};

use super::{
    histogram, histogram_json,
    modules::module_paths,
    program::{evalue, kernel_calls, meta_bytes, value_json},
};
use crate::{files, source_map::SourceMap};

/// Data of the page.
const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
const SCRIPT: &str = include_str!("page/page.js");

/// Delegate nodes shown on the page.
const MAX_NODES: usize = 200_000;

/// Microseconds of each node, by method, delegate and position.
pub(super) type Times = HashMap<(String, u64, u64), f64>;

/// The page of a program. `sources` has the source lines of methods by name.
pub(super) fn page(program: &Program, file: &Path, sources: &HashMap<String, SourceMap>, times: Option<&Times>) -> Result<String> {
    let name = file.file_name().unwrap_or(file.as_os_str()).to_string_lossy().into_owned();
    let (mut methods, mut constants) = (Vec::new(), serde_json::Map::new());
    for plan in &program.file().plans {
        match program.constant(&plan.name) {
            Some(values) => drop(constants.insert(plan.name.clone(), values.iter().map(value_json).collect())),
            None => methods.push(method(program, plan, sources.get(&plan.name), times)?),
        }
    }
    let size = program.contents().next().map_or(0, <[u8]>::len);
    let data = json!({ "file": name, "bytes": size, "methods": methods, "constants": constants });
    // Nothing in the data may end the script element or begin a comment.
    let data = data.to_string().replace('<', "\\u003c");
    let title = name.replace('&', "&amp;").replace('<', "&lt;");
    let parts = [("%TITLE%", title.as_str()), ("%STYLE%", STYLE), ("%DATA%", &data), ("%SCRIPT%", SCRIPT)];
    Ok(filled(PAGE, &parts))
}

/// The template with each mark replaced once, in order. Inserted text is not searched for marks.
fn filled(template: &str, parts: &[(&str, &str)]) -> String {
    let (mut page, mut rest) = (String::new(), template);
    for (mark, text) in parts {
        if let Some((before, after)) = rest.split_once(mark) {
            page += before;
            page += text;
            rest = after;
        }
    }
    page + rest
}

fn method(program: &Program, plan: &ExecutionPlan, source: Option<&SourceMap>, times: Option<&Times>) -> Result<Json> {
    let time = |delegate: usize, node: usize| times?.get(&(plan.name.clone(), delegate as u64, node as u64)).copied();
    let values = |list: &[u32]| list.iter().map(|&v| evalue(plan.values.get(v as usize))).collect::<Vec<_>>();
    let delegates = plan.delegates.iter().enumerate().map(|(number, delegate)| {
        let payload = program.file().delegate_payload(delegate).len();
        let mut described = json!({ "id": delegate.id, "number": number, "payload": payload });
        if delegate.id == MLX_BACKEND {
            match program.graph(plan, number, delegate).map_err(|e| e.to_string()).and_then(|g| check(g).map_err(|e| e.to_string()))
            {
                Ok(graph) => {
                    let nodes: usize = graph.chains.iter().map(Vec::len).sum();
                    if nodes > MAX_NODES {
                        anyhow::bail!("delegate {number} of {} has {nodes} nodes, the page shows up to {MAX_NODES}", plan.name);
                    }
                    describe_graph(&mut described, program, &graph, number, source, &time);
                }
                Err(error) => described["error"] = json!(error),
            }
        }
        Ok(described)
    });
    let kernels = kernel_calls(plan);
    Ok(json!({
        "name": plan.name,
        "inputs": values(&plan.inputs),
        "outputs": values(&plan.outputs),
        "arenas": plan.non_const_buffer_sizes.iter().skip(1).collect::<Vec<_>>(),
        "planned": planned(plan),
        "kernels": histogram_json(&histogram(kernels.iter().map(String::as_str))),
        "instructions": plan.chains.iter().flat_map(|chain| &chain.instructions).map(|i| instruction(plan, i)).collect::<Vec<_>>(),
        "delegates": delegates.collect::<Result<Vec<_>>>()?,
    }))
}

/// Values allocated in a planned arena.
fn planned(plan: &ExecutionPlan) -> Vec<Json> {
    let value = |(at, value): (usize, &EValue)| {
        let EValue::Tensor(tensor) = value else { return None };
        let place = tensor.allocation.as_ref()?;
        let count: u64 = tensor.sizes.iter().map(|&size| u64::from(size)).product();
        let bytes = count.saturating_mul(tensor.dtype.size() as u64);
        let text = evalue(Some(value));
        Some(json!({ "value": at, "type": text, "arena": place.memory_id, "offset": place.offset, "bytes": bytes }))
    };
    plan.values.iter().enumerate().filter_map(value).collect()
}

fn instruction(plan: &ExecutionPlan, instruction: &Instruction) -> String {
    match instruction {
        Instruction::KernelCall { op, args } => {
            let name = plan.operators.get(*op as usize).map(|operator| operator.full_name()).unwrap_or_default();
            format!("kernel {name} {args:?}")
        }
        Instruction::DelegateCall { delegate, args } => format!("delegate {delegate} {args:?}"),
        Instruction::MoveCall { from, to } => format!("move {from} to {to}"),
        Instruction::JumpFalse { cond, destination } => format!("jump to {destination} if {cond} is false"),
        Instruction::Free { value } => format!("free {value}"),
    }
}

/// Adds the nodes and the stored tensors of a graph.
fn describe_graph(
    described: &mut Json,
    program: &Program,
    graph: &Checked,
    number: usize,
    source: Option<&SourceMap>,
    time: &dyn Fn(usize, usize) -> Option<f64>,
) {
    let (weights, numbers) = stored(program, graph);
    let results = results(graph);
    let readers = readers(graph);
    let modules = module_paths(graph, |at| source.and_then(|map| map.call(number, at)?.source.module.clone()));
    let main = graph.chains[graph.main as usize].len();
    let mut nodes: Vec<Json> = Vec::new();
    for (at, node) in graph.chains[graph.main as usize].iter().enumerate() {
        let mut entry = entry(node, &numbers);
        entry["module"] = json!(modules[at]);
        entry["result"] = json!(results[at]);
        entry["source"] = json!(source.and_then(|map| map.describe(number, at)));
        entry["readers"] = json!(readers[at]);
        entry["time"] = json!(time(number, at));
        nodes.push(entry);
    }
    add_inner(graph, &numbers, &mut nodes);
    described["nodes"] = nodes.into();
    described["main"] = json!(main);
    described["weights"] = weights.into();
}

/// Kind, text and weights of a node.
fn entry(node: &Node, numbers: &HashMap<Slot, usize>) -> Json {
    let mut used: Vec<usize> = Vec::new();
    node.walk(&mut |_, slot| {
        if let Some(&weight) = numbers.get(&slot).filter(|weight| !used.contains(weight)) {
            used.push(weight);
        }
    });
    json!({ "op": node.name(), "text": node.to_string(), "weights": used })
}

/// Adds the nodes of branches and loop bodies after the main chain. A node that runs chains lists
/// each with its name, the number of its first node, and its number of nodes.
fn add_inner(graph: &Checked, numbers: &HashMap<Slot, usize>, nodes: &mut Vec<Json>) {
    let mut starts: HashMap<u32, usize> = HashMap::new();
    let mut waiting: VecDeque<(usize, &Node)> = graph.chains[graph.main as usize].iter().enumerate().collect();
    while let Some((number, node)) = waiting.pop_front() {
        let names: &[&str] = if matches!(node, Node::If(_)) { &["if true", "if false"] } else { &["body"] };
        let mut chains = Vec::new();
        for (chain, name) in node.chains().into_iter().zip(names) {
            let inner = &graph.chains[chain.0 as usize];
            let start = *starts.entry(chain.0).or_insert_with(|| {
                let start = nodes.len();
                let readers = readers_in(graph, chain.0);
                for (at, node) in inner.iter().enumerate() {
                    let mut entry = entry(node, numbers);
                    entry["readers"] = readers[at].iter().map(|reader| start + reader).collect();
                    entry["parent"] = json!(number);
                    entry["branch"] = json!(name);
                    waiting.push_back((start + at, node));
                    nodes.push(entry);
                }
                start
            });
            chains.push(json!([name, start, inner.len()]));
        }
        if !chains.is_empty() {
            nodes[number]["chains"] = chains.into();
        }
    }
}

/// [`readers`] of another chain than the main one.
fn readers_in(graph: &Graph, chain: u32) -> Vec<Vec<usize>> {
    let part = Graph { main: chain, ..graph.clone() };
    readers(&part)
}

/// Constants and mutable buffers, with their numbers by slot.
fn stored(program: &Program, graph: &Graph) -> (Vec<Json>, HashMap<Slot, usize>) {
    let (mut list, mut numbers) = (Vec::new(), HashMap::new());
    for (name, slot) in &graph.names {
        let Slot::Tensor(tid) = slot else { continue };
        let (kind, bytes) = match graph.slots.class(*tid) {
            Some(SlotClass::Constant) => ("constant", program.named(name).map_or(0, |bytes| bytes.len() as u64)),
            Some(SlotClass::Buffer) => ("buffer", meta_bytes(graph, tid.0 as usize)),
            _ => continue,
        };
        numbers.insert(*slot, list.len());
        let meta = graph.meta.get(tid.0 as usize).map(ToString::to_string);
        list.push(json!({ "name": name, "kind": kind, "type": meta, "bytes": bytes }));
    }
    (list, numbers)
}

/// Types and shapes of each node's results. Unknown sizes are symbols.
fn results(graph: &Checked) -> Vec<String> {
    let main = graph.main as usize;
    let written = |node: &Node| {
        let mut slots = Vec::new();
        node.walk(&mut |role, slot| {
            if role != flambeau::ir::Role::Read {
                slots.push(slot);
            }
        });
        slots
    };
    let mut texts = vec![String::new(); graph.chains[main].len()];
    let mut last: Option<usize> = None;
    graph.visit_places(&mut |chain, at, _, env| {
        // The contents before a node of the main chain are the results of the node before it.
        if chain == main {
            if let Some(before) = last {
                texts[before] = described(env, &written(&graph.chains[main][before]));
            }
            last = Some(at);
        }
    });
    if let (Some(before), Some(text)) = (last, texts.last_mut()) {
        let outputs = graph.outputs.iter().zip(graph.results());
        let slots = written(&graph.chains[main][before]);
        let own = outputs.filter(|(slot, _)| slots.contains(slot)).map(|(_, content)| content.to_string());
        *text = own.collect::<Vec<_>>().join(", ");
    }
    texts
}

fn described(env: &flambeau::ir::Env, slots: &[Slot]) -> String {
    let text = |slot: &Slot| match slot {
        Slot::Tensor(tid) => env.get(*tid).map(ToString::to_string),
        Slot::Value(vid) => env.get_value(*vid).map(ToString::to_string),
    };
    slots.iter().filter_map(text).collect::<Vec<_>>().join(", ")
}

/// Median microseconds of each node in a trace of `--trace`.
pub(super) fn read_trace(path: &Path) -> Result<Times> {
    let text = files::read(path)?;
    let trace: Json = serde_json::from_slice(&text).with_context(|| format!("{} is no trace", path.display()))?;
    let events = trace["traceEvents"].as_array().with_context(|| format!("{} has no `traceEvents`", path.display()))?;
    let mut found: BTreeMap<(String, u64, u64), Vec<f64>> = BTreeMap::new();
    for event in events {
        let args = &event["args"];
        if let (Some(method), Some(delegate), Some(node), Some(time)) =
            (args["method"].as_str(), args["delegate"].as_u64(), args["node"].as_u64(), event["dur"].as_f64())
        {
            found.entry((method.to_owned(), delegate, node)).or_default().push(time);
        }
    }
    anyhow::ensure!(!found.is_empty(), "{} has no times of nodes; `flambeau bench --trace` writes them", path.display());
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    Ok(found.into_iter().map(|(place, times)| (place, median(times))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_in_what_is_put_in_stay() {
        assert_eq!(filled("<a>%A%</a>%B%", &[("%A%", "%B%"), ("%B%", "2")]), "<a>%B%</a>2");
    }
}
