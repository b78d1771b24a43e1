//! Tracks values that share memory, and their current contents.

use std::{collections::HashMap, rc::Rc};

use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, Item, OutMeta, Refuse};
use flambeau_pt2::{Argument, Graph, Node, Subclass, View};
use flambeau_tensor::Expr;

use super::{Binding, Trace, places::Places, scalar_arg};
use crate::{functionalize::Mutation, scatter, subclass};

/// A tensor value.
#[derive(Clone, Debug)]
pub(crate) struct TensorValue<'a> {
    pub(super) tid: Tid,
    pub(super) base: usize,
    /// Version of the base that `tid` shows.
    pub(super) version: u32,
    /// The origin of a view; `None` for a tensor with its own memory.
    pub(super) view: Option<Rc<ViewOf<'a>>>,
}

/// The call that created a view, kept to recreate it later.
#[derive(Debug)]
pub(crate) struct ViewOf<'a> {
    /// Key of the viewed value.
    pub(super) parent: String,
    pub(super) node: &'a Node,
    pub(super) graph: &'a Graph,
    /// The name space of the node's operands.
    pub(super) scope: String,
    /// Index of the view among the call's results.
    pub(super) at: usize,
}

/// Versions of all memory, and the values that share it.
#[derive(Debug, Default)]
pub(super) struct Memory<'a> {
    /// Version of each base, counted in writes.
    pub(super) versions: Vec<u32>,
    /// Read-only bases, with the reason.
    guards: HashMap<usize, String>,
    /// Constants and buffers by their view of a storage. Equal views are one tensor.
    pub(super) views: HashMap<&'a View, TensorValue<'a>>,
    /// Quantized weights that calls read as plain tensors, by name in the model.
    pub(super) unpacked: HashMap<&'a str, Tid>,
}

impl<'a> Memory<'a> {
    /// Adds a tensor with its own memory.
    pub(super) fn new_base(&mut self, tid: Tid) -> TensorValue<'a> {
        self.versions.push(0);
        TensorValue { tid, base: self.versions.len() - 1, version: 0, view: None }
    }

    /// Adds a read-only tensor, with the reason.
    pub(super) fn guarded_base(&mut self, tid: Tid, reason: String) -> TensorValue<'a> {
        let value = self.new_base(tid);
        self.guards.insert(value.base, reason);
        value
    }

    /// Advances a base to its next version.
    fn write(&mut self, base: usize) -> Result<u32, Refuse> {
        if let Some(reason) = self.guards.get(&base) {
            return Err(Refuse::Unsupported(reason.clone()));
        }
        self.versions[base] += 1;
        Ok(self.versions[base])
    }
}

impl<'a> Trace<'a> {
    /// Traces a call that writes to operands: lowers the functional form, then gives the written
    /// tensors a new version.
    pub(super) fn write_call(&mut self, graph: &Graph, node: &Node, mutation: &Mutation) {
        let written = mutation.written.iter().map(|param| node.arg(param).and_then(Argument::as_tensor).map(|n| self.names.key(n)));
        let Some(names) = written.collect::<Option<Vec<String>>>() else {
            return self.refuse(node, "it writes to something that is not a tensor".to_owned());
        };
        match self.try_write(graph, node, mutation, &names) {
            Ok(results) => {
                let own = results.into_iter().map(|tid| Binding::Tensor(self.memory.new_base(tid))).collect::<Vec<_>>();
                let values = own.into_iter().chain(names.into_iter().map(Binding::Same));
                for (out, value) in node.output_names().into_iter().zip(values) {
                    self.names.bind(out, value);
                }
                self.report(node, crate::Outcome::Absorbed);
            }
            Err(reason) => self.fail(node, &reason),
        }
    }

