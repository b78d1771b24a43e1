//! Graphs, measurements and verification of programs.

use flambeau::{
    engine::LoadOptions,
    ir::json,
    runtime::MLX_BACKEND,
    tensor::{AlignedBytes, Tolerance},
    wire::bundled::read_bundled_program,
};
use flambeau_cli::library::{self, Verification};
use pyo3::{prelude::*, types::PyBytes};
use serde_json::{Value as Json, json};

use crate::{
    convert, engines,
    errors::{self, ExecutionError, LoadError},
    program::PyProgram,
};

/// The graphs of a method's delegates as JSON, in order. `null` for a delegate of another backend.
#[pyfunction]
pub(crate) fn graphs(program: &Bound<'_, PyProgram>, method: &str) -> PyResult<String> {
    let program = program.get();
    let plan = program.plan(method)?;
    let graph = |(number, delegate): (usize, &_)| -> PyResult<Json> {
        let delegate: &flambeau::wire::pte::Delegate = delegate;
        if delegate.id != MLX_BACKEND {
            return Ok(Json::Null);
        }
        let graph = program.inner().0.graph(plan, number, delegate).map_err(|error| errors::of_runtime(&error))?;
        Ok(json::to_json(&graph))
    };
    let graphs = plan.delegates.iter().enumerate().map(graph).collect::<PyResult<Vec<_>>>()?;
    Ok(Json::from(graphs).to_string())
}

/// The program on an engine that measures. Its methods record their runs. With `room` above 0, each
/// method keeps the results of its nodes and calls, up to `room` bytes.
#[pyfunction]
#[pyo3(signature = (program, room=0))]
pub(crate) fn measured(py: Python<'_>, program: &Bound<'_, PyProgram>, room: usize) -> PyResult<PyProgram> {
    program.get().measured(py, room)
}

/// The measured steps of a program as JSON. Times are in nanoseconds.
#[pyfunction]
pub(crate) fn steps(program: &Bound<'_, PyProgram>) -> String {
    let mut list = Vec::new();
    for (number, run) in program.get().runs().iter().enumerate() {
        for i in &run.instructions {
            let step = |name: &str, start: u64, time: u64| {
                json!({ "method": run.method, "run": number, "instruction": i.place.instruction, "delegate": i.delegate, "name": name,
                        "start": start, "time": time, "node": null, "bytes": 0, "flops": 0 })
            };
            if i.steps.is_empty() {
                list.push(step(&i.name, i.start, i.time));
            }
            for span in &i.steps {
                let mut entry = step(&span.name, span.start, span.time);
                (entry["node"], entry["bytes"], entry["flops"]) = (json!(span.node), json!(span.bytes), json!(span.flops));
                list.push(entry);
            }
        }
    }
    Json::from(list).to_string()
}

/// The measured runs of a program as an ETDump, and its debug buffer.
#[pyfunction]
pub(crate) fn etdump<'py>(py: Python<'py>, program: &Bound<'py, PyProgram>) -> [Bound<'py, PyBytes>; 2] {
    let runs = program.get().runs();
    let dump = py.detach(|| library::etdump(&runs));
    [&dump.file, &dump.debug_buffer].map(|bytes| PyBytes::new(py, bytes))
}

/// The measured runs of a program as a trace for Perfetto.
#[pyfunction]
pub(crate) fn trace<'py>(py: Python<'py>, program: &Bound<'py, PyProgram>) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = library::trace(&program.get().runs()).map_err(|error| ExecutionError::new_err(error.to_string()))?;
    Ok(PyBytes::new(py, &bytes))
}

/// Runs a test case of a bundled program, and fails if an output differs.
#[pyfunction]
pub(crate) fn run_test_case(
    py: Python<'_>,
    bundle: Vec<u8>,
    method: &str,
    case: usize,
    rtol: f64,
    atol: f64,
    engine: Vec<String>,
) -> PyResult<()> {
    let engine = engines::engine(py, &engine)?;
    let bundle = read_bundled_program(&AlignedBytes::copy_of(&bundle).into_bytes());
    let bundle = bundle.map_err(|error| LoadError::new_err(error.to_string()))?;
    let tolerance = Some(Tolerance { relative: rtol, absolute: atol });
    let run = py.detach(|| library::run_test_case(&bundle, (method, case), &engine, tolerance));
    run.map_err(|error| ExecutionError::new_err(format!("{error:#}")))
}

/// The verdict of `flambeau verify --json` on a method, as JSON.
#[pyfunction]
#[pyo3(signature = (program, method, *, inputs=None, against=None, runs=2, seed=0, bound=None, tolerance=None))]
#[allow(clippy::too_many_arguments, reason = "keyword arguments of Python")]
pub(crate) fn verify(
    py: Python<'_>,
    program: &Bound<'_, PyProgram>,
    method: &str,
    inputs: Option<&Bound<'_, PyAny>>,
    against: Option<&Bound<'_, PyProgram>>,
    runs: usize,
    seed: u32,
    bound: Option<u32>,
    tolerance: Option<(f64, f64)>,
) -> PyResult<String> {
    let (own, engine) = program.get().inner();
    let inputs = match inputs {
        Some(inputs) => {
            let options = LoadOptions { kv_cache: program.get().kv_cache(), ..LoadOptions::default() };
            let loaded = own.method(method, engine, &options);
            let loaded = loaded.map_err(|error| errors::of_runtime(&error))?;
            Some(convert::arguments(inputs, loaded.inputs(), method)?)
        }
        None => None,
    };
    let against = against.map(|other| other.get().inner().0);
    let tolerance = tolerance.map(|(relative, absolute)| Tolerance { relative, absolute });
    let how = Verification { inputs, runs, seed, bound, tolerance, against, kv_cache: program.get().kv_cache() };
    let verdict = py.detach(|| library::verify(own, method, engine, how));
    verdict.map(|verdict| verdict.to_string()).map_err(|error| ExecutionError::new_err(format!("{error:#}")))
}
