//! Several methods in one file.

use flambeau_compile::{Options, compile};
use flambeau_runtime::Program;

use crate::support::{check_runs, engine, exported, method, written};

/// Named data and the segments that hold it.
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
