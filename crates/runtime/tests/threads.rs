//! Tests of methods of one program on many threads.

use std::{fs, path::Path, sync::Arc, thread};

use flambeau_cpu::CpuEngine;
use flambeau_runtime::{Engine, LoadOptions, Method, Program, Value};
use flambeau_tensor::{Bytes, tensor_list};
use flambeau_testcases::committed;

const THREADS: usize = 50;
const RUNS: usize = 100;

fn load(program: &Program, engine: &Arc<dyn Engine>) -> Method {
    program.method("forward", engine, &LoadOptions::default()).expect("the method loads")
}

/// The bytes of the results of successive runs of one method.
fn results(method: &mut Method, inputs: &[Value]) -> Vec<Vec<Bytes>> {
    let bytes = |value: &Value| value.as_tensor().expect("a tensor").bytes().clone();
    (0..RUNS).map(|_| method.run(inputs).expect("the run succeeds").iter().map(bytes).collect()).collect()
}

fn check(folder: &Path, has_state: bool) {
    let program = Program::open(folder.join("model.pte")).expect("the program opens");
    let file = Bytes::from(fs::read(folder.join("input.bin")).expect("the inputs read"));
    let inputs: Vec<Value> = tensor_list::read(&file).expect("a tensor list").into_iter().map(Value::Tensor).collect();
    let engine = Arc::new(CpuEngine::new(Some(2))) as Arc<dyn Engine>;
    let expected = results(&mut load(&program, &engine), &inputs);
    assert_eq!(has_state, expected[0] != expected[1], "{}", folder.display());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let mut method = load(&program, &engine);
                assert!(results(&mut method, &inputs) == expected, "{}", folder.display());
                method.reset();
                assert!(results(&mut method, &inputs) == expected, "{} after a reset", folder.display());
            });
        }
    });
}

#[test]
fn methods_on_many_threads_compute_what_one_computes() {
    let programs =
        [("model.decoder.f32", false), ("quant.linear.4.32.f32", false), ("scan.two", false), ("write.counter_int", true)];
    for (name, has_state) in programs {
        let case = committed().into_iter().find(|case| case.name == format!("small/{name}")).expect("the case is committed");
        check(&case.folder.expect("it is there"), has_state);
    }
}
