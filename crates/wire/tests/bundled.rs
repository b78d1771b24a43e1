//! A bundled program that ExecuTorch's devtools wrote (`fixtures/bundled.py`).

use flambeau_tensor::{Bytes, DType};
use flambeau_wire::{
    bundled::{BundledValue, is_bundled, read_bundled_program},
    read_program,
};

const FILE: &[u8] = include_bytes!("fixtures/mlp.bpte");

#[test]
fn program_and_test_cases_are_read() {
    let bundle = read_bundled_program(&Bytes::from_static(FILE)).unwrap();
    assert!(read_program(&bundle.program).unwrap().plan("forward").is_some());
    let [suite] = &bundle.suites[..] else { panic!("{} suites", bundle.suites.len()) };
    assert_eq!((suite.method.as_str(), suite.cases.len()), ("forward", 2));
    let shapes = |values: &[BundledValue]| -> Vec<Vec<usize>> {
        let shape = |value: &BundledValue| match value {
            BundledValue::Tensor(tensor) if tensor.dtype() == DType::F32 => tensor.shape().to_vec(),
            other => panic!("{other:?}"),
        };
        values.iter().map(shape).collect()
    };
    let cases: Vec<_> = suite.cases.iter().map(|case| (shapes(&case.inputs), shapes(&case.expected_outputs))).collect();
    assert_eq!(cases, [(vec![vec![2, 4]], vec![vec![2, 2]]), (vec![vec![5, 4]], vec![vec![5, 2]])]);
}

#[test]
fn no_changed_or_missing_byte_panics() {
    for len in 0..FILE.len() {
        let read = read_bundled_program(&Bytes::from_static(&FILE[..len]));
        assert!(read.is_err() || len > FILE.len() / 2, "{len} of {} bytes", FILE.len());
    }
    for at in 0..FILE.len() {
        for flip in [0xff, 0x01, 0x80] {
            let mut changed = FILE.to_vec();
            changed[at] ^= flip;
            let _ = read_bundled_program(&changed.into());
        }
    }
    assert!(is_bundled(FILE) && !is_bundled(&FILE[..7]));
    let other = read_bundled_program(&Bytes::from_static(b"....ET12....")).unwrap_err().to_string();
    assert!(other.contains("BP08"), "{other}");
}
