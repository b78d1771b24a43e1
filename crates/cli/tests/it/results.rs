//! Commands that succeed.

use flambeau::tensor::{Bytes, tensor_list};

use crate::{
    flambeau, op_test_runner,
    program::{floats, write, write_tensor},
};

fn output(folder: &std::path::Path, name: &str) -> Vec<f32> {
    let file = Bytes::from(std::fs::read(folder.join(name)).unwrap());
    tensor_list::read(&file).unwrap()[0].as_slice::<f32>().unwrap().to_vec()
}

#[test]
fn run_writes_what_the_method_returns() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    write_tensor(dir.path(), "x.bin", floats(&[1.0, -2.5], &[2]));
    let done = flambeau(dir.path(), &["run", "add.pte", "--input", "x.bin", "-o", "y.bin"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, ""), "{}", done.stderr);
    assert_eq!(output(dir.path(), "y.bin"), [2.0, -1.5]);
    let shown = flambeau(dir.path(), &["run", "add.pte", "--input", "x.bin"]);
    assert!(shown.stdout.contains("y: f32[2] = 2, -1.5"), "{}", shown.stdout);
    if cfg!(unix) {
        // A page is less than any limit on locked memory.
        let locked = flambeau(dir.path(), &["run", "add.pte", "--input", "x.bin", "--mlock"]);
        assert_eq!((locked.code, locked.stdout), (0, shown.stdout), "{}", locked.stderr);
    }
    for name in ["y.npy", "y.npz", "y.safetensors"] {
        assert_eq!(flambeau(dir.path(), &["run", "add.pte", "-i", "x.bin", "-o", name]).code, 0);
        let again = flambeau(dir.path(), &["run", "add.pte", "-i", name, "--json", "--repeat", "2"]);
        let json: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
        assert_eq!(json["outputs"][0]["first"], serde_json::json!([3.0, -0.5]), "{name}");
        assert_eq!(json["seconds"].as_array().map(Vec::len), Some(2));
    }
}

#[test]
fn results_of_nodes_go_to_the_debug_buffer() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    write_tensor(dir.path(), "x.bin", floats(&[1.0, -2.5], &[2]));
    let args = ["run", "add.pte", "-i", "x.bin", "-o", "y.bin", "--etdump", "run.etdp", "--debug-buffer", "run.bin"];
    let done = flambeau(dir.path(), &args);
    assert_eq!(done.code, 0, "{}", done.stderr);
    assert_eq!(output(dir.path(), "y.bin"), [2.0, -1.5]);
    let read = |name| std::fs::read(dir.path().join(name)).unwrap();
    // Each tensor begins at a multiple of 64: the node's result, the delegate's argument and
    // result, the run's output.
    let buffer = read("run.bin");
    let kept: Vec<Vec<f32>> =
        buffer.chunks(64).map(|part| part[..8].chunks(4).map(|f| f32::from_le_bytes(f.try_into().unwrap())).collect()).collect();
    assert_eq!(kept, [[2.0, -1.5], [1.0, -2.5], [2.0, -1.5], [2.0, -1.5]]);
    assert_eq!(read("run.etdp")[8..12], *b"ED00");
    let alone = flambeau(dir.path(), &["run", "add.pte", "-i", "x.bin", "--debug-buffer", "run.bin"]);
    assert!(alone.code == 2 && alone.stderr.contains("--etdump"), "{}", alone.stderr);
}

#[test]
fn run_returns_what_constant_methods_hold() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let done = flambeau(dir.path(), &["run", "add.pte", "--method", "get_answer"]);
    assert_eq!(done.stdout.trim(), "output0: the integer 42");
}

