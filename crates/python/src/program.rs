//! Programs and their methods.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use flambeau::{
    engine::{Clock, Engine, KvCacheConfig, LoadOptions, SharedState},
    runtime::{Method, Program, RunTrace, Value, ValueSpec},
    tensor::{AlignedBytes, Tensor},
    wire::pte::{EValue, ExecutionPlan, TensorValue},
};
use pyo3::{
    exceptions::PyIndexError,
    prelude::*,
    types::{PyByteArray, PyBytes},
};

use crate::{
    convert,
    engines::{self, Home},
    errors::{self, InputError, LoadError},
};

/// A program on an engine.
#[pyclass(frozen, name = "Program", module = "flambeau._native")]
pub(crate) struct PyProgram {
    program: Program,
    engine: Arc<dyn Engine>,
    /// Flags that chose the engine.
    flags: Vec<String>,
    /// How methods are loaded.
    options: LoadOptions,
    home: Home,
    /// Measured runs of all methods, if they are measured.
    recorder: Option<Recorder>,
}

/// Measures the runs of a program's methods.
#[derive(Clone)]
pub(crate) struct Recorder {
    clock: Clock,
    /// Bytes of results that each method may keep.
    room: usize,
    /// The runs of all methods, in order.
    pub(crate) runs: Arc<Mutex<Vec<RunTrace>>>,
}

/// Tensor metadata in the file: sizes, code of the element type, whether its memory is planned, and
/// size in bytes.
type Info = (Vec<u32>, i8, bool, u64);

#[pymethods]
impl PyProgram {
    /// Opens a program: maps a path, or copies bytes once. With `share_state`, methods share
    /// buffers by name. `kv_cache` is the text of `--kv-cache`.
    #[new]
    #[pyo3(signature = (source, *, data=None, engine=vec![], share_state=false, kv_cache=None))]
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        data: Option<&Bound<'_, PyAny>>,
        engine: Vec<String>,
        share_state: bool,
        kv_cache: Option<String>,
    ) -> PyResult<PyProgram> {
        let kv_cache =
            kv_cache.as_deref().map(flambeau_cli::library::kv_cache).transpose().map_err(|error| errors::load(&error))?;
        let options = LoadOptions { kv_cache, shared: share_state.then(SharedState::default) };
        let program = match bytes_of(source) {
            Some(bytes) => py.detach(|| Program::from_bytes(bytes)),
            None => {
                let path: PathBuf = source.extract()?;
                py.detach(|| Program::open(path))
            }
        };
        let mut program = program.map_err(|error| errors::of_runtime(&error))?;
        if let Some(data) = data {
            program = match bytes_of(data) {
                Some(bytes) => {
                    let data =
                        flambeau::wire::ptd::read_data_file(&bytes).map_err(|error| LoadError::new_err(error.to_string()))?;
                    program.with_data_file(data)
                }
                None => program.with_data(data.extract::<PathBuf>()?).map_err(|error| errors::of_runtime(&error))?,
            };
        }
        PyProgram::on(py, program, engine, options)
    }

    /// Names of all methods, in file order.
    fn method_names(&self) -> Vec<String> {
        self.program.method_names().map(str::to_owned).collect()
    }

    /// Loads a method; each call returns one with its own state, unless the program shares state.
    fn load(&self, py: Python<'_>, name: &str) -> PyResult<PyMethod> {
        self.home.check("the program")?;
        let method = py.detach(|| self.method(name)).map_err(|error| errors::of_runtime(&error))?;
        let keeps_results = self.recorder.as_ref().is_some_and(|recorder| recorder.room > 0);
        Ok(PyMethod {
            name: name.to_owned(),
            inputs: method.inputs().to_vec(),
            outputs: method.outputs().to_vec(),
            keeps_nothing: method.is_stateless() && self.options.kv_cache.is_none() && !keeps_results,
            method: Mutex::new(method),
            home: self.home,
            recorder: self.recorder.clone(),
        })
    }

    /// Metadata of a method's inputs in the file; `None` for an input that is not a tensor.
    fn input_info(&self, method: &str) -> PyResult<Vec<Option<Info>>> {
        let plan = self.plan(method)?;
        Ok(plan.inputs.iter().map(|&at| info(plan, at)).collect())
    }

    /// Metadata of a method's outputs in the file.
    fn output_info(&self, method: &str) -> PyResult<Vec<Option<Info>>> {
        let plan = self.plan(method)?;
        Ok(plan.outputs.iter().map(|&at| info(plan, at)).collect())
    }

    /// Metadata of a method's named tensors in the file, such as buffers.
    fn attribute_info(&self, method: &str) -> PyResult<Vec<Option<Info>>> {
        let plan = self.plan(method)?;
        let named = |value: &EValue| matches!(value, EValue::Tensor(tensor) if name_of(tensor).is_some());
        let places = plan.values.iter().enumerate().filter(|(_, value)| named(value));
        Ok(places.map(|(at, _)| info(plan, at as u32)).collect())
    }

    /// Writes the program to a file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let written = py.detach(|| std::fs::write(&path, self.file()));
        written.map_err(|error| LoadError::new_err(format!("cannot write {}: {error}", path.display())))
    }

    /// The bytes of the program's file.
    fn to_bytes<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.file())
    }

    /// Payloads of a method's delegates, in order.
    fn payloads<'py>(&self, py: Python<'py>, method: &str) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let file = self.program.file();
        Ok(self.plan(method)?.delegates.iter().map(|delegate| PyBytes::new(py, &file.delegate_payload(delegate))).collect())
    }

    /// Weights by name.
    fn named_data<'py>(&self, py: Python<'py>) -> Vec<(String, Bound<'py, PyBytes>)> {
        let keys = self.program.file().named_data.keys();
        keys.filter_map(|key| Some((key.clone(), PyBytes::new(py, &self.program.named(key)?)))).collect()
    }

    /// Backend names of a method's delegates.
    fn backends(&self, method: &str) -> PyResult<Vec<String>> {
        Ok(self.plan(method)?.delegates.iter().map(|delegate| delegate.id.clone()).collect())
    }
}

