//! Every case on the CPU engine, and changed programs, which must run or be refused.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    process::ExitCode,
};

use fastrand::Rng;
use flambeau_cpu::CpuEngine;
use flambeau_testcases::{Case, LoadedCase, all, committed, may_not_end, mutate, per_case, run_case, test};

/// Changed programs to run for each case.
const ROUNDS: usize = 12;

/// How many changed programs ran; the others were refused.
fn run_changed(engine: &CpuEngine, case: &str, folder: &Path) -> Result<usize, String> {
    if may_not_end(case) {
        return Ok(0);
    }
    let loaded = LoadedCase::open(folder)?;
    let Some((graph, args)) = loaded.delegate_call()? else { return Ok(0) };
    let (mut rng, mut ran) = (Rng::with_seed(case.bytes().map(u64::from).sum()), 0);
    for round in 0..ROUNDS {
        let mut graph = graph.clone();
        if (0..=round / 6).any(|_| mutate(&mut graph, &mut rng).is_none()) {
            continue;
        }
        let text = format!("{:?}", graph.chains);
        match catch_unwind(AssertUnwindSafe(|| loaded.run(engine, graph, &args).is_ok())) {
            Ok(runs) => ran += usize::from(runs),
            Err(_) => return Err(format!("round {round} panics: {text}")),
        }
    }
    Ok(ran)
}

fn enough_changed_programs_run() {
    let engine = CpuEngine::new(Some(1));
    let ran = |case: Case| run_changed(&engine, &case.name, &case.folder.expect("it is committed")).expect("no panic");
    let ran: usize = committed().into_iter().map(ran).sum();
    assert!(ran > 100, "only {ran} changed programs ran");
}

fn main() -> ExitCode {
    let everything = || all(Path::new(env!("CARGO_TARGET_TMPDIR")));
    let engine = CpuEngine::new(Some(2));
    let mut tests = per_case(everything(), move |_, folder| run_case(&engine, folder));
    let engine = CpuEngine::new(Some(1));
    let changed = per_case(everything(), move |name, folder| run_changed(&engine, name, folder).map(drop));
    tests.extend(changed.into_iter().map(|test| test.with_kind("changed")));
    tests.push(test("enough_changed_programs_run", || Ok(()), enough_changed_programs_run));
    flambeau_testcases::run(tests)
}