    /// Traces a write and returns the call's other results. If a view shows one element several
    /// times, the functional form is called once per occurrence.
    fn try_write(&mut self, graph: &Graph, node: &Node, mutation: &Mutation, names: &[String]) -> Result<Vec<Tid>, Refuse> {
        let places = match names {
            [name] => self.places(name)?.filter(|places| places.rounds() > 1),
            _ => None,
        };
        let Some(places) = places else {
            let (written, others) = self.functional(graph, node, mutation, names)?;
            names.iter().zip(written).try_for_each(|(name, t)| self.assign(name, t))?;
            return Ok(others);
        };
        let mut results = Vec::new();
        for round in 0..places.rounds() {
            let (written, others) = self.functional(graph, node, mutation, names)?;
            written.into_iter().try_for_each(|t| self.assign_places(&places, round, t))?;
            results = others;
        }
        Ok(results)
    }

    /// Returns the new contents of the written operands, and the other results.
    fn functional(
        &mut self,
        graph: &Graph,
        node: &Node,
        mutation: &Mutation,
        names: &[String],
    ) -> Result<(Vec<Tid>, Vec<Tid>), Refuse> {
        let mut call = self.call_of(graph, node, &mutation.target)?;
        if let Some(own) = mutation.renamed {
            call.args
                .iter_mut()
                .filter(|(name, _)| mutation.written.contains(&name.as_str()))
                .for_each(|(name, _)| *name = own.to_owned());
        }
        call.outputs.truncate(mutation.results);
        for name in names {
            let before = self.current(name)?;
            let spec = self.lower.spec(before);
            call.outputs.push(OutMeta { dtype: spec.dtype, dims: spec.dims.to_vec(), used: true });
        }
        let id = self.calls.len() as u32;
        let items = match self.computed_type(&call) {
            Some(dtype) => {
                let stored = std::mem::replace(&mut call.outputs[0].dtype, dtype);
                let items = self.lower_call(&call, id)?;
                let Some(Item::Tensor(t)) = items.first() else { return Err(Refuse::DType(dtype)) };
                vec![Item::Tensor(self.converted(*t, stored, id)?)]
            }
            None => self.lower_call(&call, id)?,
        };
        let tensor = |item: &Item| if let Item::Tensor(t) = item { Some(*t) } else { None };
        let written: Option<Vec<Tid>> = (0..names.len()).map(|i| items.get(mutation.results + i).and_then(tensor)).collect();
        let written = written.ok_or_else(|| Refuse::Unsupported("its functional form has no tensor result".to_owned()))?;
        Ok((written, items.iter().take(mutation.results).filter_map(tensor).collect()))
    }

    /// Makes `tid` the contents of a value and of all values that share its memory.
    pub(super) fn assign(&mut self, key: &str, tid: Tid) -> Result<(), Refuse> {
        let (key, value) = self.tensor(key)?;
        let version = match value.view.clone() {
            None => self.memory.write(value.base)?,
            Some(view) => match self.places(&key)? {
                Some(places) if places.rounds() == 1 => return self.assign_places(&places, 0, tid),
                Some(_) => return Err(Refuse::Unsupported("a write to elements that lie in one place".to_owned())),
                None => {
                    let whole = self.current(&view.parent)?;
                    let id = self.calls.len() as u32;
                    let parts = self.metas(view.graph, view.node.outputs.first().unwrap_or(&Argument::None));
                    let read = |a: &Argument| scalar_arg(&self.names, &view.scope, a);
                    let parts = scatter::Parts { at: view.at, metas: &parts };
                    let whole = scatter::into_parent(&mut self.lower, view.node, &parts, whole, tid, id, read)?;
                    self.assign(&view.parent, whole)?;
                    self.memory.versions[value.base]
                }
            },
        };
        self.names.values.insert(key, Binding::Tensor(TensorValue { tid, version, ..value }));
        Ok(())
    }

    /// Writes elements of `part` to their places.
    fn assign_places(&mut self, places: &Places, round: u32, part: Tid) -> Result<(), Refuse> {
        let whole = self.current(&places.parent)?;
        let whole = self.put(places, round, whole, part)?;
        self.assign(&places.parent, whole)
    }

