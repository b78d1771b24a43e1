//! Maps each node of a program to its source line.

use anyhow::{Context, Result};
use flambeau::{
    compile::{self, CallReport, Options},
    engine::Engine,
    pt2::Exported,
    runtime::{Program, verify::align},
};

/// The calls behind the nodes of a method, by delegate and position in the main chain.
pub(crate) struct SourceMap {
    calls: Vec<CallReport>,
    delegates: Vec<Vec<Option<usize>>>,
}

impl SourceMap {
    /// Compiles the archive and matches its nodes with the program's. A program with other weights
    /// or quantization matches as far as its modules do.
    pub(crate) fn new(program: &Program, method: &str, exported: &Exported, engine: &dyn Engine) -> Result<SourceMap> {
        let plan = program.file().plan(method).with_context(|| format!("no method `{}`", method.escape_debug()))?;
        let output = compile::compile(&[(method, exported)], &Options::default(), engine)?;
        let compiled: Vec<_> = output.graphs().zip(output.node_calls(method)).collect();
        let mut delegates = Vec::new();
        for (number, delegate) in plan.delegates.iter().enumerate() {
            let graph = program.graph(plan, number, delegate)?;
            let nodes = match compiled.get(number) {
                Some((own, calls)) => {
                    let call = |at: Option<usize>| calls.get(at?).map(|&call| call as usize);
                    align(&graph, own).into_iter().map(call).collect()
                }
                None => Vec::new(),
            };
            delegates.push(nodes);
        }
        let calls = output.report.methods.into_iter().find(|report| report.name == method).map(|report| report.calls);
        Ok(SourceMap { calls: calls.unwrap_or_default(), delegates })
    }

    /// The call behind a node.
    pub(crate) fn call(&self, delegate: usize, node: usize) -> Option<&CallReport> {
        self.calls.get((*self.delegates.get(delegate)?.get(node)?)?)
    }

    /// The call and its source location, in words.
    pub(crate) fn describe(&self, delegate: usize, node: usize) -> Option<String> {
        let call = self.call(delegate, node)?;
        let source = call.source.to_string();
        Some(if source.is_empty() { call.target.clone() } else { format!("{} at {source}", call.target) })
    }
}
