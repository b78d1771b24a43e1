//! Running a case on an engine.

use std::{collections::HashMap, fs, path::Path, sync::Arc};

use flambeau_ir::{
    Graph, check,
    engine::{Constants, Engine, KvCacheConfig, KvLayer, LoadOptions, Session, Value},
};
use flambeau_tensor::{Bytes, DType, Tensor, Tolerance, cast, compare, tensor_list};
use flambeau_wire::{
    mlx,
    pte::{EValue, ExecutionPlan, Instruction, Program, read_program},
};

use crate::Outcome;

struct Named<'a>(&'a Program);

impl Constants for Named<'_> {
    fn get(&self, key: &str) -> Option<Bytes> {
        self.0.named(key)
    }
}

/// The contents of a case's files.
#[derive(Debug)]
pub struct LoadedCase {
    program: Program,
    inputs: Vec<Tensor>,
    facts: serde_json::Value,
}

fn read(folder: &Path, name: &str) -> Result<Bytes, String> {
    fs::read(folder.join(name)).map(Bytes::from).map_err(|e| format!("{name}: {e}"))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

impl LoadedCase {
    /// Reads the files of a case folder.
    ///
    /// # Errors
    /// Fails if a file is missing or malformed.
    pub fn open(folder: &Path) -> Result<LoadedCase, String> {
        let facts = serde_json::from_slice(&read(folder, "case.json")?).map_err(text)?;
        let program = read_program(&read(folder, "model.pte")?).map_err(text)?;
        Ok(LoadedCase { program, inputs: tensor_list::read(&read(folder, "input.bin")?).map_err(text)?, facts })
    }

    fn plan(&self) -> Result<&ExecutionPlan, String> {
        self.program.plan("forward").ok_or_else(|| "no method `forward`".to_owned())
    }

    /// The graph and arguments of the method's only delegate call; `None` if the method does more.
    ///
    /// # Errors
    /// Fails if there is no method `forward`, or if the payload does not decode.
    pub fn delegate_call(&self) -> Result<Option<(Graph, Vec<u32>)>, String> {
        let plan = self.plan()?;
        let instructions: Vec<&Instruction> = plan.chains.iter().flat_map(|c| &c.instructions).collect();
        let [Instruction::DelegateCall { delegate, args }] = instructions[..] else { return Ok(None) };
        let payload = self.program.delegate_payload(&plan.delegates[*delegate as usize]);
        Ok(Some((mlx::decode(&payload).map_err(text)?, args.clone())))
    }

    /// Loads a graph for the case; also returns the call's arguments.
    ///
    /// # Errors
    /// Fails if the graph is invalid, if the engine refuses it, or if the case's inputs do not
    /// match the method's.
    pub fn load(&self, engine: &dyn Engine, graph: Graph, args: &[u32]) -> Result<(Box<dyn Session>, Vec<Value>), String> {
        let graph = Arc::new(check(graph).map_err(text)?);
        let options = LoadOptions { kv_cache: kv_cache(&self.facts["kv_cache"]), ..LoadOptions::default() };
        let session = engine.load(Arc::clone(&graph), &Named(&self.program), &options).map_err(text)?;
        let values = bind_inputs(self.plan()?, self.inputs.clone())?;
        let ins = args.iter().take(graph.inputs.len());
        Ok((session, ins.map(|i| argument(self.plan()?, &values, *i)).collect::<Result<_, _>>()?))
    }

    /// Loads a graph and runs it with the case's inputs; returns the method's values after the run.
    ///
    /// # Errors
    /// As [`LoadedCase::load`]; also fails if the run fails.
    pub fn run(&self, engine: &dyn Engine, graph: Graph, args: &[u32]) -> Result<HashMap<u32, Value>, String> {
        let mut values = bind_inputs(self.plan()?, self.inputs.clone())?;
        let (mut session, arguments) = self.load(engine, graph, args)?;
        let outs = args.iter().skip(arguments.len()).copied();
        values.extend(outs.zip(session.run(&arguments).map_err(text)?));
        Ok(values)
    }
}

/// Runs the program of a case folder and compares the results, unless the case skips the
/// comparison. Ignores methods with more than one delegate call.
pub fn run_case(engine: &dyn Engine, folder: &Path) -> Outcome {
    let run = || {
        let case = LoadedCase::open(folder)?;
        let Some((graph, args)) = case.delegate_call()? else {
            return Ok(Outcome::Ignored("the method does more than one delegate call".into()));
        };
        let values = case.run(engine, graph, &args)?;
        if case.facts["skip_comparison"] != true {
            let number = |key: &str| case.facts[key].as_f64().unwrap_or(0.0);
            let tolerance = Tolerance { relative: number("rtol"), absolute: number("atol") };
            compare_outputs(case.plan()?, &values, &read(folder, "expected_output.bin")?, tolerance)?;
        }
        Ok(Outcome::Passed)
    };
    run().unwrap_or_else(Outcome::Failed)
}

/// The method's arguments by value index; the case stores integers as tensors.
fn bind_inputs(plan: &ExecutionPlan, inputs: Vec<Tensor>) -> Result<HashMap<u32, Value>, String> {
    let open = plan.inputs.iter().filter(|&&i| matches!(plan.values[i as usize], EValue::Tensor(_) | EValue::Int(_)));
    let open: Vec<u32> = open.copied().collect();
    if open.len() != inputs.len() {
        return Err(format!("the method takes {} inputs, the case has {}", open.len(), inputs.len()));
    }
    let value = |(index, input): (u32, Tensor)| match plan.values[index as usize] {
        EValue::Int(_) => Ok((index, Value::Int(cast(&input, DType::I32).map_err(text)?.as_slice().map_err(text)?[0]))),
        _ => Ok((index, Value::Tensor(input))),
    };
    open.into_iter().zip(inputs).map(value).collect()
}

fn argument(plan: &ExecutionPlan, values: &HashMap<u32, Value>, index: u32) -> Result<Value, String> {
    if let Some(value) = values.get(&index) {
        return Ok(value.clone());
    }
    match &plan.values[index as usize] {
        EValue::Int(v) => i32::try_from(*v).map(Value::Int).map_err(|e| e.to_string()),
        other => Err(format!("argument {index} is {other:?}")),
    }
}

fn compare_outputs(
    plan: &ExecutionPlan,
    values: &HashMap<u32, Value>,
    expected: &Bytes,
    tolerance: Tolerance,
) -> Result<(), String> {
    let expected = tensor_list::read(expected).map_err(|e| e.to_string())?;
    let outputs: Vec<u32> =
        plan.outputs.iter().copied().filter(|&i| matches!(plan.values[i as usize], EValue::Tensor(_))).collect();
    if outputs.len() != expected.len() {
        return Err(format!("the method gives {} tensors, the case has {}", outputs.len(), expected.len()));
    }
    for (i, (index, expected)) in outputs.iter().zip(&expected).enumerate() {
        let Some(Value::Tensor(actual)) = values.get(index) else { return Err(format!("output {i} is not a tensor")) };
        let EValue::Tensor(declared) = &plan.values[*index as usize] else { continue };
        let actual = cast(actual, declared.dtype).map_err(|e| e.to_string())?;
        compare(&actual, expected, tolerance).map_err(|e| format!("output {i}: {e}"))?;
    }
    Ok(())
}

/// Parses `capacity,n_layers,n_kv_heads,head_dim[,kv_dtype]`.
fn kv_cache(spec: &serde_json::Value) -> Option<KvCacheConfig> {
    let numbers: Vec<usize> = spec.as_str()?.split(',').filter_map(|n| n.parse().ok()).collect();
    let [capacity, n_layers, n_kv_heads, head_dim, ref dtype @ ..] = numbers[..] else { return None };
    let layers = vec![KvLayer { window: None, n_kv_heads, head_dim }; n_layers];
    let dtype = dtype.first().and_then(|&d| DType::from_code(d as i8)).unwrap_or(DType::F32);
    Some(KvCacheConfig { capacity, layers, dtype, max_write: None })
}
