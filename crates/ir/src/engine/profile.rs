//! Measured times of steps and nodes.

use std::{fmt, sync::Arc, time::Duration};

use crate::Node;

/// Measurement of one step.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The nodes that the step ran.
    pub name: Arc<str>,
    /// Position of the step's last node in the main chain. `None` for nodes of other chains.
    pub node: Option<u32>,
    /// The clock's nanoseconds at the start of the step.
    pub start: u64,
    /// Nanoseconds that the step took.
    pub time: u64,
    /// Bytes of operands and results, each counted once.
    pub bytes: u64,
    /// Floating-point operations of products. 0 for other steps.
    pub flops: u64,
}

/// Largest number of steps that a session records: half a minute of a small model, some tens of
/// megabytes.
const MAX_SPANS: usize = 1 << 20;

/// A clock for an engine's measurements.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Duration + Send + Sync>);

impl Clock {
    /// A clock that returns the time since a fixed moment.
    pub fn new(now: impl Fn() -> Duration + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }

    pub fn now(&self) -> Duration {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Clock({:?})", self.now())
    }
}

/// The steps of a session, by node and in order.
#[derive(Debug)]
pub struct Profile {
    clock: Clock,
    /// Calls and nanoseconds by node tag.
    nodes: [(u64, u64); 256],
    spans: Vec<Span>,
}

impl Profile {
    /// Starts measuring.
    pub fn new(clock: Clock) -> Profile {
        Profile { clock, nodes: [(0, 0); 256], spans: Vec::new() }
    }

    /// Start time of a step, for [`Profile::add`].
    pub fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Counts a step from `start` to now. `node` is its last node, and `at` the node's position in
    /// the main chain. A node that runs chains is not counted, because their steps are.
    pub fn add(&mut self, (at, node): (Option<u32>, &Node), name: Arc<str>, start: Duration, [bytes, flops]: [u64; 2]) {
        if !node.chains().is_empty() {
            return;
        }
        let time = self.now().saturating_sub(start).as_nanos() as u64;
        let (calls, nanoseconds) = &mut self.nodes[usize::from(node.tag())];
        (*calls, *nanoseconds) = (*calls + 1, *nanoseconds + time);
        if self.spans.len() < MAX_SPANS {
            let start = start.as_nanos() as u64;
            self.spans.push(Span { name, node: at, start, time, bytes, flops });
        }
    }

    /// The result of [`Session::take_profile`](super::Session::take_profile).
    pub fn take_nodes(&mut self) -> Vec<(&'static str, u64, u64)> {
        let taken = std::mem::replace(&mut self.nodes, [(0, 0); 256]);
        Node::ALL
            .iter()
            .map(|info| (info.name, taken[usize::from(info.tag)]))
            .filter(|(_, (calls, _))| *calls > 0)
            .map(|(name, (calls, ns))| (name, calls, ns))
            .collect()
    }

    /// The result of [`Session::take_spans`](super::Session::take_spans).
    pub fn take_spans(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.spans)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn steps_are_counted_and_those_that_run_chains_left_out() {
        let ticks = AtomicU64::new(0);
        let mut profile = Profile::new(Clock::new(move || Duration::from_nanos(10 * ticks.fetch_add(1, Ordering::Relaxed))));
        for text in ["Noop", "If cond=v0 then_chain_idx=1 else_chain_idx=1", "Noop"] {
            let start = profile.now();
            profile.add((Some(3), &text.parse().expect("a node")), text.into(), start, [7, 8]);
        }
        let span = |start| Span { name: "Noop".into(), node: Some(3), start, time: 10, bytes: 7, flops: 8 };
        assert_eq!(profile.take_spans(), [span(0), span(30)]);
        assert_eq!(profile.take_nodes(), [("Noop", 2, 20)]);
        assert!(profile.take_spans().is_empty() && profile.take_nodes().is_empty());
    }
}
