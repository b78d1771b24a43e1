//! Calls of sub-graphs, and functional forms of calls that write to operands.
//!
//! Each sub-graph has its own name space. Its names are prefixed with the caller's label. Values
//! that outlive the call, such as views of an operand, therefore stay readable.

use flambeau_aten::schema;
use flambeau_ir::{Spec, Tid};
use flambeau_lower::{Arg, Call, Item, Loop, OutMeta, Refuse};
use flambeau_pt2::{Argument, Graph, Node, SymArg};
use flambeau_tensor::{DType, Expr};

use super::{
    Binding, Trace,
    conditions::{ConditionValue, refuse},
    repeat::Repeat,
    written::Written,
};
use crate::{
    Error, Outcome,
    functionalize::{bare, mutation},
    usage,
};

/// Largest number of steps of a counted loop that becomes a scan.
const MAX_STEPS: i64 = 1 << 20;

/// The sub-graphs among a call's operands.
fn bodies(node: &Node) -> Vec<&Graph> {
    node.inputs.iter().filter_map(|i| if let Argument::Graph(sub) = &i.arg { Some(&sub.graph) } else { None }).collect()
}

/// The operands after the last sub-graph, one entry per argument.
fn after_graphs(node: &Node) -> impl Iterator<Item = &Argument> {
    let last = node.inputs.iter().rposition(|i| matches!(i.arg, Argument::Graph(_)));
    node.inputs.iter().skip(last.map_or(usize::MAX, |l| l + 1)).map(|i| &i.arg)
}

impl<'a> Trace<'a> {
    /// Inlines a sub-graph: the operands are its inputs, and its outputs are the call's results.
    pub(super) fn inline(&mut self, node: &'a Node, body: &'a Graph) -> Result<(), Error> {
        let operands: Vec<Binding<'a>> = after_graphs(node).flat_map(Argument::names).map(|n| self.names.operand(n)).collect();
        self.report(node, Outcome::Absorbed);
        let results = self.run_body(node, "", body, operands)?;
        for (out, value) in node.output_names().into_iter().zip(results) {
            self.names.bind(out, value);
        }
        Ok(())
    }

