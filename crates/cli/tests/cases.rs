//! Every case as `flambeau conformance` runs it: both programs on the CPU engine, the repository's
//! on MLX too, and every checkpoint and session on either.

use std::{
    path::Path,
    process::{Command, ExitCode},
};

use flambeau_testcases::{Outcome, all, checkpoints, committed, families, per_case, reports, sessions, test};

#[path = "../../mlx/tests/support/mod.rs"]
mod installed;

/// Runs one case in a process of its own.
fn conformance(folder: &Path, from: &str, engine: &[&str]) -> Result<(), String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flambeau"));
    command.arg("conformance").arg(folder).args(["--from", from]).args(engine).env("XDG_CACHE_HOME", installed::CACHE);
    let done = command.output().expect("the command runs");
    let text = String::from_utf8_lossy(&done.stdout);
    let passed = done.status.success() && text.lines().any(|line| line == "1 passed, 0 failed, 0 skipped");
    if passed { Ok(()) } else { Err(format!("{}\n{text}{}", done.status, String::from_utf8_lossy(&done.stderr))) }
}

fn on_cpu(folder: &Path, from: &str) -> Result<(), String> {
    conformance(folder, from, &["--threads", "1"])
}

fn on_mlx(folder: &Path, from: &str) -> Outcome {
    let (path, met) = (installed::path(), installed::requirement());
    let run = || conformance(folder, from, &["--engine", "mlx", "--device", "cpu", "--mlx-path", &path.to_string_lossy()]).into();
    met.map_or_else(Outcome::Ignored, |()| run())
}

/// Cases that are refused or differ for a stated reason: the name, then text of the message.
const EXPECTED: &str = include_str!("expected_failures.txt");

/// Why a case is expected to fail on an engine.
fn reason(engine: &str, name: &str) -> Option<&'static str> {
    let listed = EXPECTED.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' '));
    let is_case = |known: &str| known == name || known.strip_prefix(engine).and_then(|rest| rest.strip_prefix('/')) == Some(name);
    listed.into_iter().find(|(known, _)| is_case(known)).map(|(_, reason)| reason.trim())
}

/// A result, turned round for a case that is expected to fail.
fn as_expected(name: &str, result: Result<(), String>) -> Result<(), String> {
    expected_for(reason("cpu", name), result)
}

/// As [`as_expected`], on MLX.
fn as_expected_on_mlx(name: &str, outcome: Outcome) -> Outcome {
    let result = match outcome {
        Outcome::Passed => Ok(()),
        Outcome::Failed(text) => Err(text),
        ignored => return ignored,
    };
    expected_for(reason("mlx", name), result).into()
}

fn expected_for(reason: Option<&str>, result: Result<(), String>) -> Result<(), String> {
    match (reason, result) {
        (None, result) => result,
        (Some(reason), Err(text)) if text.contains(reason) => Ok(()),
        (Some(reason), Err(text)) => Err(format!("expected a failure with `{reason}`, found: {text}")),
        (Some(_), Ok(())) => Err("it passes: remove it from expected_failures.txt".into()),
    }
}

/// The Python that runs PyTorch.
fn python() -> String {
    std::env::var("FLAMBEAU_PYTHON").unwrap_or_else(|_| "python3".into())
}

fn has_pytorch() -> Result<(), String> {
    let found = Command::new(python()).args(["-c", "import torch"]).output().is_ok_and(|done| done.status.success());
    if found { Ok(()) } else { Err(format!("{} has no PyTorch", python())) }
}

fn compile_check_agrees_with_pytorch() -> Result<(), String> {
    let archive = committed().into_iter().find(|case| case.name.ends_with("dyn.layer.mha.f32")).expect("the case is committed");
    let archive = archive.folder.expect("committed cases are there").join("model.pt2");
    let mut command = Command::new(env!("CARGO_BIN_EXE_flambeau"));
    command.arg("compile").arg(archive).args(["--check", "--threads", "1", "--python", &python()]);
    let done = command.output().expect("the command runs");
    let text = String::from_utf8_lossy(&done.stderr);
    if done.status.success() && text.contains("5 runs agree with PyTorch") { Ok(()) } else { Err(text.into_owned()) }
}

fn main() -> ExitCode {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let everything = || all(target);
    let tests = [
        ("checkpoint", per_case(checkpoints(target), |_, folder| on_cpu(folder, "checkpoint"))),
        ("MLX, checkpoint", per_case(checkpoints(target), |_, folder| on_mlx(folder, "checkpoint"))),
        ("family", per_case(families(target), |name, folder| as_expected(name, on_cpu(folder, "checkpoint")))),
        ("report", per_case(reports(target), |name, folder| as_expected(name, on_cpu(folder, "pt2")))),
        ("session", per_case(sessions(target), |_, folder| on_cpu(folder, "pte"))),
        ("MLX, session", per_case(sessions(target), |_, folder| on_mlx(folder, "pte"))),
        ("pte", per_case(everything(), |_, folder| on_cpu(folder, "pte"))),
        ("pt2", per_case(everything(), |_, folder| on_cpu(folder, "pt2"))),
        ("MLX, report", per_case(reports(target), |name, folder| as_expected_on_mlx(name, on_mlx(folder, "pt2")))),
        ("MLX, pte", per_case(committed(), |_, folder| on_mlx(folder, "pte"))),
        ("MLX, pt2", per_case(committed(), |_, folder| on_mlx(folder, "pt2"))),
        ("PyTorch", vec![test("compile_check_agrees", has_pytorch, compile_check_agrees_with_pytorch)]),
    ];
    let named = tests.into_iter().flat_map(|(kind, tests)| tests.into_iter().map(move |test| test.with_kind(kind)));
    flambeau_testcases::run(named.collect())
}