impl PyProgram {
    pub(crate) fn of(py: Python<'_>, program: Program, engine: &[String]) -> PyResult<PyProgram> {
        PyProgram::on(py, program, engine.to_vec(), LoadOptions::default())
    }

    fn on(py: Python<'_>, program: Program, flags: Vec<String>, options: LoadOptions) -> PyResult<PyProgram> {
        let engine = engines::engine(py, &flags)?;
        Ok(PyProgram { program, engine, flags, options, home: Home::here(), recorder: None })
    }

    fn method(&self, name: &str) -> Result<Method, flambeau::runtime::Error> {
        let Some(Recorder { clock, room, .. }) = &self.recorder else {
            return self.program.method(name, &self.engine, &self.options);
        };
        if *room > 0 {
            return self.program.method_with_results(name, &self.engine, &self.options, clock, *room);
        }
        let mut method = self.program.method(name, &self.engine, &self.options)?;
        method.trace_with(Some(clock.clone()));
        Ok(method)
    }

    /// The program on an engine that measures. Methods loaded from it record their runs, and up to
    /// `room` bytes of results.
    pub(crate) fn measured(&self, py: Python<'_>, room: usize) -> PyResult<PyProgram> {
        let (engine, clock) = engines::measured(py, &self.flags)?;
        let recorder = Some(Recorder { clock, room, runs: Arc::default() });
        let (program, flags, options) = (self.program.clone(), self.flags.clone(), self.options.clone());
        Ok(PyProgram { program, engine, flags, options, home: Home::here(), recorder })
    }

    /// The cache of a program that leaves it to its host.
    pub(crate) fn kv_cache(&self) -> Option<KvCacheConfig> {
        self.options.kv_cache.clone()
    }

    pub(crate) fn inner(&self) -> (&Program, &Arc<dyn Engine>) {
        (&self.program, &self.engine)
    }

    /// Measured runs of all methods.
    pub(crate) fn runs(&self) -> Vec<RunTrace> {
        let runs = self.recorder.as_ref().map(|recorder| recorder.runs.lock().unwrap_or_else(PoisonError::into_inner).clone());
        runs.unwrap_or_default()
    }

    fn file(&self) -> &[u8] {
        self.program.contents().next().unwrap_or_default()
    }

    pub(crate) fn plan(&self, name: &str) -> PyResult<&ExecutionPlan> {
        let known = || self.program.method_names().collect::<Vec<_>>().join(", ");
        self.program.file().plan(name).ok_or_else(|| LoadError::new_err(format!("no method `{name}`; the program has {}", known())))
    }
}

/// The bytes of a `bytes` or `bytearray`, copied to memory that aligns their tensors.
fn bytes_of(object: &Bound<'_, PyAny>) -> Option<Bytes> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Some(AlignedBytes::copy_of(bytes.as_bytes()).into_bytes());
    }
    object.cast::<PyByteArray>().ok().map(|bytes| AlignedBytes::copy_of(&bytes.to_vec()).into_bytes())
}

