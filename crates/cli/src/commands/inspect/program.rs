//! `.pte` files.

use anyhow::Result;
use flambeau::{
    ir::{self, Graph, Slot, SlotClass},
    runtime::{MLX_BACKEND, Program, Value},
    tensor::Bytes,
    wire::{
        bundled::{TestSuite, read_bundled_program},
        pte::{EValue, ExecutionPlan, Instruction},
    },
};
use serde_json::{Value as Json, json};

use super::{Description, histogram, histogram_json};
use crate::memory::human;

/// Describes a program; with `nodes`, every node of its delegates.
pub(crate) fn describe(bytes: Bytes, nodes: bool) -> Result<Description> {
    let size = bytes.len();
    let program = Program::from_bytes(bytes)?;
    let named: u64 = segments_size(&program);
    let mut lines = vec![format!(
        "ExecuTorch program, {}, {} keys of named data ({})",
        human(size as u64),
        program.file().named_data.len(),
        human(named)
    )];
    let (mut methods, mut constants) = (Vec::new(), serde_json::Map::new());
    for plan in &program.file().plans {
        match program.constant(&plan.name) {
            Some(values) => {
                let values: Vec<Json> = values.iter().map(value_json).collect();
                let shown: Vec<String> = values.iter().map(Json::to_string).collect();
                lines.push(format!("constant {} = {}", plan.name, shown.join(", ")));
                constants.insert(plan.name.clone(), values.into());
            }
            None => methods.push(method(&program, plan, nodes, &mut lines)),
        }
    }
    let unsupported = &program.file().unsupported;
    lines.extend(unsupported.iter().map(|method| format!("method {} cannot run here: {}", method.name, method.reason)));
    let unsupported: Vec<Json> = unsupported.iter().map(|m| json!({ "name": m.name, "reason": m.reason })).collect();
    let json = json!({ "kind": "pte", "bytes": size, "named_data": { "keys": program.file().named_data.len(), "bytes": named },
                       "methods": methods, "unsupported": unsupported, "constants": constants });
    Ok(Description { lines, json })
}

/// Describes a bundled program: its test cases, and the program in it.
pub(crate) fn describe_bundled(bytes: &Bytes, nodes: bool) -> Result<Description> {
    let bundle = read_bundled_program(bytes)?;
    let mut description = describe(bundle.program, nodes)?;
    let cases = |suite: &TestSuite| format!("test cases of {}: {}", suite.method.escape_debug(), suite.cases.len());
    description.lines.splice(0..0, bundle.suites.iter().map(cases));
    description.json["test_cases"] = bundle
        .suites
        .iter()
        .map(|suite| (suite.method.clone(), json!(suite.cases.len())))
        .collect::<serde_json::Map<_, _>>()
        .into();
    Ok(description)
}

/// Total size of the segments that hold named data, in bytes.
fn segments_size(program: &Program) -> u64 {
    let mut used: Vec<u32> = program.file().named_data.values().copied().collect();
    used.sort_unstable();
    used.dedup();
    used.into_iter().map(|segment| program.file().segment(segment).len() as u64).sum()
}

