//! An engine that runs every node alone.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use flambeau_ir::{
    Checked,
    engine::{Constants, Engine, EngineError, LoadOptions, Session, Value},
};

use super::{
    part::Contents,
    walk::{GraphRun, NodeRun, Observer, Walk},
};

/// Runs graphs node by node on another engine, and shows an observer what each node computes. Fused
/// nodes run in their decomposed form, so results are at least as exact as the engine's.
pub struct NodeByNode {
    engine: Arc<dyn Engine>,
    observer: Arc<Mutex<dyn Observer>>,
    loaded: AtomicUsize,
}

impl std::fmt::Debug for NodeByNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NodeByNode").field("engine", &self.engine.name()).finish_non_exhaustive()
    }
}

impl NodeByNode {
    /// Runs nodes on `engine`.
    pub fn new(engine: Arc<dyn Engine>, observer: Arc<Mutex<dyn Observer>>) -> NodeByNode {
        NodeByNode { engine, observer, loaded: AtomicUsize::new(0) }
    }
}

impl Engine for NodeByNode {
    fn name(&self) -> &'static str {
        self.engine.name()
    }

    fn load(&self, graph: Arc<Checked>, constants: &dyn Constants, options: &LoadOptions) -> Result<Box<dyn Session>, EngineError> {
        let mut walk = Walk::new(graph, constants, Arc::clone(&self.engine), options.kv_cache.clone())?;
        let state = walk.initial()?;
        let number = self.loaded.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(NodeSession { walk, initial: state.clone(), state, number, observer: Arc::clone(&self.observer) }))
    }
}

struct NodeSession {
    walk: Walk,
    /// Buffers after loading, and now.
    initial: Contents,
    state: Contents,
    number: usize,
    observer: Arc<Mutex<dyn Observer>>,
}

impl Session for NodeSession {
    fn run(&mut self, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
        let mut contents = self.state.clone();
        self.walk.bind(inputs, &mut contents)?;
        let before = contents.clone();
        let (graph, graph_number) = (Arc::clone(self.walk.graph()), self.number);
        let observer = Arc::clone(&self.observer);
        let mut observer = observer.lock().unwrap_or_else(PoisonError::into_inner);
        let constants = self.walk.constants().clone();
        observer.begin();
        self.walk.run(&mut contents, usize::MAX, &mut |instruction, node, part, inputs, results| {
            observer.node(&NodeRun { graph_number, graph: &graph, instruction, node, part, constants: &constants, inputs, results })
        })?;
        for (&tid, tensor) in &mut self.state.tensors {
            if let Some(new) = contents.tensors.get(&tid) {
                tensor.clone_from(new);
            }
        }
        observer.graph(&GraphRun { graph_number, graph: &graph, before: &before, walk: &self.walk })?;
        self.walk.results(&contents)
    }

    fn reset(&mut self) {
        self.state.clone_from(&self.initial);
        self.walk.forget();
    }
}