#[test]
fn inspect_shows_methods_nodes_and_constants() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    let text = flambeau(dir.path(), &["inspect", "add.pte", "--nodes"]).stdout;
    for part in ["method forward", "input 0: f32[2]", "MLXBackend", "1  Add", "Add a=t1 b=t0 out=t2", "get_answer = 42"] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    let json = flambeau(dir.path(), &["inspect", "add.pte", "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["constants"]["get_answer"], serde_json::json!([42]));
    assert_eq!(json["methods"][0]["delegates"][0]["chains"][0]["counts"]["Add"], 1);
}

#[test]
fn completions_and_manual_pages_know_every_command_and_flag() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let script = flambeau(dir.path(), &["completions", shell]).stdout;
        for part in ["generate", "conformance", "max-new-tokens", "qlinear"] {
            assert!(script.contains(part), "{shell}: `{part}` is not in:\n{script}");
        }
    }
    let page = flambeau(dir.path(), &["man"]).stdout;
    for part in [".TH flambeau 1", "flambeau\\-compile(1)", "flambeau\\-doctor(1)"] {
        assert!(page.contains(part), "`{part}` is not in:\n{page}");
    }
    let page = flambeau(dir.path(), &["man", "generate"]).stdout;
    for part in [".TH flambeau-generate 1", "\\-\\-max\\-new\\-tokens", "smollm2.pte"] {
        assert!(page.contains(part), "`{part}` is not in:\n{page}");
    }
    assert_eq!(flambeau(dir.path(), &["man", "nothing"]).code, 2);
}

#[test]
fn op_test_runner_takes_both_forms_of_flags() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    write_tensor(dir.path(), "x.bin", floats(&[0.0, 1.0], &[2]));
    for args in
        [&["--pte", "add.pte", "--input", "x.bin", "--output", "y.bin"][..], &["-pte=add.pte", "-input=x.bin", "-output=y.bin"]]
    {
        let done = op_test_runner(dir.path(), args);
        assert_eq!(done.code, 0, "{}", done.stderr);
        assert_eq!(output(dir.path(), "y.bin"), [1.0, 2.0]);
    }
}

/// Writes a case folder whose expected output is `y`.
fn case(folder: &std::path::Path, name: &str, json: &str, y: &[f32]) {
    let folder = folder.join("cases").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    write(&folder);
    std::fs::rename(folder.join("add.pte"), folder.join("model.pte")).unwrap();
    write_tensor(&folder, "input.bin", floats(&[0.0, 1.0], &[2]));
    write_tensor(&folder, "expected_output.bin", floats(y, &[2]));
    std::fs::write(folder.join("case.json"), json).unwrap();
}

#[test]
fn conformance_counts_cases_and_ends_with_the_sum() {
    let dir = tempfile::tempdir().unwrap();
    let json = r#"{"op": "add", "rtol": 1e-5, "atol": 1e-5}"#;
    case(dir.path(), "right", json, &[1.0, 2.0]);
    case(dir.path(), "wrong", json, &[1.0, 9.0]);
    case(dir.path(), "not_compared", r#"{"op": "rand", "skip_comparison": true}"#, &[7.0, 7.0]);
    let check = |args: &[&str], code, last: &str| {
        let done = flambeau(dir.path(), &[&["conformance", "cases", "--jobs", "2"][..], args].concat());
        assert_eq!((done.code, done.stdout.lines().last()), (code, Some(last)), "{args:?}\n{}{}", done.stdout, done.stderr);
    };
    check(&[], 1, "2 passed, 1 failed, 0 skipped");
    check(&["--filter", "right"], 0, "1 passed, 0 failed, 0 skipped");
    let none = flambeau(dir.path(), &["conformance", "cases", "--filter", "nothing"]);
    assert!(none.code == 1 && none.stderr.contains("has `nothing` in its name"), "{}", none.stderr);
    check(&["--from", "pt2"], 0, "0 passed, 0 failed, 3 skipped");
    std::fs::write(dir.path().join("known.txt"), "wrong # differs by purpose\n").unwrap();
    check(&["--expect", "known.txt"], 0, "2 passed, 0 failed, 1 skipped");
    std::fs::write(dir.path().join("known.txt"), "wrong\nright\n").unwrap();
    check(&["--expect", "known.txt"], 1, "1 passed, 1 failed, 1 skipped");
}
