//! Runs of the main chain: fused kernels where the plan has them, and single nodes elsewhere.

use std::sync::Arc;

use flambeau_ir::{
    ChainId, Checked,
    engine::{Profile, Steps},
};

use crate::{
    Device,
    counts::Counts,
    cx::{Cx, Machine, Support},
    error::Result,
    eval,
    fused::{NoKernels, Plan},
    profile,
};

/// Execution of a session's main chain.
#[derive(Debug, Default)]
pub(crate) struct MainChain {
    /// Runs of nodes that have kernels of their own; on CUDA only.
    pub(crate) plan: Option<Plan>,
    /// Execution modes of the nodes.
    pub(crate) counts: Counts,
}

impl MainChain {
    pub(crate) fn of(graph: &Checked, device: Device, support: &Support) -> MainChain {
        let has_kernels = device != Device::Cpu && !cfg!(target_os = "macos");
        MainChain { plan: has_kernels.then(|| Plan::of(graph, support.fills_device)), counts: Counts::default() }
    }

    /// Runs the chain's instructions in order.
    ///
    /// # Errors
    /// The first failure, with its place.
    pub(crate) fn run(&mut self, m: &mut Machine) -> Result<()> {
        let graph = Arc::clone(&m.graph);
        let nodes = eval::nodes_of(&graph, ChainId(graph.main))?;
        let mut at = 0;
        let mut run = || -> Result<()> {
            while let Some(node) = nodes.get(at) {
                let start = m.profile.as_ref().map(Profile::now);
                let fused = match &mut self.plan {
                    Some(plan) => plan.run(m, at)?,
                    None => None,
                };
                let next = match fused {
                    Some(next) => {
                        self.counts.region(at..next, false);
                        next
                    }
                    None => {
                        eval::eval(node, &mut Cx { m: &mut *m })?;
                        self.counts.single(at);
                        at + 1
                    }
                };
                if let Some(start) = start {
                    profile::finish(m, (Some(next as u32 - 1), &nodes[at..next]), start)?;
                }
                at = next;
            }
            Ok(())
        };
        let result = run();
        result.map_err(|error| match nodes.get(at) {
            Some(node) => error.at(graph.main, at, node),
            None => error,
        })
    }

    /// Counts of all runs by execution mode.
    pub(crate) fn steps(&self, graph: &Checked) -> Steps {
        let nodes = graph.chains.get(graph.main as usize).map_or(&[][..], |chain| &chain[..]);
        self.plan.as_ref().map_or_else(|| self.counts.steps(nodes, &NoKernels), |plan| self.counts.steps(nodes, plan))
    }
}
