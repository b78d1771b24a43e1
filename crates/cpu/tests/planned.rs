//! Every case runs from a plan made ahead, except for nodes that depend on the run.

use std::{
    path::Path,
    process::ExitCode,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Checked, Node,
    engine::{Constants, Engine, EngineError, LoadOptions, Session, Steps, Value},
};
use flambeau_testcases::{Outcome, all, per_case, run_case};

/// The CPU engine, and the profiles of its sessions.
struct Counting {
    engine: CpuEngine,
    steps: Arc<Mutex<Steps>>,
    /// Whether a graph has nodes that need a step.
    computes: AtomicBool,
}

struct CountingSession {
    session: Box<dyn Session>,
    steps: Arc<Mutex<Steps>>,
}

impl Engine for Counting {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn load(&self, graph: Arc<Checked>, constants: &dyn Constants, options: &LoadOptions) -> Result<Box<dyn Session>, EngineError> {
        if graph.chains[graph.main as usize].iter().any(|node| !may_be_view(node)) {
            self.computes.store(true, Ordering::Relaxed);
        }
        let session = self.engine.load(graph, constants, options)?;
        Ok(Box::new(CountingSession { session, steps: Arc::clone(&self.steps) }))
    }
}

impl Session for CountingSession {
    fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        self.session.run(inputs)
    }

    fn reset(&mut self) {
        self.session.reset();
    }
}

impl Drop for CountingSession {
    fn drop(&mut self) {
        let counted = self.session.steps().expect("the CPU engine plans its steps");
        self.steps.lock().expect("no thread panicked").add(&counted);
    }
}

/// Whether the engine may express the result as a view of the operand, which takes no step.
fn may_be_view(node: &Node) -> bool {
    node.cost().viewed().is_some() || matches!(node, Node::Contiguous(_) | Node::Flip(_) | Node::Take(_))
}

/// Cases with sizes given by the call's integers or by a cache's contents.
const SIZED_BY_VALUES: [&str; 8] = [
    "ops/ring_buffer_kv_cache",
    "ops/turboquant_kv_cache_sdpa",
    "small/arrange.tensor_split",
    "small/dyn.symint_input",
    "small/edges.open_diagonal",
    "small/open.computed",
    "small/open.parts",
    "small/open.table",
];

/// Reasons that follow from the program's form, whatever its data.
const OF_CHAINS: [&str; 2] = ["it runs other chains", "a node runs its chain"];

/// Runs a case. All its nodes must be planned ahead, except nodes that depend on the run.
fn check(name: &str, folder: &Path) -> Outcome {
    let engine = Counting { engine: CpuEngine::new(Some(2)), steps: Arc::default(), computes: AtomicBool::new(false) };
    let outcome = run_case(&engine, folder);
    if outcome != Outcome::Passed {
        return outcome;
    }
    let steps = engine.steps.lock().expect("no thread panicked");
    let may_wait = SIZED_BY_VALUES.iter().any(|case| name.starts_with(case));
    let waited: Vec<_> = steps.node_by_node.iter().filter(|n| !may_wait && !OF_CHAINS.contains(&n.why.as_str())).collect();
    let is_counted = steps.planned > 0 || !steps.node_by_node.is_empty();
    match &waited[..] {
        [] if is_counted || !engine.computes.load(Ordering::Relaxed) => Outcome::Passed,
        [] => Outcome::Failed("no step of it was counted".to_owned()),
        nodes => Outcome::Failed(format!("nodes waited for their turn: {nodes:?}")),
    }
}

fn main() -> ExitCode {
    flambeau_testcases::run(per_case(all(Path::new(env!("CARGO_TARGET_TMPDIR"))), check))
}
