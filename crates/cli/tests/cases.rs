//! Every case as `flambeau conformance` runs it: both programs on the CPU engine, the repository's
//! on MLX too, and every checkpoint and session on either.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitCode},
};

use flambeau::runtime::Program;
use flambeau_testcases::{Case, Outcome, all, checkpoints, committed, families, per_case, reports, sessions, test};

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

/// Generates with a language model. All nodes run from a plan made ahead, except nodes in chains of
/// other nodes.
fn is_planned(folder: &Path) -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let model = ["checkpoint", "checkpoint.gguf"].map(|file| folder.join(file)).into_iter().find(|path| path.exists());
    let mut command = Command::new(env!("CARGO_BIN_EXE_flambeau"));
    command.arg("bench").arg(model.ok_or("no checkpoint")?).args(["-p", "5", "-n", "3", "-r", "1", "--threads", "1", "--json"]);
    let done = command.env("XDG_CACHE_HOME", dir.path()).output().expect("the command runs");
    let rows: serde_json::Value =
        serde_json::from_slice(&done.stdout).map_err(|error| format!("{error}\n{}", String::from_utf8_lossy(&done.stderr)))?;
    let may_wait = |why: &str| why.contains("chain");
    for row in rows.as_array().filter(|rows| rows.len() == 2).ok_or("not two rows")? {
        let waited = row["node_by_node"].as_array().ok_or("the engine counts its steps")?;
        let waited: Vec<_> = waited.iter().filter(|n| n["why"].as_str().is_none_or(|why| !may_wait(why))).collect();
        if row["planned_steps"].as_u64().is_none_or(|steps| steps == 0) || !waited.is_empty() {
            return Err(format!("{}: nodes waited for their turn: {waited:?}", row["planned_steps"]));
        }
    }
    Ok(())
}

/// The archived checkpoints of language models.
fn language_models(target: &Path) -> Vec<Case> {
    checkpoints(target).into_iter().filter(|case| case.name.starts_with("checkpoints")).collect()
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

/// The layer's archive, compiled into a folder.
fn compiled_layer(folder: &Path) -> (PathBuf, PathBuf) {
    let layer = committed().into_iter().find(|case| case.name.ends_with("dyn.layer.mha.f32")).expect("the case is committed");
    let archive = layer.folder.expect("committed cases are there").join("model.pt2");
    let program = folder.join("layer.pte");
    let mut command = Command::new(env!("CARGO_BIN_EXE_flambeau"));
    let done = command.arg("compile").arg(&archive).arg("-o").arg(&program).output().expect("the command runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    (archive, program)
}

/// Exit code and output of `verify --reference`.
fn verified(program: &Path, archive: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flambeau"));
    command.arg("verify").arg(program).arg("--reference").arg(archive).args(["--threads", "1", "--python", &python()]);
    let done = command.output().expect("the command runs");
    (done.status.code(), String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr))
}

fn verify_agrees_with_pytorch() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (archive, program) = compiled_layer(dir.path());
    let (code, text) = verified(&program, &archive);
    if code == Some(0) && text.starts_with("method forward agrees") { Ok(()) } else { Err(text) }
}

/// A weight of zeros is found by the values of PyTorch, and its source line is named.
fn verify_names_the_node_of_a_lost_weight() -> Result<(), String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let (archive, program) = compiled_layer(dir.path());
    let opened = Program::open(&program).map_err(|error| error.to_string())?;
    let key = opened.file().named_data.keys().find(|key| key.ends_with("out.weight")).ok_or("no weight of that name")?;
    let weight = opened.named(key).ok_or("the weight has no data")?;
    let mut bytes = std::fs::read(&program).map_err(|error| error.to_string())?;
    let at = bytes.windows(weight.len()).position(|window| window == &weight[..]).ok_or("the file lacks the weight")?;
    bytes[at..at + weight.len()].fill(0);
    let damaged = dir.path().join("damaged.pte");
    std::fs::write(&damaged, bytes).map_err(|error| error.to_string())?;
    let (code, text) = verified(&damaged, &archive);
    let found = code == Some(1) && text.contains("out.weight") && text.contains("  from ");
    if found { Ok(()) } else { Err(text) }
}

fn main() -> ExitCode {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let everything = || all(target);
    let tests = [
        ("checkpoint", per_case(checkpoints(target), |_, folder| on_cpu(folder, "checkpoint"))),
        ("MLX, checkpoint", per_case(checkpoints(target), |_, folder| on_mlx(folder, "checkpoint"))),
        ("planned, checkpoint", per_case(language_models(target), |_, folder| is_planned(folder))),
        ("family", per_case(families(target), |name, folder| as_expected(name, on_cpu(folder, "checkpoint")))),
        ("report", per_case(reports(target), |name, folder| as_expected(name, on_cpu(folder, "pt2")))),
        ("session", per_case(sessions(target), |_, folder| on_cpu(folder, "pte"))),
        ("MLX, session", per_case(sessions(target), |_, folder| on_mlx(folder, "pte"))),
        ("pte", per_case(everything(), |_, folder| on_cpu(folder, "pte"))),
        ("pt2", per_case(everything(), |_, folder| on_cpu(folder, "pt2"))),
        ("MLX, report", per_case(reports(target), |name, folder| as_expected_on_mlx(name, on_mlx(folder, "pt2")))),
        ("MLX, pte", per_case(committed(), |_, folder| on_mlx(folder, "pte"))),
        ("MLX, pt2", per_case(committed(), |_, folder| on_mlx(folder, "pt2"))),
        (
            "PyTorch",
            vec![
                test("compile_check_agrees", has_pytorch, compile_check_agrees_with_pytorch),
                test("verify_agrees", has_pytorch, verify_agrees_with_pytorch),
                test("verify_names_the_node", has_pytorch, verify_names_the_node_of_a_lost_weight),
            ],
        ),
    ];
    let named = tests.into_iter().flat_map(|(kind, tests)| tests.into_iter().map(move |test| test.with_kind(kind)));
    flambeau_testcases::run(named.collect())
}
