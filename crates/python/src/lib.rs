//! Native module of Flambeau's Python package, with the engines and performance-critical code. The
//! package itself is in `python/flambeau`.

#![deny(unsafe_code)]

mod compile;
mod convert;
#[allow(unsafe_code, reason = "tensors of other libraries are pointers")]
mod dlpack;
mod elements;
mod engines;
mod errors;
mod language;
mod program;
mod speech;
mod tensor;
mod tensor_methods;
mod texts;
mod tools;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    use std::{io::Write, path::PathBuf, process::ExitCode};

    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::{
        compile::{compile_methods, delegates, dry_run},
        errors::{CompileError, Error, ExecutionError, InputError, LoadError},
        language::{Answer, LanguageModel},
        program::{PyMethod, PyProgram},
        speech::PySpeechModel,
        tensor::PyTensor,
        texts::{PyClassifier, PyEncoder},
        tools::{etdump, graphs, measured, run_test_case, steps, trace, verify},
    };

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "Python's name")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    /// Names of the operators that run outside delegates.
    #[pyfunction]
    fn operator_names() -> Vec<String> {
        flambeau::runtime::operator_names().into_iter().collect()
    }

    /// The CMake project of ExecuTorch's backend over this module: text by file name.
    #[pyfunction]
    fn executorch_project() -> Vec<(&'static str, &'static str)> {
        flambeau_capi::EXECUTORCH_PROJECT.to_vec()
    }

    /// Names the folder of the interfaces to MLX that the package brings.
    #[pyfunction]
    fn interfaces_in(folder: PathBuf) {
        flambeau_cli::library::interfaces_in(folder);
    }

    /// Runs the `flambeau` command and returns its exit code; the first argument is the program's
    /// name.
    #[pyfunction]
    fn command(py: Python<'_>, args: Vec<String>) -> u8 {
        py.detach(|| {
            let code = flambeau_cli::run(args.into_iter().map(Into::into));
            // Python does not flush Rust's output buffer. An error means that the pipe is closed.
            let _ = std::io::stdout().flush();
            (0..=u8::MAX).find(|&number| ExitCode::from(number) == code).unwrap_or(1)
        })
    }
}
