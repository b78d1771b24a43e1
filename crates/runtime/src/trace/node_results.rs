//! Results of nodes while they run one by one.

use flambeau_ir::engine::{Clock, EngineError, Span, Value as EngineValue};

use crate::{
    Error, Result, Value,
    verify::{GraphRun, NodeRun, Observer},
};

/// Collects the nodes of the current instruction with their results.
#[derive(Debug)]
pub(super) struct NodeResults {
    clock: Clock,
    /// The clock's nanoseconds at the end of the node before.
    last: Option<u64>,
    /// Graph number, time and results of each node.
    nodes: Vec<(usize, Span, Vec<Value>)>,
    /// Bytes of kept tensors, and most of them.
    bytes: usize,
    room: usize,
}

impl NodeResults {
    pub(super) fn new(clock: Clock, room: usize) -> NodeResults {
        NodeResults { clock, last: None, nodes: Vec::new(), bytes: 0, room }
    }

    /// Adds a value to the kept bytes.
    pub(super) fn count(&mut self, value: &Value) {
        self.bytes = self.bytes.saturating_add(value.as_tensor().map_or(0, |tensor| tensor.bytes().len()));
    }

    /// # Errors
    /// The kept values have no room.
    pub(super) fn check(&self, method: &str) -> Result<()> {
        if self.bytes > self.room {
            return Err(Error::NoRoom { method: method.to_owned(), room: self.room });
        }
        Ok(())
    }

    /// The nodes since the last call as steps of a delegate, and their results with the number of
    /// the step. Nodes of other calls are dropped.
    pub(super) fn take_steps(&mut self, delegate: Option<u32>) -> (Vec<Span>, Vec<(usize, Value)>) {
        self.last = None;
        let nodes = std::mem::take(&mut self.nodes);
        let Some(delegate) = delegate else { return (Vec::new(), Vec::new()) };
        let (mut steps, mut results) = (Vec::new(), Vec::new());
        for (graph, step, values) in nodes {
            if graph == delegate as usize {
                values.iter().for_each(|value| self.count(value));
                results.extend(values.into_iter().map(|value| (steps.len(), value)));
                steps.push(step);
            }
        }
        (steps, results)
    }

    fn now(&self) -> u64 {
        self.clock.now().as_nanos() as u64
    }
}

impl Observer for NodeResults {
    fn begin(&mut self) {
        self.last = Some(self.now());
    }

    fn node(&mut self, run: &NodeRun<'_>) -> Result<(), EngineError> {
        let now = self.now();
        let start = self.last.unwrap_or(now);
        let span = Span {
            name: run.node.name().into(),
            node: u32::try_from(run.instruction).ok(),
            start,
            time: now.saturating_sub(start),
            bytes: 0,
            flops: 0,
        };
        let value = |value: &EngineValue| match value {
            EngineValue::Tensor(tensor) => Value::Tensor(tensor.clone()),
            EngineValue::Int(v) => Value::Int((*v).into()),
        };
        self.nodes.push((run.graph_number, span, run.results.iter().map(value).collect()));
        self.last = Some(self.now());
        Ok(())
    }

    fn graph(&mut self, _run: &GraphRun<'_>) -> Result<(), EngineError> {
        self.last = None;
        Ok(())
    }
}
