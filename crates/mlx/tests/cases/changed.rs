//! Programs with small faults. MLX itself checks little; it must neither end the process nor
//! disagree with the CPU engine.

use std::path::Path;

use fastrand::Rng;
use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Graph,
    engine::{Engine, Value},
};
use flambeau_mlx::MlxEngine;
use flambeau_tensor::{Tolerance, compare};
use flambeau_testcases::{LoadedCase, may_not_end, mutate};

use crate::{committed_folders, installed};

/// Changed programs to run for each case.
const ROUNDS: usize = 4;

pub(crate) fn engines() -> (MlxEngine, CpuEngine) {
    (installed::engine(), CpuEngine::new(Some(1)))
}

fn run(case: &LoadedCase, engine: &dyn Engine, graph: &Graph, args: &[u32]) -> Result<Vec<Value>, String> {
    let (mut session, arguments) = case.load(engine, graph.clone(), args)?;
    session.run(&arguments).map_err(|e| e.to_string())
}

/// How many changed programs ran on both engines; the others were refused by one.
pub(crate) fn check((mlx, cpu): &(MlxEngine, CpuEngine), name: &str, folder: &Path) -> Result<usize, String> {
    if may_not_end(name) {
        return Ok(0);
    }
    let case = LoadedCase::open(folder)?;
    let Some((graph, args)) = case.delegate_call()? else { return Ok(0) };
    let (mut rng, mut compared) = (Rng::with_seed(name.bytes().map(u64::from).sum()), 0);
    for _ in 0..ROUNDS {
        let mut graph = graph.clone();
        if mutate(&mut graph, &mut rng).is_none() {
            continue;
        }
        let (Ok(a), Ok(b)) = (run(&case, mlx, &graph, &args), run(&case, cpu, &graph, &args)) else { continue };
        compared += 1;
        for (a, b) in a.iter().zip(&b) {
            let (Value::Tensor(a), Value::Tensor(b)) = (a, b) else { continue };
            // Half precision rounds at other places.
            compare(a, b, Tolerance { relative: 0.05, absolute: 0.05 }).map_err(|e| format!("{e}\n{:?}", graph.chains))?;
        }
    }
    Ok(compared)
}

pub(crate) fn enough_changed_programs_run_on_both() {
    let engines = engines();
    let compared: usize =
        committed_folders().map(|(name, folder)| check(&engines, &name, &folder).expect("the engines agree")).sum();
    assert!(compared > 50, "only {compared} changed programs ran on both");
}
