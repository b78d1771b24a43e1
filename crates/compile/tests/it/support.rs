//! Reads, compiles and runs fixtures.

use std::{path::PathBuf, sync::Arc};

use flambeau_compile::{Error, Options, Output, compile};
use flambeau_cpu::CpuEngine;
use flambeau_pt2::{Archive, Exported};
use flambeau_runtime::{Engine, LoadOptions, Method, Program, Value};
use flambeau_tensor::{AlignedBytes, DType, Tensor, cast};

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// The archive of a fixture.
pub(crate) fn exported(name: &str) -> Exported {
    let bytes = std::fs::read(path(&format!("{name}.pt2"))).unwrap();
    Archive::open(bytes.into()).unwrap().only_program().unwrap()
}

/// Inputs and expected results of each run.
pub(crate) fn runs(name: &str) -> Vec<(Vec<Tensor>, Vec<Tensor>)> {
    let bytes = std::fs::read(path(&format!("{name}.bin"))).unwrap();
    let mut at = 0;
    let int = |at: &mut usize| {
        *at += 4;
        u32::from_le_bytes(bytes[*at - 4..*at].try_into().unwrap()) as usize
    };
    let n = int(&mut at);
    let list = |at: &mut usize| -> Vec<Tensor> {
        (0..int(at))
            .map(|_| {
                let dtypes = [DType::F32, DType::F16, DType::I32, DType::I64, DType::BF16, DType::Bool, DType::U8, DType::F64];
                let (dtype, rank) = (dtypes[int(at)], int(at));
                let shape: Vec<usize> = (0..rank).map(|_| int(at)).collect();
                let len = shape.iter().product::<usize>() * dtype.size();
                *at += len;
                Tensor::new(dtype, &shape, AlignedBytes::copy_of(&bytes[*at - len..*at]).into_bytes()).unwrap()
            })
            .collect()
    };
    (0..n).map(|_| (list(&mut at), list(&mut at))).collect()
}

pub(crate) fn engine() -> Arc<dyn Engine> {
    Arc::new(CpuEngine::new(None))
}

/// The bytes of a compiled file.
pub(crate) fn written(output: &Output<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let n = output.write(&mut bytes).unwrap();
    assert_eq!(n as usize, bytes.len());
    bytes
}

/// A fixture as a compiled file with one method.
pub(crate) fn compiled(name: &str, options: &Options) -> Result<Vec<u8>, Error> {
    Ok(written(&compile(&[("forward", &exported(name))], options, &*engine())?))
}

pub(crate) fn method(bytes: Vec<u8>, name: &str) -> Method {
    Program::from_bytes(bytes).unwrap().method(name, &engine(), &LoadOptions::default()).unwrap()
}

/// Runs a method on each of a fixture's inputs and compares the results with PyTorch's.
pub(crate) fn check_runs(method: &mut Method, name: &str) {
    for (i, (inputs, expected)) in runs(name).into_iter().enumerate() {
        let inputs: Vec<Value> = inputs.into_iter().map(Value::Tensor).collect();
        let found = method.run(&inputs).unwrap_or_else(|e| panic!("{name}, run {i}: {e}"));
        assert_eq!(found.len(), expected.len(), "{name}, run {i}");
        for (j, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let Value::Tensor(found) = found else { panic!("{name}, run {i}, result {j} is no tensor") };
            close(found, expected, &format!("{name}, run {i}, result {j}"));
        }
    }
}

pub(crate) fn close(found: &Tensor, expected: &Tensor, place: &str) {
    assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "{place}");
    let wide = |t: &Tensor| cast(t, DType::F64).unwrap().as_slice::<f64>().unwrap().to_vec();
    let tolerance = match found.dtype() {
        DType::BF16 => 2e-2,
        DType::F16 => 2e-3,
        _ => 1e-5,
    };
    for (k, (a, b)) in wide(found).into_iter().zip(wide(expected)).enumerate() {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{place}, element {k}: expected {b}, found {a}");
    }
}