    /// Lowers a sub-graph's calls and returns its outputs. `part` distinguishes the sub-graphs of
    /// one call.
    pub(super) fn run_body(
        &mut self,
        node: &Node,
        part: &str,
        body: &'a Graph,
        operands: Vec<Binding<'a>>,
    ) -> Result<Vec<Binding<'a>>, Error> {
        let label = node.name.as_deref().unwrap_or("call");
        let scope = format!("{}{label}{part}/", self.names.scope);
        let outside = std::mem::replace(&mut self.names.scope, scope);
        self.names.used.extend(usage::used_names(body));
        for (name, value) in body.inputs.iter().flat_map(Argument::names).zip(operands) {
            self.names.bind(name, value);
        }
        let done = self.run_graph(body);
        let results = body.outputs.iter().map(|o| self.body_output(o)).collect();
        self.names.scope = outside;
        done.map(|()| results)
    }

    fn body_output(&self, output: &Argument) -> Binding<'a> {
        match output {
            Argument::Int(v) | Argument::SymInt(SymArg::Literal(v)) => Binding::Int(Expr::Int(*v)),
            other => other.names().first().map_or(Binding::Absent(Refuse::Reported), |n| self.names.operand(n)),
        }
    }

    /// Traces a conditional call. Only the selected branch runs.
    pub(super) fn cond(&mut self, graph: &'a Graph, node: &'a Node) -> Result<(), Error> {
        let [then, otherwise] = bodies(node)[..] else {
            self.refuse(node, "it does not have two branches".to_owned());
            return Ok(());
        };
        let condition = match node.inputs.first().map(|i| &i.arg) {
            Some(Argument::Tensor(name)) => self.current(&self.names.key(name)).map(ConditionValue::Tensor),
            Some(Argument::SymBool(SymArg::Name(name)) | Argument::CustomObj { name, .. }) => {
                match self.names.values.get(&self.names.key(name)) {
                    Some(Binding::Bool(b)) => self.condition_value(&b.clone()),
                    _ => refuse(format!("`{name}` is no condition that nodes can compute")),
                }
            }
            Some(other) => other
                .as_bool()
                .map(ConditionValue::Known)
                .ok_or_else(|| Refuse::Unsupported("its condition is no boolean".to_owned())),
            None => refuse("it has no condition"),
        };
        match condition {
            Ok(ConditionValue::Known(taken)) => self.inline(node, if taken { then } else { otherwise })?,
            Ok(ConditionValue::Tensor(t)) => match self.branches(graph, node, t, then, otherwise)? {
                Ok(()) => {}
                Err(reason) => self.fail(node, &reason),
            },
            Err(reason) => self.fail(node, &reason),
        }
        Ok(())
    }

    fn branches(
        &mut self,
        graph: &'a Graph,
        node: &'a Node,
        condition: Tid,
        then: &'a Graph,
        otherwise: &'a Graph,
    ) -> Result<Result<(), Refuse>, Error> {
        let metas: Vec<OutMeta> = node.outputs.iter().flat_map(|o| self.metas(graph, o)).collect();
        let slots: Vec<(Tid, OutMeta)> = metas.into_iter().map(|m| (self.blank(&m), m)).collect();
        if slots.len() != node.output_names().len() {
            return Ok(refuse("it has results that are not tensors"));
        }
        let names: Vec<&str> = after_graphs(node).flat_map(Argument::names).collect();
        let bases = self.bases_of(&names);
        let (mut chains, mut written) = (Vec::new(), Vec::new());
        let mut reason = None;
        for (part, body) in [(".then", then), (".else", otherwise)] {
            let chain = self.lower.open_chain();
            let done = self.scoped(|trace| {
                let before = trace.memory.versions.clone();
                let operands: Vec<_> = names.iter().map(|n| trace.names.operand(n)).collect();
                let results = trace.run_body(node, part, body, operands)?;
                Ok(trace.leave(results, &slots).and_then(|()| trace.written_in_chain(&bases, &before)))
            });
            self.lower.close_chain();
            match done? {
                Ok(here) => written.push(here),
                Err(failed) => reason = reason.or(Some(failed)),
            }
            chains.push(chain);
        }
        if let Some(reason) = reason {
            return Ok(Err(reason));
        }
        let after = match self.join_writes(&bases, &chains, &written) {
            Ok(after) => after,
            Err(reason) => return Ok(Err(reason)),
        };
        if let Err(reason) = self.lower.branch(condition, chains[0], chains[1]) {
            return Ok(Err(reason));
        }
        for (name, (tid, _)) in node.output_names().into_iter().zip(slots) {
            let value = self.memory.new_base(tid);
            self.names.bind(name, Binding::Tensor(value));
        }
        for Written { key, tid, .. } in after {
            if let Err(reason) = self.assign(&key, tid) {
                return Ok(Err(reason));
            }
        }
        self.report(node, Outcome::Absorbed);
        Ok(Ok(()))
    }

    fn blank(&mut self, meta: &OutMeta) -> Tid {
        let spec = Spec { dtype: meta.dtype, dims: meta.dims.iter().cloned().collect() };
        self.lower.slot(spec, flambeau_lower::Origin::Node)
    }

    /// Lowers into the open chain. Bindings made there are valid only inside of the chain and are
    /// dropped afterwards.
    pub(super) fn in_chain<T>(
        &mut self,
        node: &Node,
        body: impl FnOnce(&mut Self) -> Result<Result<T, Refuse>, Error>,
    ) -> Result<Result<T, Refuse>, Error> {
        let bases = self.memory.versions.clone();
        let done = self.scoped(body)?;
        let writes = self.memory.versions.iter().zip(&bases).any(|(now, before)| now != before);
        if writes && done.is_ok() {
            return Ok(refuse(format!(
                "a step of `{}` writes to a tensor that exists outside of it; carry the tensor from step to step",
                node.name.as_deref().unwrap_or("it")
            )));
        }
        Ok(done)
    }

    /// Lowers into the open chain and drops the bindings made there.
    fn scoped<T>(&mut self, body: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        let (values, unpacked, symbols) = (self.names.values.clone(), self.memory.unpacked.clone(), self.names.symbols.clone());
        self.fallback.open_chains += 1;
        let done = body(self)?;
        self.fallback.open_chains -= 1;
        (self.names.values, self.memory.unpacked, self.names.symbols) = (values, unpacked, symbols);
        Ok(done)
    }

    /// Copies a branch's results into the slots that both branches fill.
    fn leave(&mut self, results: Vec<Binding<'a>>, slots: &[(Tid, OutMeta)]) -> Result<(), Refuse> {
        if results.len() != slots.len() {
            return refuse(format!("a branch gives {} results, expected {}", results.len(), slots.len()));
        }
        for (value, (slot, meta)) in results.into_iter().zip(slots) {
            let tid = self.tensor_of(value)?;
            let spec = self.lower.spec(tid);
            let fits =
                spec.dims.len() == meta.dims.len() && spec.dims.iter().zip(&meta.dims).all(|(a, b)| a.known_eq(b) != Some(false));
            if !fits || spec.dtype != meta.dtype {
                return refuse(format!(
                    "a branch gives {} {:?} where {} {:?} is expected",
                    spec.dtype, spec.dims, meta.dtype, meta.dims
                ));
            }
            self.lower.copy(tid, *slot)?;
        }
        Ok(())
    }

    /// The slot behind a sub-graph's output.
    pub(super) fn tensor_of(&mut self, value: Binding<'a>) -> Result<Tid, Refuse> {
        match value {
            Binding::Same(key) => self.current(&key),
            Binding::Tensor(t) => Ok(t.tid),
            Binding::Absent(reason) => Err(reason),
            Binding::Int(e) => self.lower.size_tensor(&e),
            _ => refuse("a sub-graph gives something that is not a tensor"),
        }
    }

    /// Traces a scan: a loop over the first axis of tensors.
    pub(super) fn scan(&mut self, node: &'a Node) -> Result<(), Error> {
        let mut lists: Vec<Vec<&str>> = after_graphs(node).map(Argument::names).collect();
        if bare(&node.target) == "higher_order.map_impl" {
            // A map carries no values from step to step.
            lists.insert(0, Vec::new());
        }
        let (&[body], [init, xs, additional @ ..]) = (&bodies(node)[..], &lists[..]) else {
            self.refuse(node, "it is not a sub-graph with what it carries, scans and reads".to_owned());
            return Ok(());
        };
        let begun = self.slots(init).and_then(|init| {
            let xs = self.slots(xs)?;
            Loop::begin(&mut self.lower, &xs, 0, &init)
        });
        let frame = match begun {
            Ok(frame) => frame,
            Err(reason) => {
                self.fail(node, &reason);
                return Ok(());
            }
        };
        let own: Vec<Tid> = frame.carried.iter().chain(&frame.sliced).copied().collect();
        self.steps(node, body, frame, own, additional)
    }

    /// The slots of names in the current name space.
    fn slots(&mut self, names: &[&str]) -> Result<Vec<Tid>, Refuse> {
        names.iter().map(|n| self.current(&self.names.key(n))).collect()
    }

    /// Traces the body of an open loop with `own` as its first operands, ends the loop and binds
    /// its results.
    fn steps(
        &mut self,
        node: &'a Node,
        body: &'a Graph,
        frame: Loop,
        own: Vec<Tid>,
        additional: &[Vec<&str>],
    ) -> Result<(), Error> {
        let done = self.in_chain(node, |trace| {
            let mut operands: Vec<Binding<'a>> = own.into_iter().map(|t| Binding::Tensor(trace.memory.new_base(t))).collect();
            operands.extend(additional.iter().flatten().map(|n| trace.names.operand(n)));
            let results = trace.run_body(node, ".body", body, operands)?;
            Ok(results.into_iter().map(|v| trace.tensor_of(v)).collect::<Result<Vec<Tid>, Refuse>>())
        })?;
        let n_carried = frame.carried.len();
        let ended = match done {
            Ok(results) if results.len() >= n_carried => {
                let (carry, collect) = results.split_at(n_carried);
                frame.end(&mut self.lower, carry, collect)
            }
            other => {
                let reason = other.err().unwrap_or_else(|| Refuse::Unsupported("its body gives too few results".to_owned()));
                frame.abandon(&mut self.lower);
                self.fail(node, &reason);
                return Ok(());
            }
        };
        match ended {
            Ok(stacked) => {
                let last: Vec<Tid> = frame.carried.iter().copied().chain(stacked).collect();
                for (name, tid) in node.output_names().into_iter().zip(last) {
                    let value = self.memory.new_base(tid);
                    self.names.bind(name, Binding::Tensor(value));
                }
                self.report(node, Outcome::Absorbed);
            }
            Err(reason) => self.fail(node, &reason),
        }
        Ok(())
    }

    /// Traces a loop with a condition. A loop that counts from a constant to a constant becomes one
    /// scan. Any other loop becomes nested scans whose steps do nothing once the condition is
    /// false.
    pub(super) fn while_loop(&mut self, node: &'a Node) -> Result<(), Error> {
        let lists: Vec<Vec<&str>> = after_graphs(node).map(Argument::names).collect();
        let (&[condition, body], [init, additional @ ..]) = (&bodies(node)[..], &lists[..]) else {
            self.refuse(node, "it is not a condition and a body with what they carry and read".to_owned());
            return Ok(());
        };
        let init = match self.slots(init) {
            Ok(init) => init,
            Err(reason) => {
                self.fail(node, &reason);
                return Ok(());
            }
        };
        let Some(steps) = self.counted(condition, body, &init) else {
            let additional = additional.iter().flatten().copied().collect();
            return self.repeat(&Repeat { node, condition, body, additional }, &init);
        };
        let outputs = vec![OutMeta { dtype: DType::I64, dims: vec![Expr::Int(steps)], used: true }];
        let args = vec![("end".to_owned(), Arg::Int(Expr::Int(steps)))];
        let call = Call { target: "aten.arange.default".to_owned(), args, outputs };
        let begun = self.lower.call(&call, self.calls.len() as u32).and_then(|items| match items.first() {
            Some(Item::Tensor(counter)) => Loop::begin(&mut self.lower, &[*counter], 0, &init),
            _ => refuse("a count has no result"),
        });
        match begun {
            Ok(frame) => {
                let own = frame.carried.clone();
                self.steps(node, body, frame, own, additional)
            }
            Err(reason) => {
                self.fail(node, &reason);
                Ok(())
            }
        }
    }

    /// The number of steps of a counted loop. It changes one carried integer by a constant per
    /// step, and stops when that integer passes a constant.
    fn counted(&self, condition: &Graph, body: &Graph, init: &[Tid]) -> Option<i64> {
        let verdict = *condition.outputs.first()?.names().first()?;
        let test = condition.nodes.iter().find(|n| n.output_names().first() == Some(&verdict))?;
        let counter = test.inputs.first()?.arg.as_tensor()?;
        let place = |graph: &Graph, name: &str| graph.inputs.iter().position(|i| i.names().first() == Some(&name));
        let at = place(condition, counter)?;
        let bound = test.inputs.get(1)?.arg.as_int()?;
        let next = *body.outputs.get(at)?.names().first()?;
        let change = body.nodes.iter().find(|n| n.output_names().first() == Some(&next))?;
        let changed = change.inputs.first()?.arg.as_tensor()?;
        let by = change.inputs.get(1)?.arg.as_int()?;
        let step = match bare(&change.target) {
            "aten.add.Tensor" | "aten.add.Scalar" if change.inputs.len() == 2 => by,
            "aten.sub.Tensor" | "aten.sub.Scalar" if change.inputs.len() == 2 => by.checked_neg()?,
            _ => return None,
        };
        let start = *init.get(at)?;
        if place(body, changed) != Some(at) || self.lower.spec(start).dtype.is_float() {
            return None;
        }
        let start = self.lower.graph().scalar(start)? as i64;
        let distance = bound.checked_sub(start)?;
        let steps = match (bare(&test.target), step.signum()) {
            ("aten.lt.Scalar" | "aten.lt.Tensor", 1) => distance.checked_add(step - 1)? / step,
            ("aten.le.Scalar" | "aten.le.Tensor", 1) => distance.checked_add(step)? / step,
            ("aten.gt.Scalar" | "aten.gt.Tensor", -1) => distance.checked_add(step + 1)? / step,
            ("aten.ge.Scalar" | "aten.ge.Tensor", -1) => distance.checked_add(step)? / step,
            _ => return None,
        };
        (1..=MAX_STEPS).contains(&steps).then_some(steps)
    }

    /// Traces the functional form of a call that writes to its operands. It returns the results,
    /// then the new contents of each base.
    pub(super) fn functionalized(&mut self, graph: &'a Graph, node: &'a Node) {
        match self.try_functionalized(graph, node) {
            Ok(()) => self.report(node, Outcome::Absorbed),
            Err(reason) => self.fail(node, &reason),
        }
    }

    fn try_functionalized(&mut self, graph: &'a Graph, node: &'a Node) -> Result<(), Refuse> {
        let operator =
            node.inputs.iter().find_map(|i| if let Argument::Operator(target) = &i.arg { Some(bare(target)) } else { None });
        let operator = operator.ok_or_else(|| Refuse::Unsupported("it names no operator".to_owned()))?;
        let Some(mutation) = schema(operator).and_then(mutation).filter(|_| !operator.starts_with("aten.")) else {
            return refuse(format!("{operator} writes to its operands and has no functional form here"));
        };
        let bases: Vec<&str> = node.arg("_all_bases").map(Argument::names).unwrap_or_default();
        let mut args = Vec::new();
        for input in node.inputs.iter().filter(|i| !i.name.is_empty() && !i.name.starts_with('_')) {
            args.push((input.name.clone(), self.arg(&input.arg)?));
        }
        let [written] = mutation.written[..] else { return refuse(format!("{operator} writes to several operands")) };
        let prefix = format!("_{written}_");
        let own = |i: &&flambeau_pt2::NamedArgument| {
            i.name.starts_with(&prefix) && !matches!(i.name.strip_prefix(&prefix), Some("base_index" | "alias"))
        };
        if let Some(view) = node.inputs.iter().find(own) {
            return refuse(format!("{operator} writes to a view of a tensor (`{}`)", view.name));
        }
        let at = node.arg(&format!("{prefix}base_index")).and_then(Argument::as_int).and_then(|i| usize::try_from(i).ok());
        let (Some(base), 1) = (at.and_then(|i| bases.get(i)), bases.len()) else {
            return refuse(format!("{operator} writes to {} tensors, expected one", bases.len()));
        };
        let before = self.current(&self.names.key(base))?;
        args.push((written.to_owned(), Arg::Tensor(before)));
        let spec = self.lower.spec(before).clone();
        let mut outputs: Vec<OutMeta> = node.outputs.iter().take(mutation.results).flat_map(|o| self.metas(graph, o)).collect();
        outputs.push(OutMeta { dtype: spec.dtype, dims: spec.dims.to_vec(), used: true });
        let items = self.lower_call(&Call { target: mutation.target, args, outputs }, self.calls.len() as u32)?;
        self.bind_functionalized(node, mutation.results, &items)
    }

    /// The last result is the base's new contents. Operators without results have a dummy result
    /// before it.
    fn bind_functionalized(&mut self, node: &Node, results: usize, items: &[Item]) -> Result<(), Refuse> {
        let names: Vec<&str> = node.output_names();
        let Some((after, own)) = names.split_last() else { return refuse("it has no result") };
        let Some(Item::Tensor(new)) = items.get(results) else { return refuse("its functional form has no tensor result") };
        for (i, name) in own.iter().enumerate() {
            let value = match items.get(i).filter(|_| i < results) {
                Some(Item::Tensor(t)) => Binding::Tensor(self.memory.new_base(*t)),
                _ => Binding::absent("the result of a write carries nothing"),
            };
            self.names.bind(name, value);
        }
        let value = self.memory.new_base(*new);
        self.names.bind(after, Binding::Tensor(value));
        Ok(())
    }
}
