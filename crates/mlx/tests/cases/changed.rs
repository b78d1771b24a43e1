//! Programs with small faults: MLX, which checks little by itself, must neither end the process nor disagree with the CPU engine.

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Graph,
    engine::{Engine, Value},
};
use flambeau_tensor::{Tolerance, compare};
use flambeau_testcases::{Case, Dice, mutate};

use crate::{case_folders, installed};

/// Changed programs to run for each case.
const ROUNDS: usize = 4;

fn run(case: &Case, engine: &dyn Engine, graph: &Graph, args: &[u32]) -> Result<Vec<Value>, String> {
    let (mut session, arguments) = case.load(engine, graph.clone(), args)?;
    session.run(&arguments).map_err(|e| e.to_string())
}

#[test]
fn changed_programs_agree_with_the_cpu_engine_or_are_refused() {
    let Some(mlx) = installed::engine() else { return };
    let (cpu, mut dice) = (CpuEngine::new(Some(1)), Dice(7));
    let (mut wrong, mut runs, mut compared) = (Vec::new(), 0, 0);
    for folder in case_folders("ops") {
        let case = Case::open(&folder).expect("the case opens");
        let Some((graph, args)) = case.delegate_call().expect("the payload decodes") else { continue };
        for _ in 0..ROUNDS {
            let mut graph = graph.clone();
            if mutate(&mut graph, &mut dice).is_none() {
                continue;
            }
            let on_mlx = run(&case, &mlx, &graph, &args);
            runs += 1;
            let (Ok(a), Ok(b)) = (on_mlx, run(&case, &cpu, &graph, &args)) else { continue };
            compared += 1;
            for (a, b) in a.iter().zip(&b) {
                let (Value::Tensor(a), Value::Tensor(b)) = (a, b) else { continue };
                // Half precision rounds at other places.
                if let Err(e) = compare(a, b, Tolerance { relative: 0.05, absolute: 0.05 }) {
                    wrong.push(format!("{}: {e}\n{:?}", folder.display(), graph.chains));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} compared:\n{}", wrong.len(), wrong.join("\n"));
    assert!(runs == 0 || compared > 100, "only {compared} of {runs} changed programs ran on both");
}
