//! Sessions: calls of one program, and what of each is judged.

use std::path::Path;

use flambeau::tensor::Tensor;
use serde_json::{Value as Json, json};

use crate::{
    flambeau,
    program::{bytes, floats, write_tensor},
};

/// A call of `forward` on 1 and 2 that must give `expected`.
fn call(folder: &Path, number: usize, expected: &Tensor) -> Json {
    let (inputs, outputs) = (format!("call{number}.in.bin"), format!("call{number}.out.bin"));
    write_tensor(folder, &inputs, floats(&[1.0, 2.0], &[2]));
    write_tensor(folder, &outputs, expected.clone());
    let output = json!({ "shape": [2], "dtype": "float32", "argmax_safe": true, "margin": 1.0 });
    json!({ "method": "forward", "inputs": inputs, "expected": outputs, "compare": "all", "note": "one and two",
            "atol": [0.5], "rms_tol": [0.4], "outputs": [output] })
}

/// A session with calls that must give these results.
fn session(folder: &Path, expected: &[[f32; 2]]) -> Json {
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("model.pte"), bytes("MLXBackend")).unwrap();
    let calls: Vec<Json> = expected.iter().enumerate().map(|(i, e)| call(folder, i, &floats(e, &[2]))).collect();
    json!({ "kind": "session", "flow": "by hand", "rtol": 0.0, "calls": calls,
            "methods": { "forward": { "nodes": 1, "ops": { "AddNode": 1 }, "buffers": [] } } })
}

/// Report of a session, with margins written as `Infinity`, as Python does.
fn report(folder: &Path, session: &Json) -> Json {
    let text = session.to_string().replace("\"margin\":1.0", "\"margin\":Infinity");
    std::fs::write(folder.join("session.json"), text).unwrap();
    let done = flambeau(folder, &["conformance", ".", "--threads", "1", "--json"]);
    let json: Json = serde_json::from_str(&done.stdout).unwrap_or_else(|e| panic!("{e}: {}{}", done.stdout, done.stderr));
    assert_eq!(done.code, i32::from(json["failed"] != 0));
    json["cases"][0].clone()
}

#[test]
fn every_call_that_fails_is_named() {
    let dir = tempfile::tempdir().unwrap();
    // Right; beyond the bound; within it, but not in the mean of squares.
    let calls = [[2.0, 3.0], [2.0, 4.0], [2.45, 3.45]];
    let case = report(dir.path(), &session(dir.path(), &calls));
    let failed = case["failed_calls"].as_array().unwrap();
    assert_eq!(failed.iter().map(|call| call["call"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2]);
    let reasons: Vec<&str> = failed.iter().map(|call| call["reason"].as_str().unwrap()).collect();
    for (reason, part) in reasons.iter().zip(["1 of 2 elements differ", "root mean square"]) {
        assert!(reason.starts_with("output 0: ") && reason.contains(part), "{reason}");
    }
    assert_eq!(report(dir.path(), &session(dir.path(), &calls[..1]))["outcome"], "passed");
}

#[test]
fn the_best_entry_must_be_the_expected_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut one = session(dir.path(), &[[2.6, 2.55]]);
    one["calls"][0]["rms_tol"] = json!([1.0]);
    one["calls"][0]["atol"] = json!([1.0]);
    let case = report(dir.path(), &one);
    assert!(case["reason"].as_str().unwrap().contains("largest entry of the last row is Some(1), expected Some(0)"), "{case}");
    one["calls"][0]["outputs"][0]["argmax_safe"] = json!(false);
    assert_eq!(report(dir.path(), &one)["outcome"], "passed");
}

#[test]
fn what_a_description_says_is_held_and_what_is_unknown_refused() {
    let dir = tempfile::tempdir().unwrap();
    let right = session(dir.path(), &[[2.0, 3.0]]);
    let check = |edit: &dyn Fn(&mut Json), expected: &str| {
        let mut json = right.clone();
        edit(&mut json);
        let case = report(dir.path(), &json);
        let reason = case["reason"].as_str().unwrap();
        assert!(case["outcome"] == "failed" && reason.contains(expected), "expected `{expected}`, found {case}");
    };
    check(&|s| s["colour"] = json!("blue"), "the field `colour` is not known");
    check(&|s| s["calls"][0]["outputs"][0]["colour"] = json!("blue"), "the field `colour` is not known");
    check(&|s| s["calls"] = json!([]), "there are no calls");
    check(&|s| s["calls"][0]["method"] = json!("other"), "no method `other`");
    check(&|s| s["calls"][0]["compare"] = json!("some"), "unknown variant `some`");
    check(&|s| s["calls"][0]["rms_tol"] = json!([]), "1 bounds `atol` and 0 bounds `rms_tol`");
    check(&|s| s["calls"][0]["outputs"][0]["shape"] = json!([3]), "the file holds f32 [2]");
    check(&|s| s["methods"]["forward"]["nodes"] = json!(2), "1 nodes, expected 2");
    check(&|s| s["methods"]["forward"]["ops"] = json!({ "SubtractNode": 1 }), "expected {\"Subtract\": 1}");
    check(&|s| s["methods"]["forward"]["buffers"] = json!(["k [2] 6"]), "the mutable buffers");
}
