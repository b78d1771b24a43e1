//! `flambeau verify` on programs, some of them with a damaged weight.

use std::path::{Path, PathBuf};

use flambeau::{runtime::Program, wire::bundled::read_bundled_program};
use serde_json::Value as Json;

use crate::{Finished, flambeau};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../flambeau/examples/data").join(name)
}

fn bundle() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../wire/tests/fixtures/mlp.bpte")
}

/// The bytes of a file that holds the perceptron, with the largest float of `weight` doubled.
fn damaged(file: &Path, weight: &str) -> Vec<u8> {
    let program = Program::open(data("mlp.pte")).unwrap();
    let (key, _) = program.file().named_data.iter().find(|(key, _)| key.ends_with(weight)).expect("the weight is named");
    let tensor = program.named(key).unwrap();
    let mut bytes = std::fs::read(file).unwrap();
    let start = bytes.windows(tensor.len()).position(|window| window == &tensor[..]).expect("the file holds the weight");
    let floats: Vec<f32> = tensor.chunks_exact(4).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    let largest = (0..floats.len()).max_by(|&a, &b| floats[a].abs().total_cmp(&floats[b].abs())).unwrap();
    let at = start + 4 * largest;
    bytes[at..at + 4].copy_from_slice(&(2.0 * floats[largest]).to_le_bytes());
    bytes
}

fn json(done: &Finished) -> Json {
    serde_json::from_str(&done.stdout).unwrap_or_else(|_| panic!("{}{}", done.stdout, done.stderr))
}

fn verify(folder: &Path, args: &[&str]) -> Finished {
    flambeau(folder, &[&["verify"], args].concat())
}

#[test]
fn engines_agree_on_every_node() {
    let dir = tempfile::tempdir().unwrap();
    let program = data("mlp.pte");
    let done = verify(dir.path(), &[program.to_str().unwrap(), "--runs", "3"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert!(done.stdout.starts_with("method forward agrees: ") && done.stdout.contains("in 3 runs"), "{}", done.stdout);
}

#[test]
fn a_damaged_weight_is_found_beside_the_other_program() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, archive) = (data("mlp.pte"), data("mlp.pt2"));
    std::fs::write(dir.path().join("bad.pte"), damaged(&whole, "down.weight")).unwrap();
    let args = ["bad.pte", "--against", whole.to_str().unwrap(), "--source", archive.to_str().unwrap()];
    let done = verify(dir.path(), &args);
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert!(done.stdout.contains("/down.weight") && done.stdout.contains("from aten.linear.default"), "{}", done.stdout);
    let found = json(&verify(dir.path(), &[&args[..], &["--json"]].concat()));
    let first = &found["methods"][0]["differences"][0];
    assert!(first["weights"][0].as_str().unwrap().ends_with("/down.weight"), "{first}");
    assert!(first["error"]["ulps"].as_u64().unwrap() > 100 && first["error"]["absolute"].as_f64().unwrap() > 1e-3, "{first}");
    assert_eq!(found["agrees"], false);
}

#[test]
fn test_cases_of_a_bundled_program_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    let path = bundle();
    let bytes = std::fs::read(&path).unwrap();
    let cases = read_bundled_program(&bytes.into()).unwrap();
    assert_eq!((cases.suites.len(), cases.suites[0].cases.len()), (1, 2));
    let done = verify(dir.path(), &[path.to_str().unwrap(), "--json"]);
    assert_eq!((done.code, json(&done)["methods"][0]["runs"].as_u64()), (0, Some(2)), "{}", done.stderr);
    std::fs::write(dir.path().join("bad.bpte"), damaged(&path, "up.weight")).unwrap();
    let done = verify(dir.path(), &["bad.bpte"]);
    assert_eq!(done.code, 1, "{}", done.stderr);
    assert!(done.stdout.contains("run 0, output 0: ") && done.stdout.contains("every compared node agrees"), "{}", done.stdout);
    let strict = verify(dir.path(), &[path.to_str().unwrap(), "--rtol", "1e-12", "--atol", "1e-30"]);
    assert_eq!(strict.code, 1, "the last digits differ from PyTorch's: {}", strict.stdout);
}

