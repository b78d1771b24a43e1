//! Compiles and runs random programs of views and writes. A reference interpreter of strided
//! memory, independent of the compiler, checks the results.
//!
//! A seed determines a program. A failure prints the seed and the program. `FIRST` and `PROGRAMS`
//! select the seeds of a run.

mod draw;
mod memory;

use flambeau_compile::{Options, compile};
use flambeau_runtime::Value;
use flambeau_tensor::Tensor;

use self::{draw::Program, memory::Memory};
use crate::support::{engine, method, written};

const FIRST: u64 = 0;
const PROGRAMS: u64 = 1000;

/// Runs of each program. Its buffer persists between runs.
const RUNS: u64 = 2;

fn contents(result: &Value) -> (Vec<usize>, Vec<f32>) {
    match result {
        Value::Tensor(t) => (t.shape().to_vec(), t.as_slice::<f32>().unwrap().to_vec()),
        _ => panic!("a result is no tensor"),
    }
}

/// The first difference between the compiled program and the reference, if any.
fn difference(program: &Program) -> Option<String> {
    let exported = program.exported();
    let output = match compile(&[("forward", &exported)], &Options::default(), &*engine()) {
        Ok(output) => output,
        Err(error) => return Some(format!("it does not compile: {error}")),
    };
    let mut compiled = method(written(&output), "forward");
    let mut memory = Memory::new(program);
    for run in 0..RUNS {
        let inputs = program.inputs(run);
        let expected = memory.run(program, &inputs);
        let tensors = inputs.iter().zip(&program.input_shapes).map(|(x, shape)| Tensor::from_slice(x, shape).unwrap());
        let found = match compiled.run(&tensors.map(Value::Tensor).collect::<Vec<_>>()) {
            Ok(found) => found,
            Err(error) => return Some(format!("run {run} fails: {error}")),
        };
        for (i, (found, expected)) in found.iter().map(contents).zip(expected).enumerate() {
            if found != expected {
                return Some(format!("run {run}, result {i}: expected {expected:?}, found {found:?}"));
            }
        }
    }
    None
}

#[test]
fn random_views_and_writes_match_their_definition() {
    let failures: Vec<String> = (FIRST..FIRST + PROGRAMS)
        .filter_map(|seed| {
            let program = Program::draw(seed);
            difference(&program).map(|why| format!("seed {seed}: {why}\n{program}"))
        })
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {PROGRAMS} programs fail\n{}",
        failures.len(),
        failures[..failures.len().min(5)].join("\n")
    );
}
