//! Binds a program's inputs and outputs.

use std::collections::{HashMap, HashSet};

use flambeau_ir::{Slot, Spec, Tid};
use flambeau_lower::{Arg, Call, ConstExpr, Constant, Item, Origin, OutMeta, Refuse};
use flambeau_pt2::{Argument, InputSpec, OutputSpec, SymArg, View, Weight};
use flambeau_tensor::{Expr, Shape};

use super::{Binding, Buffer, MethodInput, MethodOutput, TensorValue, Trace, lost};
use crate::{
    Error,
    error::ProgramError,
    report::{CallReport, Outcome},
};

/// Largest number of elements of a weight that is read during tracing, so that rules see its
/// values.
const MAX_LITERAL: usize = 16;

/// New contents of an input of the method.
struct InputWrite {
    name: String,
    given: Tid,
    new: Tid,
}

impl<'a> Trace<'a> {
    pub(super) fn bind_input(&mut self, argument: &Argument, spec: &'a InputSpec) -> Result<(), Error> {
        match spec {
            InputSpec::Parameter { arg, name } | InputSpec::Buffer { arg, name, .. } | InputSpec::TensorConstant { arg, name } => {
                let weight = self.exported.weight_of(spec);
                let weight = weight.ok_or_else(|| ProgramError::NoData(name.clone()))?;
                self.bind_weight(arg, name, weight)
            }
            InputSpec::UserInput(user) => self.bind_user_input(user),
            InputSpec::ConstantInput { value, .. } => {
                self.interface.inputs.push(MethodInput::Constant(value.clone()));
                Ok(())
            }
            InputSpec::Token { .. } => Ok(()),
            InputSpec::CustomObj { name, .. } => {
                for n in argument.names() {
                    self.names.values.insert(n.to_owned(), Binding::absent(format!("`{name}` is a script object")));
                }
                Ok(())
            }
        }
    }

    fn bind_weight(&mut self, arg: &str, name: &'a str, weight: &'a Weight) -> Result<(), Error> {
        let value = match weight {
            Weight::Strided(view) => Binding::Tensor(self.weight_slot(name, view)?),
            Weight::Subclass(subclass) => Binding::Subclass(name, subclass),
            Weight::Foreign { dtype, .. } => Binding::absent(format!("`{name}` has element type {dtype:?}")),
        };
        self.names.values.insert(arg.to_owned(), value);
        if let Binding::Tensor(t) = &self.names.values[arg]
            && let Origin::Buffer(i) = self.lower.graph().tensors[t.tid.0 as usize].origin
            && self.state.buffers[i as usize].value.is_none()
        {
            self.state.buffers[i as usize].value = Some(arg.to_owned());
        }
        Ok(())
    }

