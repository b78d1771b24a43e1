//! Regions that capture writes for `vmap`: calls on one slice of a batch, between marks. They
//! become a loop over the batch.

use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, Item, Loop, OutMeta, Refuse};
use flambeau_pt2::{Argument, Graph, Node};
use flambeau_tensor::{DType, Expr, normalize_axis};

use super::{Binding, Trace, conditions::refuse};
use crate::{Error, report::Outcome, vmap_mark::VmapMark};

/// The number of nodes in the region that begins at the first node. `None` if it does not end.
pub(super) fn length(nodes: &[Node]) -> Option<usize> {
    let mut depth = 0;
    for (i, node) in nodes.iter().enumerate() {
        match VmapMark::of(&node.target) {
            Some(VmapMark::Begin) => depth += 1,
            Some(VmapMark::End) => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(i + 1);
        }
    }
    None
}

/// The marks of a region, without the marks of nested regions.
fn own_marks(region: &[Node], mark: VmapMark) -> Vec<&Node> {
    let mut depth = 0;
    let mut found = Vec::new();
    for node in region {
        match VmapMark::of(&node.target) {
            Some(VmapMark::Begin) => depth += 1,
            Some(VmapMark::End) => depth -= 1,
            own if own == Some(mark) && depth == 1 => found.push(node),
            _ => {}
        }
    }
    found
}

impl<'a> Trace<'a> {
    /// Traces a region, from its first mark to its last.
    pub(super) fn region(&mut self, graph: &'a Graph, region: &'a [Node]) -> Result<(), Error> {
        let Some(first) = region.first() else { return Ok(()) };
        match self.try_region(graph, first, region)? {
            Ok(()) => self.report(first, Outcome::Absorbed),
            Err(reason) => self.fail(first, &reason),
        }
        Ok(())
    }

