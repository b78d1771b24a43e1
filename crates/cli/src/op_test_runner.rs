//! ExecuTorch's op test runner: a program, an input file, an output file.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::ValueEnum;
use flambeau::{
    engine::LoadOptions,
    runtime::{Program, Value},
    tensor::{Tensor, tensor_list},
};

use crate::{
    engine::{EngineArgs, EngineName},
    failure::{self, usage},
    file_kind::FileKind,
    files, inputs, kv_cache,
    mlx::{MlxArgs, MlxSelection},
    tensors::NamedTensor,
};

const HELP: &str = "\
Runs the method `forward` of a .pte file on the tensors of a .bin file.

Usage: op_test_runner --pte FILE --input FILE --output FILE [--kv-cache SPEC] [--engine cpu|mlx] [--device DEVICE]
       [--mlx-path DIR] [--verbose]

Flags may begin with one dash, and take their value after `=` or as the next argument.
SPEC is capacity,layers,kv_heads,head_dim[,dtype].

Example:
  op_test_runner --pte model.pte --input input.bin --output output.bin";

#[derive(Debug, Default, PartialEq, Eq)]
struct Flags {
    pte: Option<PathBuf>,
    input: Option<PathBuf>,
    output: Option<PathBuf>,
    kv_cache: Option<String>,
    engine: Option<String>,
    device: Option<String>,
    mlx_path: Option<PathBuf>,
    verbose: bool,
    help: bool,
}

/// Runs the command. The first argument is the program's name.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match parse(args.into_iter().skip(1)).and_then(|flags| run(&flags)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Flags> {
    let mut flags = Flags::default();
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy().into_owned();
        let unknown = || usage(format!("unknown argument `{text}`; see --help"));
        let flag = text.strip_prefix("--").or_else(|| text.strip_prefix('-')).ok_or_else(unknown)?;
        let (name, mut inline) = match flag.split_once('=') {
            Some((name, value)) => (name, Some(OsString::from(value))),
            None => (flag, None),
        };
        let mut value = || inline.take().or_else(|| args.next()).ok_or_else(|| usage(format!("--{name} needs a value")));
        match name.replace('_', "-").as_str() {
            "pte" => flags.pte = Some(value()?.into()),
            "input" => flags.input = Some(value()?.into()),
            "output" => flags.output = Some(value()?.into()),
            "kv-cache" => flags.kv_cache = Some(value()?.to_string_lossy().into_owned()),
            "engine" => flags.engine = Some(value()?.to_string_lossy().into_owned()),
            "device" => flags.device = Some(value()?.to_string_lossy().into_owned()),
            "mlx-path" => flags.mlx_path = Some(value()?.into()),
            "verbose" => flags.verbose = inline.is_none_or(|v| v == "true" || v == "1"),
            "help" | "h" => flags.help = true,
            _ => return Err(unknown()),
        }
    }
    Ok(flags)
}

fn run(flags: &Flags) -> Result<()> {
    if flags.help {
        return files::print_line(HELP);
    }
    let need = |path: &Option<PathBuf>, name| path.clone().ok_or_else(|| usage(format!("--{name} is missing; see --help")));
    let (pte, input, output) = (need(&flags.pte, "pte")?, need(&flags.input, "input")?, need(&flags.output, "output")?);
    let engine = match flags.engine.as_deref() {
        None => EngineName::Cpu,
        Some(name) => EngineName::from_str(name, false).map_err(|_| usage(format!("--engine {name}: expected cpu or mlx")))?,
    };
    let device = flags.device.as_deref().map(str::parse).transpose();
    let selection =
        MlxSelection { device: device.map_err(|e: flambeau::mlx::Error| usage(e.to_string()))?, mlx_path: flags.mlx_path.clone() };
    let engine = EngineArgs { engine, mlx: MlxArgs { selection, ..MlxArgs::default() }, ..EngineArgs::default() };
    let engine = engine.engine(false)?;
    let options = LoadOptions {
        kv_cache: flags.kv_cache.as_deref().map(kv_cache::parse).transpose().map_err(|e| usage(e.to_string()))?,
        ..LoadOptions::default()
    };
    let mut method = FileKind::Program.expect(&pte, || Ok(Program::open(&pte)?))?.method("forward", &engine, &options)?;
    let inputs = tensor_list::read(&files::read(&input)?).with_context(|| input.display().to_string())?;
    let inputs = inputs::arguments(method.inputs(), inputs.into_iter().map(|tensor| NamedTensor { name: None, tensor }).collect())?;
    let outputs = method.run(&inputs)?;
    if flags.verbose {
        inputs.iter().enumerate().for_each(|(i, v)| eprintln!("input {i}: {}", v.describe()));
        outputs.iter().enumerate().for_each(|(i, v)| eprintln!("output {i}: {}", v.describe()));
    }
    let tensors: Vec<Tensor> = outputs
        .iter()
        .filter_map(|value| match value {
            Value::Tensor(t) => Some(t.clone()),
            other => other.as_int().map(Tensor::scalar),
        })
        .collect();
    files::write(&output, |out| Ok(out.write_all(&tensor_list::write(&tensors)?)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_take_either_form() {
        let expected = Flags { pte: Some("a.pte".into()), kv_cache: Some("1,2,3,4".into()), verbose: true, ..Flags::default() };
        for args in [
            &["--pte", "a.pte", "--kv-cache", "1,2,3,4", "--verbose"][..],
            &["-pte=a.pte", "--kv_cache=1,2,3,4", "-verbose"],
            &["--pte=a.pte", "-kv_cache", "1,2,3,4", "--verbose=true"],
        ] {
            assert_eq!(parse(args.iter().map(OsString::from)).unwrap(), expected);
        }
        for bad in [&["pte"][..], &["--pte"], &["--nonsense"]] {
            assert!(parse(bad.iter().map(OsString::from)).is_err());
        }
    }
}