#[test]
fn recorded_results_are_compared_node_by_node() {
    let dir = tempfile::tempdir().unwrap();
    let whole = data("mlp.pte");
    let recorded = verify(dir.path(), &[whole.to_str().unwrap(), "--record", "tensors", "--seed", "5"]);
    assert_eq!(recorded.code, 0, "{}", recorded.stderr);
    let same = verify(dir.path(), &[whole.to_str().unwrap(), "--captures", "tensors"]);
    assert_eq!(same.code, 0, "{}{}", same.stdout, same.stderr);
    std::fs::write(dir.path().join("bad.pte"), damaged(&whole, "up.weight")).unwrap();
    let done = verify(dir.path(), &["bad.pte", "--captures", "tensors", "--json"]);
    let first = json(&done)["methods"][0]["differences"][0].clone();
    assert_eq!(done.code, 1);
    assert!(first["weights"][0].as_str().unwrap().ends_with("/up.weight"), "{first}");
}

#[test]
fn bundled_programs_are_inspected_and_told_from_programs() {
    let dir = tempfile::tempdir().unwrap();
    let path = bundle();
    let shown = flambeau(dir.path(), &["inspect", path.to_str().unwrap()]);
    assert!(shown.stdout.contains("test cases of forward: 2") && shown.stdout.contains("method forward"), "{}", shown.stdout);
    let refused = flambeau(dir.path(), &["run", path.to_str().unwrap()]);
    assert!(refused.code == 1 && refused.stderr.contains("flambeau verify"), "{}", refused.stderr);
    for flags in [&["--record", "x"][..], &["--method", "encode"], &["--rtol", "1"], &["--python", "python3"]] {
        let done = verify(dir.path(), &[&[path.to_str().unwrap()], flags].concat());
        assert!(done.code != 0 && !done.stderr.is_empty(), "{flags:?}");
    }
}

#[test]
fn programs_with_other_nodes_are_compared_by_value() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, archive) = (data("mlp.pte"), data("mlp.pt2"));
    let compiled =
        flambeau(dir.path(), &["compile", archive.to_str().unwrap(), "-o", "q.pte", "--qlinear", "8w", "--group-size", "32"]);
    assert_eq!(compiled.code, 0, "{}", compiled.stderr);
    let args = ["q.pte", "--against", whole.to_str().unwrap()];
    let strict = verify(dir.path(), &args);
    assert!(
        strict.code == 1 && strict.stdout.contains("the reference has neither this result"),
        "{}{}",
        strict.stdout,
        strict.stderr
    );
    let tolerant = verify(dir.path(), &[&args[..], &["--rtol", "0.1", "--atol", "0.1"]].concat());
    assert_eq!(tolerant.code, 0, "{}{}", tolerant.stdout, tolerant.stderr);
}

#[test]
fn every_method_is_verified() {
    let dir = tempfile::tempdir().unwrap();
    let archive = data("mlp.pt2");
    let [first, second] = ["first", "second"].map(|name| format!("{name}={}", archive.to_str().unwrap()));
    let done = flambeau(dir.path(), &["compile", "--method", &first, "--method", &second, "-o", "two.pte"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let found = json(&verify(dir.path(), &["two.pte", "--json"]));
    let names: Vec<&str> = found["methods"].as_array().unwrap().iter().filter_map(|method| method["method"].as_str()).collect();
    assert_eq!((names, &found["agrees"]), (vec!["first", "second"], &true.into()), "{found}");
    let against = json(&verify(dir.path(), &["two.pte", "--against", "two.pte", "--json"]));
    assert_eq!(against["methods"].as_array().map(Vec::len), Some(2), "{against}");
    let one = json(&verify(dir.path(), &["two.pte", "--method", "second", "--json"]));
    assert_eq!(one["methods"].as_array().map(Vec::len), Some(1), "{one}");
    let refused = verify(dir.path(), &["two.pte", "--record", "recording"]);
    assert!(
        refused.code == 2 && refused.stderr.contains("--method") && refused.stderr.contains("first, second"),
        "{}",
        refused.stderr
    );
}
