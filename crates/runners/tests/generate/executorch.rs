//! Language models exported by ExecuTorch, each called in the way of its exporter.

use std::{path::Path, sync::Arc};

use flambeau_cpu::CpuEngine;
use flambeau_runners::llm::{Request, Sequence};
use flambeau_runtime::Program;
use flambeau_testcases::{Trial, per_case, sessions};

use crate::{AnyEngine, generate_with, load, request};

/// Exporters of language models: prefixes of session names.
const EXPORTERS: [&str; 5] = ["dflash", "etl", "gemma4", "hf", "qwen35"];

/// One test per model, or one that reports the missing archive.
pub(crate) fn tests() -> Vec<Trial> {
    let is_one = |name: &str| EXPORTERS.iter().any(|exporter| name.starts_with(exporter));
    let mut cases = sessions(Path::new(env!("CARGO_TARGET_TMPDIR")));
    cases.retain(|case| case.name.split_once('/').is_none_or(|(_, name)| is_one(name)));
    per_case(cases, |_, folder| texts_continue_where_they_stopped(folder))
}

fn text(model: &mut Sequence, prompt: &[u32], count: usize) -> Vec<u32> {
    let request = Request { ignore_eos: true, ..request(prompt, count) };
    generate_with(model, &request, &mut |_, _| ()).expect("the model generates").ids
}

fn texts_continue_where_they_stopped(folder: &Path) {
    let engine: AnyEngine = Arc::new(CpuEngine::new(Some(1)));
    let program = Program::open(folder.join("model.pte")).expect("the program opens");
    let mut model = load(&engine, &program);
    let prompt = [42, 25, 73, 88, 21, 42, 32, 80, 51, 59];
    let whole = text(&mut model, &prompt, 6);
    assert_eq!(whole.len(), 6);
    // The caches hold all but the last token; generation from there gives the same text as without
    // a stop.
    model.reset();
    let first = text(&mut model, &prompt, 3);
    let kept = model.truncate(prompt.len() + 2);
    let rest = if kept == 0 { [&prompt[..], &first].concat() } else { first[kept - prompt.len()..].to_vec() };
    assert_eq!([first, text(&mut model, &rest, 3)].concat(), whole);
}
