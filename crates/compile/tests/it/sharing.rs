//! Tests of several methods in one file.

use flambeau_compile::{Options, compile};
use flambeau_runtime::{LoadOptions, Method, Program, SharedState, Value};
use flambeau_tensor::Tensor;

use crate::support::{check_runs, close, engine, exported, method, runs, written};

/// Number of named data entries and of their segments.
fn segments(bytes: &[u8]) -> (usize, usize) {
    let program = Program::from_bytes(bytes.to_vec()).unwrap();
    let named = &program.file().named_data;
    let mut distinct: Vec<u32> = named.values().copied().collect();
    distinct.sort_unstable();
    distinct.dedup();
    (named.len(), distinct.len())
}

#[test]
fn methods_share_equal_weights_and_keep_others_apart() {
    let (layers, second, grid) = (exported("layers"), exported("second"), exported("cond_tensor"));
    let options = Options::default();
    let output = compile(&[("first", &layers), ("second", &second), ("third", &grid)], &options, &*engine()).unwrap();
    let bytes = written(&output);
    let (keys, stored) = segments(&bytes);
    assert!(stored <= keys - 3, "{keys} keys in {stored} segments");
    check_runs(&mut method(bytes.clone(), "first"), "layers");
    check_runs(&mut method(bytes.clone(), "second"), "second");
    check_runs(&mut method(bytes, "third"), "cond_tensor");
}

#[test]
fn one_archive_as_two_methods_is_stored_once() {
    let layers = exported("layers");
    let one = written(&compile(&[("a", &layers)], &Options::default(), &*engine()).unwrap());
    let two = written(&compile(&[("a", &layers), ("b", &layers)], &Options::default(), &*engine()).unwrap());
    assert_eq!(segments(&two).1, segments(&one).1);
    assert_eq!(segments(&two).0, 2 * segments(&one).0);
    check_runs(&mut method(two, "b"), "layers");
}

/// The two programs of the `shared` fixture as methods of one file.
fn two_methods() -> Program {
    let (write, read) = (exported("shared_write"), exported("shared_read"));
    let bytes = written(&compile(&[("write", &write), ("read", &read)], &Options::default(), &*engine()).unwrap());
    Program::from_bytes(bytes).unwrap()
}

/// Runs both methods in turn and returns the results of each run of the second method.
fn in_turn(options: &LoadOptions) -> Vec<Vec<Tensor>> {
    let program = two_methods();
    let [mut write, mut read] = ["write", "read"].map(|name| program.method(name, &engine(), options).unwrap());
    let run = |method: &mut Method, inputs: &[Tensor]| -> Vec<Tensor> {
        let inputs: Vec<Value> = inputs.iter().cloned().map(Value::Tensor).collect();
        method.run(&inputs).unwrap().iter().map(|v| v.as_tensor().unwrap().clone()).collect()
    };
    let mut found = Vec::new();
    for ((inputs, expected), (others, _)) in runs("shared_write").iter().zip(&runs("shared_read")) {
        close(&run(&mut write, inputs)[0], &expected[0], "what the writing method returns");
        found.push(run(&mut read, others));
    }
    write.reset();
    found.push(run(&mut read, &runs("shared_read")[0].0));
    found
}

#[test]
fn methods_share_buffers_where_they_are_loaded_to() {
    let found = in_turn(&LoadOptions { shared: Some(SharedState::default()), ..LoadOptions::default() });
    for (found, (_, expected)) in found.iter().zip(&runs("shared_read")) {
        for (found, expected) in found.iter().zip(expected) {
            close(found, expected, "what the reading method returns");
        }
    }
    let fresh = in_turn(&LoadOptions::default());
    close(&found[3][0], &fresh[3][0], "after a reset of the other method");
    close(&fresh[0][0], &fresh[3][0], "a method with state of its own");
}

#[test]
fn state_is_shared_with_everything_loaded_with_it_and_in_one_shape() {
    let program = two_methods();
    let shared = SharedState::default();
    let options = LoadOptions { shared: Some(shared.clone()), ..LoadOptions::default() };
    program.method("write", &engine(), &options).unwrap();
    shared.engine.index_or_insert_with("state.table", "something else", || 0).unwrap();
    program.method("read", &engine(), &options).expect("nobody writes to the table, so that it is no state");
    let other = SharedState::default();
    other.engine.index_or_insert_with("state.total", "something else", || 0).unwrap();
    let refused = program.method("read", &engine(), &LoadOptions { shared: Some(other), ..LoadOptions::default() });
    let message = refused.unwrap_err().to_string();
    assert!(message.contains("state.total") && message.contains("something else"), "{message}");
}

#[test]
fn a_method_is_one_delegate_for_another_writer() {
    let (layers, kernels) = (exported("layers"), exported("nonzero"));
    let options = Options { key_prefix: "part".into(), keep_inputs: true, ..Options::default() };
    let output = compile(&[("first", &layers), ("second", &layers), ("third", &kernels)], &options, &*engine()).unwrap();
    let bytes = written(&output);
    let program = Program::from_bytes(bytes).unwrap();
    let delegate = output.delegate("first").unwrap();
    let plan = program.file().plan("first").unwrap();
    assert_eq!(delegate.payload, program.file().delegate_payload(&plan.delegates[0]));
    assert!(delegate.nodes > 0 && !delegate.constants.is_empty());
    for (key, blob) in delegate.constants {
        assert!(key.starts_with("part0000/"), "{key}");
        assert_eq!(blob.into_bytes(key).unwrap(), program.named(key).unwrap());
    }
    assert!(output.delegate("fourth").is_none());
    assert!(output.delegate("third").is_none(), "a kernel computes a part of it");
}