    fn try_region(&mut self, graph: &'a Graph, first: &'a Node, region: &'a [Node]) -> Result<Result<(), Refuse>, Error> {
        let (added, removed) = (own_marks(region, VmapMark::Add), own_marks(region, VmapMark::Remove));
        if removed.iter().any(|node| self.is_empty(graph, node)) {
            return Ok(removed.iter().try_for_each(|node| self.bind_empty(graph, node)));
        }
        let begun = self.batches(first, &added).and_then(|batches| Loop::begin(&mut self.lower, &batches, 0, &[]));
        let frame = match begun {
            Ok(frame) => frame,
            Err(reason) => {
                removed.iter().for_each(|node| self.lose(node));
                return Ok(Err(reason));
            }
        };
        let sliced = frame.sliced.clone();
        let done = self.in_chain(first, |trace| {
            for (node, tid) in added.iter().zip(sliced) {
                let value = trace.memory.new_base(tid);
                node.output_names().into_iter().for_each(|name| trace.names.bind(name, Binding::Tensor(value.clone())));
            }
            trace.run_nodes(graph, &region[1..region.len() - 1])?;
            let result = |node: &&'a Node| {
                let name = tensor_of(node)?;
                trace.current(&trace.names.key(name))
            };
            Ok(removed.iter().map(result).collect::<Result<Vec<Tid>, Refuse>>())
        })?;
        let stacked = match done {
            Ok(results) => frame.end(&mut self.lower, &[], &results),
            Err(reason) => {
                frame.abandon(&mut self.lower);
                Err(reason)
            }
        };
        let bound =
            stacked.and_then(|stacked| removed.iter().zip(stacked).try_for_each(|(node, t)| self.bind_batch(graph, node, t)));
        if bound.is_err() {
            removed.iter().for_each(|node| self.lose(node));
        }
        Ok(bound)
    }

    /// Whether a result has no elements, such as for an empty batch.
    fn is_empty(&self, graph: &Graph, node: &Node) -> bool {
        let metas = node.outputs.iter().flat_map(|o| self.metas(graph, o));
        metas.into_iter().any(|meta| meta.dims.iter().any(|d| d.as_int() == Some(0)))
    }

    fn bind_empty(&mut self, graph: &Graph, node: &'a Node) -> Result<(), Refuse> {
        let metas: Vec<OutMeta> = node.outputs.iter().flat_map(|o| self.metas(graph, o)).collect();
        for (name, meta) in node.output_names().into_iter().zip(metas) {
            let args = vec![("size".to_owned(), Arg::Ints(meta.dims.clone()))];
            let call = Call { target: "aten.zeros.default".to_owned(), args, outputs: vec![OutMeta { used: true, ..meta }] };
            let Some(Item::Tensor(t)) = self.lower.call(&call, self.calls.len() as u32)?.first().cloned() else {
                return refuse("a result without elements");
            };
            let value = self.memory.new_base(t);
            self.names.bind(name, Binding::Tensor(value));
        }
        Ok(())
    }

    /// The tensors that lose a batch axis, with that axis moved first. A counter if there are none.
    fn batches(&mut self, first: &Node, added: &[&'a Node]) -> Result<Vec<Tid>, Refuse> {
        let mut batches = Vec::new();
        for node in added {
            let name = tensor_of(node)?;
            let x = self.current(&self.names.key(name))?;
            let axis = node.inputs.get(1).and_then(|i| i.arg.as_int()).unwrap_or(0);
            batches.push(self.moved(x, axis, 0)?);
        }
        if batches.is_empty() {
            let Some(size) = first.inputs.first().and_then(|i| i.arg.as_int()) else { return refuse("a batch of unknown size") };
            let outputs = vec![OutMeta { dtype: DType::I64, dims: vec![Expr::Int(size)], used: true }];
            let args = vec![("end".to_owned(), Arg::Int(Expr::Int(size)))];
            let call = Call { target: "aten.arange.default".to_owned(), args, outputs };
            if let Some(Item::Tensor(counter)) = self.lower.call(&call, self.calls.len() as u32)?.first() {
                batches.push(*counter);
            }
        }
        Ok(batches)
    }

    /// The tensor with one axis moved.
    fn moved(&mut self, x: Tid, from: i64, to: i64) -> Result<Tid, Refuse> {
        let mut dims = self.lower.spec(x).dims.to_vec();
        let axis = |axis| normalize_axis(axis, dims.len()).ok_or_else(|| Refuse::Missing("dim".to_owned()));
        let (at, place) = (axis(from)?, axis(to)?);
        if at == place {
            return Ok(x);
        }
        let dim = dims.remove(at);
        dims.insert(place, dim);
        let int = |v: usize| Arg::Int(Expr::Int(v as i64));
        let args = [("self", Arg::Tensor(x)), ("source", int(at)), ("destination", int(place))];
        let outputs = vec![OutMeta { dtype: self.lower.spec(x).dtype, dims, used: true }];
        let args = args.into_iter().map(|(name, arg)| (name.to_owned(), arg)).collect();
        let call = Call { target: "aten.movedim.int".to_owned(), args, outputs };
        match self.lower.call(&call, self.calls.len() as u32)?.first() {
            Some(Item::Tensor(t)) => Ok(*t),
            _ => refuse("an axis cannot be moved"),
        }
    }

    /// Moves the batch axis of stacked slices from the first position to its place, and binds the
    /// result.
    fn bind_batch(&mut self, graph: &Graph, node: &'a Node, stacked: Tid) -> Result<(), Refuse> {
        let to = node.inputs.get(3).and_then(|i| i.arg.as_int()).unwrap_or(0);
        let x = self.moved(stacked, 0, to)?;
        for name in node.output_names() {
            if graph.tensors.get(name).is_some_and(|meta| meta.sizes.len() != self.lower.spec(x).rank()) {
                return refuse("a batch that a result lacks");
            }
            let value = self.memory.new_base(x);
            self.names.bind(name, Binding::Tensor(value));
        }
        Ok(())
    }
}

/// The tensor that a mark refers to.
fn tensor_of(node: &Node) -> Result<&str, Refuse> {
    let name = node.inputs.first().and_then(|i| match &i.arg {
        Argument::Tensor(name) => Some(name.as_str()),
        _ => None,
    });
    name.ok_or_else(|| Refuse::Unsupported("a mark of vmap that is about no tensor".to_owned()))
}
