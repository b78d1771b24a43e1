//! Every call of ExecuTorch's sessions runs from a plan made ahead, except for nodes that depend on
//! the run.

use std::{collections::BTreeMap, fs, path::Path, process::ExitCode, sync::Arc};

use flambeau_cpu::CpuEngine;
use flambeau_runtime::{Engine, KvCacheConfig, KvLayer, LoadOptions, Method, Program, SharedState, Value, ValueKind};
use flambeau_tensor::{Bytes, DType, Tensor, cast, tensor_list};
use flambeau_testcases::{per_case, sessions};
use serde_json::Value as Json;

type Result<T, E = Box<dyn std::error::Error>> = std::result::Result<T, E>;

/// Session cases with caches or recordings of a length that each call determines. The listed nodes
/// may therefore be prepared during a run.
const SIZED_BY_CALLS: [(&str, &[&str]); 5] = [
    ("sessions/dflash-", &["Concatenate", "Slice"]),
    ("sessions/gemma4-31b-", &["MetalKernel", "Slice", "SymSize"]),
    ("sessions/hf-b-gemma3-", &["SymSize"]),
    ("sessions/parakeet-", &["ARange", "AsType", "ExpandDims", "Less", "Multiply", "Sum"]),
    ("sessions/vrt-streaming-", &["SymSize"]),
];

/// Reasons that follow from the program's form, whatever its data.
const OF_CHAINS: [&str; 2] = ["it runs other chains", "a node runs its chain"];

/// The configuration of the session's caches.
fn kv_cache(json: &Json) -> Result<KvCacheConfig> {
    let numbers = |name: &str| -> Result<Vec<usize>> { Ok(serde_json::from_value(json[name].clone())?) };
    let (heads, sizes, windows) = (numbers("kv_heads")?, numbers("head_dims")?, numbers("windows")?);
    let layer = |((n_kv_heads, head_dim), window)| KvLayer { window: Some(window).filter(|&w| w > 0), n_kv_heads, head_dim };
    let dtype = json["dtype"].as_str().and_then(DType::from_name).ok_or("no dtype of the caches")?;
    let number = |name: &str| json[name].as_u64().map(|n| n as usize);
    Ok(KvCacheConfig {
        capacity: number("capacity").ok_or("no capacity")?,
        layers: heads.into_iter().zip(sizes).zip(windows).map(layer).collect(),
        dtype,
        max_write: number("max_write"),
    })
}

/// The method's arguments: the tensors in order, integers where it takes integers.
fn arguments(method: &Method, tensors: Vec<Tensor>) -> Result<Vec<Value>> {
    let mut tensors = tensors.into_iter();
    let mut argument = |kind: &ValueKind| {
        Ok(match kind {
            ValueKind::Fixed(value) => value.clone(),
            ValueKind::Int => Value::Int(cast(&tensors.next().ok_or("a tensor is missing")?, DType::I64)?.as_slice::<i64>()?[0]),
            ValueKind::Tensor(_) => Value::Tensor(tensors.next().ok_or("a tensor is missing")?),
        })
    };
    method.inputs().iter().map(|spec| argument(&spec.kind)).collect()
}

/// Makes all calls of a session. All nodes must be planned ahead, except nodes that depend on the
/// run.
fn check(name: &str, folder: &Path) -> Result<()> {
    // Python writes infinite margins in a form that JSON lacks.
    let text = fs::read_to_string(folder.join("session.json"))?.replace(": Infinity", ": null");
    let session: Json = serde_json::from_str(&text)?;
    let program = Program::open(folder.join("model.pte"))?;
    let kv_cache = session.get("kv_cache").filter(|cache| !cache.is_null()).map(kv_cache).transpose()?;
    let options = LoadOptions { kv_cache, shared: Some(SharedState::default()) };
    let engine = Arc::new(CpuEngine::new(Some(1))) as Arc<dyn Engine>;
    let mut methods: BTreeMap<&str, Method> = BTreeMap::new();
    for call in session["calls"].as_array().ok_or("no calls")? {
        let (method, inputs) = (call["method"].as_str().ok_or("no method")?, call["inputs"].as_str().ok_or("no inputs")?);
        if !methods.contains_key(method) {
            methods.insert(method, program.method(method, &engine, &options)?);
        }
        let loaded = methods.get_mut(method).ok_or("no method")?;
        let tensors = tensor_list::read(&Bytes::from(fs::read(folder.join(inputs))?))?;
        let arguments = arguments(loaded, tensors)?;
        loaded.run(&arguments)?;
    }
    let sized = SIZED_BY_CALLS.iter().find(|(case, _)| name.starts_with(case)).map_or(&[][..], |(_, nodes)| nodes);
    for (method, loaded) in &methods {
        let steps = loaded.steps().ok_or("the CPU engine plans its steps")?;
        let waited: Vec<_> =
            steps.node_by_node.iter().filter(|n| !sized.contains(&n.node) && !OF_CHAINS.contains(&n.why.as_str())).collect();
        if steps.planned == 0 || !waited.is_empty() {
            return Err(format!("{method}: {} planned steps, and nodes waited for their turn: {waited:?}", steps.planned).into());
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let cases = sessions(Path::new(env!("CARGO_TARGET_TMPDIR")));
    flambeau_testcases::run(per_case(cases, |name, folder| check(name, folder).map_err(|error| error.to_string())))
}
