//! What steps took, for engines that measure.

use std::{sync::Arc, time::Instant};

use crate::Node;

/// What one step of a measured run took.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The nodes that the step ran.
    pub name: Arc<str>,
    /// Nanoseconds from the session's loading to the step's begin.
    pub start: u64,
    /// Nanoseconds that the step took.
    pub time: u64,
    /// Bytes of operands and results, each counted once.
    pub bytes: u64,
    /// Floating-point operations of products; 0 where a step is none.
    pub flops: u64,
}

/// Steps that a session remembers: half a minute of a small model, some tens of megabytes.
const MAX_SPANS: usize = 1 << 20;

/// The steps of a session, by node and in order.
#[derive(Debug)]
pub struct Profile {
    begin: Instant,
    /// Calls and nanoseconds by node tag.
    nodes: [(u64, u64); 256],
    spans: Vec<Span>,
}

impl Default for Profile {
    /// Begins to measure now.
    fn default() -> Profile {
        Profile { begin: Instant::now(), nodes: [(0, 0); 256], spans: Vec::new() }
    }
}

impl Profile {
    /// Counts a step that began at `start` and ends now; `node` is the last of those that it ran. A node that runs chains is left
    /// out, because their steps are counted.
    pub fn add(&mut self, node: &Node, name: Arc<str>, start: Instant, [bytes, flops]: [u64; 2]) {
        if !node.chains().is_empty() {
            return;
        }
        let time = start.elapsed().as_nanos() as u64;
        let (calls, nanoseconds) = &mut self.nodes[usize::from(node.tag())];
        (*calls, *nanoseconds) = (*calls + 1, *nanoseconds + time);
        if self.spans.len() < MAX_SPANS {
            let start = start.duration_since(self.begin).as_nanos() as u64;
            self.spans.push(Span { name, start, time, bytes, flops });
        }
    }

    /// What [`Session::take_profile`](super::Session::take_profile) answers.
    pub fn take_nodes(&mut self) -> Vec<(&'static str, u64, u64)> {
        let taken = std::mem::replace(&mut self.nodes, [(0, 0); 256]);
        Node::ALL
            .iter()
            .map(|info| (info.name, taken[usize::from(info.tag)]))
            .filter(|(_, (calls, _))| *calls > 0)
            .map(|(name, (calls, ns))| (name, calls, ns))
            .collect()
    }

    /// What [`Session::take_spans`](super::Session::take_spans) answers.
    pub fn take_spans(&mut self) -> Vec<Span> {
        std::mem::take(&mut self.spans)
    }
}
