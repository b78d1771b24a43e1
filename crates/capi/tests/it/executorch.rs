//! Programs in ExecuTorch's own runtime, with the delegate entry behind its backend.

use std::{path::PathBuf, sync::atomic::AtomicBool, time::Duration};

use flambeau::runners::llm::{Request, generate};
use flambeau_cli::library;
use flambeau_testcases::test;
use libtest_mimic::Trial;

use crate::{
    examples::{mlp, tiny_llama},
    toolchain::{Program, has, package},
};

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("executorch::runs_programs_on_the_backend", requirement, runs)]
}

/// Where `scripts/install-executorch.sh` unpacks ExecuTorch.
pub(crate) fn root() -> PathBuf {
    package("../../target/executorch/executorch")
}

pub(crate) fn requirement() -> Result<(), String> {
    has("g++")?;
    let found = root().join("lib/libexecutorch.so").is_file();
    if found { Ok(()) } else { Err("there is no ExecuTorch in target/executorch: scripts/install-executorch.sh".into()) }
}

fn runs() {
    let include = root().join("include");
    let include = include.to_str().unwrap();
    let (c10, lib) = (format!("{include}/executorch/runtime/core/portable_type/c10"), root().join("lib"));
    let lib = lib.to_str().unwrap();
    let flags =
        ["-std=c++17", "-DC10_USING_CUSTOM_GENERATED_MACROS", "-DET_EVENT_TRACER_ENABLED", "-isystem", include, "-isystem", &c10];
    let backend = package("executorch/mlx_backend.cpp");
    let link = [backend.to_str().unwrap(), &format!("-L{lib}"), "-lexecutorch", &format!("-Wl,-rpath,{lib}")];
    // ExecuTorch's builds for devices have neither exceptions nor RTTI.
    Program::compile("g++", &[&flags[..], &["-fno-exceptions", "-fno-rtti", "-fsyntax-only"]].concat(), &backend);
    let program = Program::compile("g++", &[&flags[..], &link].concat(), &package("tests/c/executorch.cpp"));

    let cache = tempfile::tempdir().unwrap();
    let engine = library::engine(&[]).unwrap();
    let flags = [tiny_llama(), "--cache-dir".into(), cache.path().to_str().unwrap().to_owned()];
    let model = library::language_model(&flags, &engine).unwrap();
    let prompt = model.tokenizer.encode("the cat sat on", true).unwrap();
    let request = Request { prompt: prompt.clone(), max_new_tokens: 8, ignore_eos: true, ..Request::default() };
    let mut sequence = model.model.sequence().unwrap();
    let now = || Duration::ZERO;
    let expected = generate(&mut sequence, &model.tokenizer, &request, &now, &AtomicBool::new(false), &mut |_| ()).unwrap().ids;

    let exported = std::fs::read_dir(cache.path()).unwrap().map(|entry| entry.unwrap().path());
    let exported = exported.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "pte")).unwrap();
    let prompt: Vec<String> = prompt.iter().map(u32::to_string).collect();
    let mut args = vec![mlp(), exported.to_str().unwrap().to_owned()];
    args.extend(prompt);
    let output = program.run(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let rows = ["0.500534", "0.190533", "0.500534", "0.190533", "0.587793", "0.162802"].map(str::to_owned);
    let lines: Vec<&str> = output.lines().collect();
    assert_eq!(lines[..6], rows);
    assert_eq!(lines[6..], expected.iter().map(u32::to_string).collect::<Vec<_>>());
}