fn name_of(tensor: &TensorValue) -> Option<&str> {
    tensor.extra.as_ref()?.fully_qualified_name.as_deref()
}

fn info(plan: &ExecutionPlan, at: u32) -> Option<Info> {
    let Some(EValue::Tensor(tensor)) = plan.values.get(at as usize) else { return None };
    let count: u64 = tensor.sizes.iter().map(|&size| u64::from(size)).product();
    let bytes = count * tensor.dtype.size() as u64;
    Some((tensor.sizes.clone(), tensor.dtype.code(), tensor.allocation.is_some(), bytes))
}

/// A loaded method. Threads run it one at a time.
#[pyclass(frozen, name = "Method", module = "flambeau._native")]
pub(crate) struct PyMethod {
    #[pyo3(get)]
    name: String,
    inputs: Vec<ValueSpec>,
    outputs: Vec<ValueSpec>,
    /// Whether the method is stateless; inputs then need not be copied.
    keeps_nothing: bool,
    method: Mutex<Method>,
    home: Home,
    recorder: Option<Recorder>,
}

#[pymethods]
impl PyMethod {
    /// Runs the method on a list of inputs, or on a single input. Releases the interpreter lock
    /// while it computes.
    fn execute(&self, py: Python<'_>, inputs: &Bound<'_, PyAny>) -> PyResult<Vec<Py<PyAny>>> {
        self.home.check("the method")?;
        let mut inputs = convert::arguments(inputs, &self.inputs, &self.name)?;
        if !self.keeps_nothing {
            inputs = inputs.into_iter().map(copied).collect::<PyResult<_>>()?;
        }
        let ranges = convert::ranges(&inputs);
        let outputs = py.detach(|| self.run(&inputs));
        drop(inputs);
        convert::results(py, outputs.map_err(|error| errors::of_runtime(&error))?, &ranges)
    }

    /// Fails if the method cannot run on these inputs.
    fn check(&self, inputs: &Bound<'_, PyAny>) -> PyResult<()> {
        convert::arguments(inputs, &self.inputs, &self.name).map(drop)
    }

    /// Resets all state to its initial value.
    fn reset(&self, py: Python<'_>) -> PyResult<()> {
        self.home.check("the method")?;
        py.detach(|| self.method.lock().unwrap_or_else(PoisonError::into_inner).reset());
        Ok(())
    }

    /// Name and type of each input.
    fn inputs(&self) -> Vec<(Option<String>, String)> {
        described(&self.inputs)
    }

    /// Name and type of each output.
    fn outputs(&self) -> Vec<(Option<String>, String)> {
        described(&self.outputs)
    }

    /// A copy of the current value of a named tensor, such as a buffer.
    fn attribute(&self, py: Python<'_>, name: &str) -> PyResult<Py<PyAny>> {
        self.home.check("the method")?;
        let value = py.detach(|| self.method.lock().unwrap_or_else(PoisonError::into_inner).attribute(name));
        let value = value.ok_or_else(|| PyIndexError::new_err(format!("no attribute is called {name}")))?;
        let tensors = convert::results(py, vec![copied(value)?], &[])?;
        tensors.into_iter().next().ok_or_else(|| InputError::new_err("no tensor"))
    }
}

impl PyMethod {
    /// Runs the method, and records the run if runs are measured.
    fn run(&self, inputs: &[Value]) -> Result<Vec<Value>, flambeau::runtime::Error> {
        let mut method = self.method.lock().unwrap_or_else(PoisonError::into_inner);
        let outputs = method.run(inputs);
        if let Some(recorder) = &self.recorder {
            recorder.runs.lock().unwrap_or_else(PoisonError::into_inner).extend(method.take_runs());
        }
        outputs
    }
}

fn described(specs: &[ValueSpec]) -> Vec<(Option<String>, String)> {
    specs.iter().map(|spec| (spec.name.clone(), spec.to_string())).collect()
}

fn copied(value: Value) -> PyResult<Value> {
    let Value::Tensor(tensor) = value else { return Ok(value) };
    let bytes = AlignedBytes::copy_of(tensor.bytes()).into_bytes();
    Tensor::new(tensor.dtype(), tensor.shape(), bytes).map(Value::Tensor).map_err(|error| InputError::new_err(error.to_string()))
}
