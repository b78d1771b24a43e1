//! Every program of the conformance folders, if the folders are beside the repository.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use flambeau_cpu::CpuEngine;
use flambeau_testcases::{Case, Dice, check, mutate, name_of};

fn folders(name: &str) -> Vec<PathBuf> {
    flambeau_testcases::folders(name, Path::new(env!("CARGO_TARGET_TMPDIR")))
}

#[test]
fn operators_agree_with_pytorch() {
    // Random samples have nothing to compare with.
    check(&CpuEngine::new(Some(2)), &folders("ops"), 708, &["sample_"]);
}

#[test]
fn models_agree_with_pytorch() {
    // These call kernels outside of their delegates, which is not the engine's work.
    check(&CpuEngine::new(Some(2)), &folders("models"), 25, &["bert_mask", "electra", "roberta"]);
}

#[test]
fn changed_programs_run_or_are_refused_but_never_panic() {
    let engine = CpuEngine::new(Some(1));
    let (mut dice, mut panics, mut runs) = (Dice(1), Vec::new(), 0);
    let folders = folders("ops");
    for folder in &folders {
        let case = Case::open(folder).expect("the case opens");
        let Some((graph, args)) = case.delegate_call().expect("the payload decodes") else { continue };
        for round in 0..12 {
            let mut graph = graph.clone();
            if (0..=round / 6).any(|_| mutate(&mut graph, &mut dice).is_none()) {
                continue;
            }
            let text = format!("{:?}", graph.chains);
            match catch_unwind(AssertUnwindSafe(|| case.run(&engine, graph, &args).is_ok())) {
                Ok(ran) => runs += usize::from(ran),
                Err(_) => panics.push(format!("{}: {text}", name_of(folder))),
            }
        }
    }
    assert!(panics.is_empty(), "{} panics, such as {}", panics.len(), panics[0]);
    assert!(folders.is_empty() || runs > 100, "only {runs} changed programs ran");
}
