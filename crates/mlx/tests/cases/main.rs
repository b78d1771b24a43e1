//! Every case on an installed MLX, and further properties of all cases.

mod changed;
#[path = "../support/mod.rs"]
mod installed;
mod kernels;
mod traces;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::OnceLock,
};

use changed::enough_changed_programs_run_on_both;
use flambeau_testcases::{Case, Outcome, Trial, all, committed, functions, per_case, run_case};
use kernels::kernels_of_the_cases_are_trusted_by_their_text;
use traces::{cases_run_compiled, positions_stay_open_in_compiled_runs};

const TARGET: &str = env!("CARGO_TARGET_TMPDIR");

/// One test per case. All tests share the engines; the first test loads them.
fn on_mlx<E, O>(engines: fn() -> E, check: fn(&E, &str, &Path) -> O) -> Vec<Trial>
where
    E: Send + Sync + 'static,
    O: Into<Outcome> + 'static,
{
    let loaded = OnceLock::new();
    per_case(all(Path::new(TARGET)), move |name, folder| match installed::requirement() {
        Ok(()) => check(loaded.get_or_init(engines), name, folder).into(),
        Err(missing) => Outcome::Ignored(missing),
    })
}

/// Names and folders of the cases that are always there.
fn committed_folders() -> impl Iterator<Item = (String, PathBuf)> {
    committed().into_iter().map(|Case { name, folder }| (name, folder.expect("it is committed")))
}

fn main() -> ExitCode {
    let mut tests = on_mlx(installed::engine, |engine, _, folder| run_case(engine, folder));
    let compiled = on_mlx(traces::engines, |engines, _, folder| traces::same_again(engines, folder));
    tests.extend(compiled.into_iter().map(|test| test.with_kind("compiled")));
    let changed = on_mlx(changed::engines, |engines, name, folder| changed::check(engines, name, folder).map(drop));
    tests.extend(changed.into_iter().map(|test| test.with_kind("changed")));
    tests.extend(functions![installed::requirement; cases_run_compiled, positions_stay_open_in_compiled_runs, enough_changed_programs_run_on_both]);
    tests.extend(functions![|| Ok(()); kernels_of_the_cases_are_trusted_by_their_text]);
    flambeau_testcases::run(tests)
}