    /// The slot of a stored tensor: a mutable buffer if the program writes to it, else a constant.
    pub(super) fn weight_slot(&mut self, name: &str, view: &'a View) -> Result<TensorValue<'a>, Error> {
        if let Some(value) = self.memory.views.get(view) {
            return Ok(value.clone());
        }
        let value = if self.state.written.contains(view) {
            let i = self.state.buffers.len() as u32;
            let before = self.lower.slot(Spec::fixed(view.dtype, &view.shape), Origin::Buffer(i));
            self.state.buffers.push(Buffer { name: name.to_owned(), before, initial: view, value: None });
            self.memory.new_base(before)
        } else {
            let tid = self.constant(name, view)?;
            match self.lower.graph().constant(tid).map(|c| &c.expr) {
                Some(ConstExpr::Stored(_)) => self.memory.guarded_base(tid, format!("it writes to the constant `{name}`")),
                _ => self.memory.new_base(tid),
            }
        };
        self.memory.views.insert(view, value.clone());
        Ok(value)
    }

    fn constant(&mut self, name: &str, view: &'a View) -> Result<Tid, Error> {
        let shape = Shape::from_slice(&view.shape);
        let small = view.shape.iter().product::<usize>() <= MAX_LITERAL && view.dtype.is_node_dtype();
        let expr = if small && !view.storage.is_absent() {
            ConstExpr::Literal(view.tensor()?.aligned().bytes().clone())
        } else {
            ConstExpr::Stored(self.weights.add(view))
        };
        Ok(self.lower.constant(Constant { name: name.to_owned(), dtype: view.dtype, shape, expr }))
    }

    fn bind_user_input(&mut self, argument: &Argument) -> Result<(), Error> {
        let number = self.interface.inputs.len() as u32;
        match argument {
            Argument::Tensor(name) => {
                let meta = self.exported.graph.tensor(name)?;
                let spec = Spec { dtype: meta.dtype, dims: meta.sizes.iter().map(|e| self.names.expr(e)).collect() };
                let tid = self.lower.slot(spec, Origin::Input(number));
                self.interface.inputs.push(MethodInput::Tensor(tid));
                let value = self.memory.new_base(tid);
                self.interface.input_bases.push((name.clone(), tid, value.base));
                self.names.values.insert(name.clone(), Binding::Tensor(value));
                Ok(())
            }
            Argument::SymInt(SymArg::Name(name)) => {
                let content = self.exported.graph.sym_ints.get(name).cloned();
                let content = content.ok_or_else(|| ProgramError::UnknownInput(name.clone()))?;
                let slot = self.lower.value_input(number, content.clone());
                self.interface.inputs.push(MethodInput::Int { slot, content: content.clone() });
                self.names.values.insert(name.clone(), Binding::Int(content));
                Ok(())
            }
            literal => {
                self.interface.inputs.push(MethodInput::Constant(literal.clone()));
                Ok(())
            }
        }
    }

    pub(super) fn bind_outputs(&mut self) -> Result<(), Error> {
        let exported = self.exported;
        let outputs = exported.graph.outputs.iter().zip(&exported.signature.outputs);
        let mut writes = Vec::new();
        for (argument, spec) in outputs {
            match spec {
                OutputSpec::UserOutput(_) | OutputSpec::LossOutput { .. } => self.bind_output(argument)?,
                OutputSpec::BufferMutation { arg, name } => self.bind_mutation(arg, name)?,
                OutputSpec::Token { .. } => {}
                OutputSpec::UserInputMutation { arg, name } => self.bind_input_mutation(arg, name, &mut writes),
                OutputSpec::ParameterMutation { name, .. } => {
                    self.refuse_output("parameter_mutation", name, "the program writes to this parameter; register it as a buffer")
                }
                OutputSpec::GradientToParameter { name, .. } | OutputSpec::GradientToUserInput { name, .. } => {
                    self.refuse_output("gradient", name, "gradients are for training");
                }
            }
        }
        self.write_inputs_back(writes);
        Ok(())
    }

    /// Records the final contents of an input, as a functional program states them.
    fn bind_input_mutation(&mut self, arg: &str, name: &str, writes: &mut Vec<InputWrite>) {
        let given = self.interface.input_bases.iter().find(|(n, ..)| n == name).map(|(_, tid, _)| *tid);
        match (given, self.current(arg)) {
            (Some(given), Ok(new)) => writes.push(InputWrite { name: name.to_owned(), given, new }),
            (None, _) => self.refuse_output("user_input_mutation", name, &format!("`{name}` is no tensor input")),
            (_, Err(reason)) => self.refuse_output("user_input_mutation", name, &reason.to_string()),
        }
    }

    /// Copies written contents back into the inputs, outside of the delegates, as callers expect.
    fn write_inputs_back(&mut self, mut writes: Vec<InputWrite>) {
        for (name, given, base) in self.interface.input_bases.clone() {
            if self.memory.versions.get(base) == Some(&0) {
                continue;
            }
            match self.current(&name) {
                Ok(new) => writes.push(InputWrite { name, given, new }),
                Err(reason) => self.refuse_output("user_input_mutation", &name, &reason.to_string()),
            }
        }
        writes.retain(|write| write.given != write.new);
        if let Err(reason) = self.save_old_inputs(&mut writes) {
            return self.refuse_output("user_input_mutation", "inputs", &reason.to_string());
        }
        for write in writes {
            if let Err(reason) = self.copy_to_input(write.given, write.new) {
                self.refuse_output("user_input_mutation", &write.name, &reason.to_string());
            }
        }
    }

    /// Copies old contents of written inputs that the method returns, or stores in another input,
    /// before they are overwritten.
    fn save_old_inputs(&mut self, writes: &mut [InputWrite]) -> Result<(), Refuse> {
        let written: HashSet<Tid> = writes.iter().map(|write| write.given).collect();
        let mut saved: HashMap<Tid, Tid> = HashMap::new();
        let mut results = std::mem::take(&mut self.interface.results);
        let returned = results.iter_mut().filter_map(|slot| if let Slot::Tensor(t) = slot { Some(t) } else { None });
        for t in returned.chain(writes.iter_mut().map(|write| &mut write.new)).filter(|t| written.contains(t)) {
            *t = match saved.get(t) {
                Some(copy) => *copy,
                None => *saved.entry(*t).or_insert(self.copy_of(*t)?),
            };
        }
        self.interface.results = results;
        Ok(())
    }

    /// A new slot with the contents of `t`.
    fn copy_of(&mut self, t: Tid) -> Result<Tid, Refuse> {
        let spec = self.lower.spec(t).clone();
        if spec.dtype.is_node_dtype() {
            let copy = self.lower.slot(spec, Origin::Node);
            return self.lower.copy(t, copy).map(|()| copy);
        }
        let call = Call {
            target: "aten.clone.default".to_owned(),
            args: vec![("self".to_owned(), Arg::Tensor(t))],
            outputs: vec![OutMeta { dtype: spec.dtype, dims: spec.dims.to_vec(), used: true }],
        };
        let reason = Refuse::Unsupported(format!("old contents of an input of {} elements cannot be saved", spec.dtype));
        let n_inputs = self.interface.inputs.len();
        match self.fallback.call(&mut self.lower, &call, u32::MAX, n_inputs, reason)?.first() {
            Some(Item::Tensor(copy)) => Ok(*copy),
            _ => Err(Refuse::Missing("self".to_owned())),
        }
    }

    fn copy_to_input(&mut self, given: Tid, new: Tid) -> Result<(), Refuse> {
        let spec = self.lower.spec(given).clone();
        let args = vec![("self".to_owned(), Arg::Tensor(given)), ("src".to_owned(), Arg::Tensor(new))];
        let outputs = vec![OutMeta { dtype: spec.dtype, dims: spec.dims.to_vec(), used: false }];
        let call = Call { target: "aten.copy_.default".to_owned(), args, outputs };
        let reason = "it writes to an input of the method, which a delegate only sees a copy of; return the new contents instead";
        let n_inputs = self.interface.inputs.len();
        self.fallback.call(&mut self.lower, &call, u32::MAX, n_inputs, Refuse::Unsupported(reason.to_owned())).map(drop)
    }

    fn bind_output(&mut self, argument: &Argument) -> Result<(), Error> {
        let slot = match argument {
            Argument::Tensor(name) | Argument::OptionalTensor(Some(name)) => match self.names.resolve(name) {
                // The reason for its absence is already reported.
                Some(Binding::Absent(Refuse::Reported)) => return Ok(()),
                _ => {
                    let current = self.current(name).map_err(lost)?;
                    Slot::Tensor(self.whole(current, u32::MAX).map_err(lost)?)
                }
            },
            Argument::SymInt(SymArg::Name(name)) => match self.names.values.get(name).cloned() {
                Some(Binding::Int(Expr::Int(v))) => {
                    self.interface.outputs.push(MethodOutput::Constant(Argument::Int(v)));
                    return Ok(());
                }
                Some(Binding::Int(e)) => Slot::Value(self.lower.size_slot(&e).map_err(lost)?),
                Some(Binding::Absent(Refuse::Reported)) => return Ok(()),
                _ => return Err(ProgramError::NoValue(name.clone()).into()),
            },
            // Floats that a run computes are tensors of rank 0.
            Argument::SymFloat(SymArg::Name(name)) if matches!(self.names.resolve(name), Some(Binding::Tensor(_))) => {
                Slot::Tensor(self.current(name).map_err(lost)?)
            }
            Argument::SymBool(SymArg::Name(name)) if matches!(self.names.resolve(name), Some(Binding::Bool(_))) => {
                match self.known_condition(name).map_err(lost)? {
                    Arg::Tensor(t) => Slot::Tensor(t),
                    Arg::Bool(b) => {
                        self.interface.outputs.push(MethodOutput::Constant(Argument::Bool(b)));
                        return Ok(());
                    }
                    _ => return Err(ProgramError::NoValue(name.clone()).into()),
                }
            }
            literal => {
                if let Some(name) = literal.names().first() {
                    self.refuse_output("output", name, "only tensors, integers and constants can be returned");
                }
                self.interface.outputs.push(MethodOutput::Constant(literal.clone()));
                return Ok(());
            }
        };
        self.interface.outputs.push(MethodOutput::Result(self.interface.results.len()));
        self.interface.results.push(slot);
        Ok(())
    }

    /// Reports an output that a method cannot have.
    fn refuse_output(&mut self, kind: &str, name: &str, reason: &str) {
        let outcome = Outcome::Refused(reason.to_owned());
        self.calls.push(CallReport {
            target: kind.to_owned(),
            name: name.to_owned(),
            source: Default::default(),
            outcome,
            precision: None,
        });
    }

    /// Records the final contents of a buffer, as a functional program states them.
    fn bind_mutation(&mut self, arg: &str, name: &str) -> Result<(), Error> {
        let exported = self.exported;
        let weight = exported.weights.get(name).or_else(|| exported.constants.get(name));
        let buffer = self.state.buffers.iter_mut().find(|b| matches!(weight, Some(Weight::Strided(v)) if v == b.initial));
        match buffer {
            Some(buffer) => buffer.value = Some(arg.to_owned()),
            None => return Err(ProgramError::NotAnInput(name.to_owned()).into()),
        }
        Ok(())
    }
}