    /// The tensor behind a key, with the key of its binding.
    pub(super) fn tensor(&self, key: &str) -> Result<(String, TensorValue<'a>), Refuse> {
        match self.names.values.get(key) {
            Some(Binding::Tensor(t)) => Ok((key.to_owned(), t.clone())),
            Some(Binding::Same(other)) => self.tensor(other),
            Some(Binding::Absent(reason)) => Err(reason.clone()),
            Some(Binding::Subclass(weight, s)) => {
                Err(Refuse::Unsupported(format!("`{weight}` is a {}, read as a plain tensor", s.class)))
            }
            Some(Binding::Int(_)) => Err(Refuse::Unsupported(format!("`{key}` is an integer, read as a tensor"))),
            Some(Binding::Bool(_)) => Err(Refuse::Unsupported(format!("`{key}` is a condition on sizes, read as a tensor"))),
            None => Err(Refuse::Unsupported(format!("`{key}` has no value"))),
        }
    }

    /// The slot with a value's current contents. A view is recreated if its base was written after
    /// it.
    pub(super) fn current(&mut self, key: &str) -> Result<Tid, Refuse> {
        if let Some(Binding::Subclass(weight, subclass)) = self.names.resolve(key) {
            return self.unpack(weight, subclass);
        }
        let (key, value) = self.tensor(key)?;
        let version = self.memory.versions[value.base];
        let Some(view) = value.view.clone().filter(|_| value.version != version) else { return Ok(value.tid) };
        let outside = std::mem::replace(&mut self.names.scope, view.scope.clone());
        let items = self.lower_node(view.graph, view.node);
        self.names.scope = outside;
        let tensors = items?.into_iter().flat_map(|item| match item {
            Item::Tensor(t) => vec![t],
            Item::Tensors(list) => list,
            _ => Vec::new(),
        });
        let tid = tensors.into_iter().nth(view.at).ok_or_else(|| Refuse::Unsupported("a view lost one of its parts".to_owned()))?;
        self.names.values.insert(key, Binding::Tensor(TensorValue { tid, version, ..value }));
        Ok(tid)
    }

    /// Reads a quantized weight as a plain tensor, by its class's dequantizing operator.
    fn unpack(&mut self, weight: &'a str, subclass: &'a Subclass) -> Result<Tid, Refuse> {
        if let Some(tid) = self.memory.unpacked.get(weight) {
            return Ok(*tid);
        }
        let (target, scalars) = subclass::dequantization(subclass)?;
        let mut args = Vec::new();
        for (field, view) in &subclass.tensors {
            let slot = self.weight_slot(&format!("{weight}.{field}"), view).map_err(|e| Refuse::Unsupported(e.to_string()))?;
            args.push((subclass::parameter(target, field).to_owned(), Arg::Tensor(slot.tid)));
        }
        args.extend(scalars);
        let dtype = subclass.dtype.dtype().ok_or_else(|| Refuse::Unsupported(format!("element type {:?}", subclass.dtype)))?;
        let dims = subclass.shape.iter().map(|&d| Expr::Int(d as i64)).collect();
        let call = Call { target: target.to_owned(), args, outputs: vec![OutMeta { dtype, dims, used: true }] };
        match self.lower.call(&call, self.calls.len() as u32)?.first() {
            Some(Item::Tensor(tid)) => {
                self.memory.unpacked.insert(weight, *tid);
                Ok(*tid)
            }
            _ => Err(Refuse::Unsupported(format!("`{weight}` cannot be dequantized"))),
        }
    }

    /// The value of a call's result, which is a view of `parent` if the call makes views.
    pub(super) fn result_value(
        &mut self,
        tid: Tid,
        parent: Option<&str>,
        graph: &'a Graph,
        node: &'a Node,
        at: usize,
    ) -> TensorValue<'a> {
        match parent.and_then(|p| Some((p, self.names.resolve(p)?))) {
            Some((name, Binding::Tensor(p))) => {
                let view = ViewOf { parent: name.to_owned(), node, graph, scope: self.names.scope.clone(), at };
                TensorValue { tid, base: p.base, version: self.memory.versions[p.base], view: Some(Rc::new(view)) }
            }
            _ => self.memory.new_base(tid),
        }
    }

    /// Marks the results of a call as absent because of an error that is already reported.
    pub(super) fn lose(&mut self, node: &Node) {
        for name in node.output_names() {
            self.names.bind(name, Binding::Absent(Refuse::Reported));
        }
    }
}
