//! Compilation of captured programs.

use std::path::PathBuf;

use bytes::Bytes;
use flambeau::{
    compile::{Options, Output, Ties, compile},
    pt2::{Archive, Exported},
    runtime::{Program, map_file},
};
use pyo3::{prelude::*, types::PyBytes};

use crate::{
    engines,
    errors::{self, CompileError, LoadError},
    program::PyProgram,
};

/// Compiles archives of `torch.export`; each is a method name with a path or bytes. Returns the
/// program and a JSON report on each call.
#[pyfunction(name = "compile")]
#[pyo3(signature = (methods, *, quantize=vec![], require_full=false, any_ties=false, undelegated=vec![], engine=vec![]))]
pub(crate) fn compile_methods(
    py: Python<'_>,
    methods: Vec<(String, Bound<'_, PyAny>)>,
    quantize: Vec<String>,
    require_full: bool,
    any_ties: bool,
    undelegated: Vec<String>,
    engine: Vec<String>,
) -> PyResult<(PyProgram, String)> {
    let quantize = flambeau_cli::library::compile_options(&quantize).map_err(|error| errors::load(&error))?;
    let ties = if any_ties { Ties::Any } else { Ties::PyTorch };
    let options = Options { require_full, ties, undelegated, ..quantize };
    let archives = read_all(methods)?;
    let on = engines::engine(py, &engine)?;
    let (file, report) = py.detach(|| -> PyResult<(Vec<u8>, String)> {
        let programs = open(archives)?;
        let methods: Vec<(&str, &Exported)> = programs.iter().map(|(name, exported)| (name.as_str(), exported)).collect();
        let output = compile(&methods, &options, &*on).map_err(refused)?;
        let mut file = Vec::new();
        output.write(&mut file).map_err(refused)?;
        Ok((file, output.report.to_json().to_string()))
    })?;
    let program = Program::from_bytes(file).map_err(|error| errors::of_runtime(&error))?;
    Ok((PyProgram::of(py, program, &engine)?, report))
}

/// A delegate for a program that ExecuTorch writes: payload, number of nodes, and named data.
type Delegate<'py> = (Bound<'py, PyBytes>, usize, Vec<(String, Bound<'py, PyBytes>)>);

/// Compiles archives of `torch.export` to one delegate each, in the same order. Arguments of a
/// delegate are the program's inputs, then its outputs. Keys of named data start with `prefix`.
#[pyfunction]
#[pyo3(signature = (methods, *, prefix, quantize=vec![], engine=vec![]))]
pub(crate) fn delegates<'py>(
    py: Python<'py>,
    methods: Vec<(String, Bound<'py, PyAny>)>,
    prefix: String,
    quantize: Vec<String>,
    engine: Vec<String>,
) -> PyResult<Vec<Delegate<'py>>> {
    let quantize = flambeau_cli::library::compile_options(&quantize).map_err(|error| errors::load(&error))?;
    let options = Options { require_full: true, keep_inputs: true, key_prefix: prefix, ..quantize };
    let archives = read_all(methods)?;
    let on = engines::engine(py, &engine)?;
    let programs = py.detach(|| open(archives))?;
    let methods: Vec<(&str, &Exported)> = programs.iter().map(|(name, exported)| (name.as_str(), exported)).collect();
    let output = py.detach(|| compile(&methods, &options, &*on)).map_err(refused)?;
    methods.iter().map(|(name, _)| delegate(py, &output, name)).collect()
}

fn delegate<'py>(py: Python<'py>, output: &Output<'_>, method: &str) -> PyResult<Delegate<'py>> {
    let (payload, nodes, constants) = py.detach(|| -> PyResult<_> {
        let Some(delegate) = output.delegate(method) else {
            return Err(CompileError::new_err(format!("the part {method} is no delegate: an output of it is a constant")));
        };
        let constants =
            delegate.constants.into_iter().map(|(key, blob)| Ok((key.to_owned(), blob.into_bytes(key).map_err(refused)?)));
        Ok((delegate.payload, delegate.nodes, constants.collect::<PyResult<Vec<(String, Bytes)>>>()?))
    })?;
    let constants = constants.into_iter().map(|(key, bytes)| (key, PyBytes::new(py, &bytes))).collect();
    Ok((PyBytes::new(py, &payload), nodes, constants))
}

/// Reports as JSON which calls of archives delegates can hold, without compiling. Reads no weights.
#[pyfunction]
pub(crate) fn dry_run(py: Python<'_>, methods: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<String> {
    let archives = read_all(methods)?;
    py.detach(|| {
        let programs = open(archives)?;
        let methods: Vec<(&str, &Exported)> = programs.iter().map(|(name, exported)| (name.as_str(), exported)).collect();
        Ok(flambeau::compile::dry_run(&methods, &Options { ties: Ties::Any, ..Options::default() })
            .map_err(refused)?
            .to_json()
            .to_string())
    })
}

fn refused(error: impl std::fmt::Display) -> PyErr {
    CompileError::new_err(error.to_string())
}

fn read_all(methods: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Vec<(String, Bytes)>> {
    methods.into_iter().map(|(name, source)| Ok((name, read(&source)?))).collect()
}

fn open(archives: Vec<(String, Bytes)>) -> PyResult<Vec<(String, Exported)>> {
    let open = |(name, bytes): (String, Bytes)| {
        let exported = Archive::open(bytes).and_then(|archive| archive.only_program());
        exported.map(|exported| (name, exported)).map_err(refused)
    };
    archives.into_iter().map(open).collect()
}

fn read(source: &Bound<'_, PyAny>) -> PyResult<Bytes> {
    if let Ok(bytes) = source.cast::<PyBytes>() {
        return Ok(Bytes::copy_from_slice(bytes.as_bytes()));
    }
    map_file(source.extract::<PathBuf>()?).map_err(|error| LoadError::new_err(error.to_string()))
}