pub(super) fn value_json(value: &Value) -> Json {
    match value {
        Value::Int(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::Double(v) => json!(v),
        Value::String(v) => json!(v),
        Value::None => Json::Null,
        Value::Tensor(_) => json!(value.describe()),
    }
}

pub(super) fn evalue(value: Option<&EValue>) -> String {
    match value {
        Some(EValue::Tensor(t)) => {
            let dims: Vec<String> = t.sizes.iter().map(u32::to_string).collect();
            format!("{}[{}]{}", t.dtype, dims.join(", "), if t.dynamic { " at most" } else { "" })
        }
        Some(EValue::Int(v)) => format!("integer {v}"),
        Some(EValue::Bool(v)) => format!("boolean {v}"),
        Some(EValue::Double(v)) => format!("number {v}"),
        Some(EValue::String(v)) => format!("string {v:?}"),
        Some(_) => "list".into(),
        None => "none".into(),
    }
}

fn method(program: &Program, plan: &ExecutionPlan, nodes: bool, lines: &mut Vec<String>) -> Json {
    lines.push(format!("method {}", plan.name));
    let mut values = |what: &str, list: &[u32]| -> Vec<String> {
        let shown: Vec<String> = list.iter().map(|&v| evalue(plan.values.get(v as usize))).collect();
        shown.iter().enumerate().for_each(|(i, v)| lines.push(format!("  {what} {i}: {v}")));
        shown
    };
    let (inputs, outputs) = (values("input", &plan.inputs), values("output", &plan.outputs));
    let arenas: u64 = plan.non_const_buffer_sizes.iter().sum();
    lines.push(format!("  planned memory: {}", human(arenas)));
    let operators: Vec<String> = kernel_calls(plan);
    let kernels = histogram(operators.iter().map(String::as_str));
    kernels.iter().for_each(|(name, count)| lines.push(format!("  kernel {name}: {count} calls")));
    let delegates: Vec<Json> = plan
        .delegates
        .iter()
        .enumerate()
        .map(|(i, d)| {
            let payload = program.file().delegate_payload(d).len();
            lines.push(format!("  delegate {i}: {}, payload {}", d.id.escape_debug(), human(payload as u64)));
            if d.id != MLX_BACKEND {
                return json!({ "id": d.id, "payload_bytes": payload });
            }
            match program.graph(plan, i, d) {
                Ok(graph) => delegate(program, graph, payload, nodes, lines),
                Err(error) => {
                    lines.push(format!("    invalid: {error}"));
                    json!({ "id": d.id, "payload_bytes": payload, "error": error.to_string() })
                }
            }
        })
        .collect();
    json!({ "name": plan.name, "inputs": inputs, "outputs": outputs, "planned_bytes": arenas,
            "kernels": histogram_json(&kernels), "delegates": delegates })
}

pub(super) fn kernel_calls(plan: &ExecutionPlan) -> Vec<String> {
    let instructions = plan.chains.iter().flat_map(|chain| &chain.instructions);
    let name = |instruction: &Instruction| match instruction {
        Instruction::KernelCall { op, .. } => plan.operators.get(*op as usize).map(|o| o.full_name()),
        _ => None,
    };
    instructions.filter_map(name).collect()
}

fn delegate(program: &Program, graph: Graph, payload: usize, nodes: bool, lines: &mut Vec<String>) -> Json {
    let class_bytes = |class: SlotClass| -> u64 {
        let slots = graph.names.iter().filter_map(|(name, slot)| match slot {
            Slot::Tensor(tid) if graph.slots.class(*tid) == Some(class) => Some((name, *tid)),
            _ => None,
        });
        slots
            .map(|(name, tid)| match class {
                SlotClass::Constant => program.named(name).map_or(0, |b| b.len() as u64),
                _ => meta_bytes(&graph, tid.0 as usize),
            })
            .sum()
    };
    let (constants, buffers) = (class_bytes(SlotClass::Constant), class_bytes(SlotClass::Buffer));
    let s = graph.slots;
    lines.push(format!(
        "    {} constants ({}), {} mutable buffers ({}), {} temporaries",
        s.constants,
        human(constants),
        s.buffers,
        human(buffers),
        s.temps
    ));
    lines.push(format!("    {} nodes in {} chains", graph.node_count(), graph.chains.len()));
    let mut chains = Vec::new();
    for (i, chain) in graph.chains.iter().enumerate() {
        let role = if i as u32 == graph.main {
            " (main)"
        } else if graph.init == Some(i as u32) {
            " (init)"
        } else {
            ""
        };
        let counts = histogram(chain.iter().map(|node| node.name()));
        lines.push(format!("    chain {i}{role}: {} nodes", chain.len()));
        counts.iter().for_each(|(name, count)| lines.push(format!("      {count:>6}  {name}")));
        chains.push(json!({ "nodes": chain.len(), "counts": histogram_json(&counts) }));
    }
    let mut json = json!({ "id": MLX_BACKEND, "payload_bytes": payload, "constants": s.constants, "constant_bytes": constants,
                           "buffers": s.buffers, "buffer_bytes": buffers, "chains": chains });
    if nodes {
        lines.extend(graph.to_string().lines().map(|line| format!("    {line}")));
        json["graph"] = ir::json::to_json(&graph);
    }
    if let Err(error) = ir::check(graph) {
        lines.push(format!("    invalid: {error}"));
        json["error"] = json!(error.to_string());
    }
    json
}

/// Bytes of a slot with a static shape, by its metadata.
pub(super) fn meta_bytes(graph: &Graph, slot: usize) -> u64 {
    let Some(meta) = graph.meta.get(slot) else { return 0 };
    let numel = meta.static_shape().and_then(|shape| flambeau::tensor::numel(&shape)).unwrap_or(0);
    numel.saturating_mul(meta.dtype.size()) as u64
}
