//! Kernel calls: operators that the exporter placed outside of delegates.
//!
//! The compiler's rule for the operator's functional form produces a graph of a few nodes. The
//! method's engine runs this graph. It is built for the shapes of the call and reused until they
//! change.

mod graph;
mod host;

use std::{collections::HashMap, sync::Arc};

use flambeau_aten::{Schema, schema};
use flambeau_host::{Kernel as HostKernel, kernel_for, moves};
use flambeau_ir::engine::{Constants, Engine, LoadOptions, Session, Value as EngineValue};
use flambeau_lower::{Arg, Refuse, RuleRow, rule_for};
use flambeau_tensor::{Bytes, DType, Expr, Tensor, cast};
use flambeau_wire::pte::{EValue, ExecutionPlan};

use crate::{
    InstructionError, OperatorError, Value,
    prim::Prim,
    run::{read, set_tensor},
};

/// The lowering of an operator to nodes.
#[derive(Clone, Copy, Debug)]
struct Lowering {
    /// Schema with the names of the call's arguments.
    schema: &'static Schema,
    /// The rule of the functional form.
    row: &'static RuleRow,
}

/// The implementation of an operator.
#[derive(Debug)]
enum Action {
    Prim(Prim),
    /// `executorch_prim::et_view`: reshapes the operand.
    View,
    /// `aten::copy_`: copies the second operand into the first.
    Copy,
    /// Converts the operand to the result's element type.
    Convert,
    /// Runs a host kernel, for calls that no graph expresses.
    Host(&'static HostKernel, &'static Schema),
    /// Applies the rule to integers with the bits of the elements, for operators that only move
    /// elements.
    Bits(Lowering),
    Rule(Lowering),
}

/// A kernel call that is ready to run.
pub(crate) struct Kernel {
    name: String,
    action: Action,
    /// Number of arguments before the results.
    pub(crate) inputs: usize,
    /// Values that receive the results.
    pub(crate) results: Vec<u32>,
    ready: Option<(Signature, Box<dyn Session>)>,
}

/// All properties of a call that its graph depends on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Signature {
    /// Types and shapes of the tensor arguments, in order.
    tensors: Vec<(DType, Vec<usize>)>,
    /// Arguments, with tensors as indices into `tensors`.
    args: Vec<Arg>,
    /// Whether integers replace elements whose bits are only moved.
    stands_in: bool,
}

/// A value's description during the construction of a signature.
enum Seen {
    Tensor(DType, Vec<usize>),
    Value(Value),
}

impl Seen {
    fn describe(&self) -> String {
        match self {
            Seen::Tensor(dtype, shape) => format!("a {dtype} tensor of shape {shape:?}"),
            Seen::Value(value) => value.describe(),
        }
    }
}

struct Literals(HashMap<String, Bytes>);

impl Constants for Literals {
    fn get(&self, key: &str) -> Option<Bytes> {
        self.0.get(key).cloned()
    }
}

/// Expands tensor and integer lists into their elements.
pub(crate) fn items(plan: &ExecutionPlan, args: &[u32]) -> Vec<u32> {
    let mut all = Vec::new();
    for &at in args {
        match plan.values.get(at as usize) {
            Some(EValue::TensorList(list) | EValue::IntList(list)) => all.extend(list),
            Some(EValue::OptionalTensorList(list)) => all.extend(list.iter().flatten()),
            _ => all.push(at),
        }
    }
    all
}

/// Number of results, and of trailing values that represent them. Each result appears as an
/// argument and again as a return value, either one by one or in one list.
fn result_count(plan: &ExecutionPlan, args: &[u32]) -> Option<(usize, usize)> {
    if let Some((last, before)) = args.split_last()
        && let Some(EValue::TensorList(list)) = plan.values.get(*last as usize)
        && !list.is_empty()
        && before.ends_with(list)
    {
        return Some((list.len(), list.len() + 1));
    }
    let twice = |k: &usize| args[args.len() - k..] == args[args.len() - 2 * k..args.len() - k];
    (1..=args.len() / 2).find(twice).map(|k| (k, 2 * k))
}

/// The schema of an operator in a plan. Operators without out variants, such as custom operators,
/// are named as if they had one.
fn schema_of(name: &str, overload: &str) -> Option<&'static Schema> {
    let target = |overload: &str| name.replace("::", ".") + "." + if overload.is_empty() { "default" } else { overload };
    schema(&target(overload)).or_else(|| {
        let functional = if overload == "out" { "" } else { overload.strip_suffix("_out")? };
        schema(&target(functional))
    })
}

/// The rule of an operator's functional form.
fn lowering(schema: &'static Schema) -> Option<Lowering> {
    let functional = match (schema.namespace, schema.name) {
        ("dim_order_ops", "_clone_dim_order") => "aten.clone.default".to_owned(),
        ("dim_order_ops", "_empty_dim_order") => "aten.empty.memory_format".to_owned(),
        _ => schema.functional().unwrap_or(schema).target(),
    };
    rule_for(&functional).map(|row| Lowering { schema, row })
}

/// The implementation of an operator for operands and results of these element types.
fn action(name: &str, schema: Option<&'static Schema>, dtypes: &[DType]) -> Option<Action> {
    match name {
        "aten::copy_" => return Some(Action::Copy),
        "aten::_to_copy.out" | "dim_order_ops::_to_dim_order_copy.out" => return Some(Action::Convert),
        _ if name.starts_with("executorch_prim::et_view.") => return Some(Action::View),
        _ => {}
    }
    let schema = schema?;
    let lowering = lowering(schema);
    if let Some(lowering) = lowering
        && dtypes.iter().any(|&d| stand_in_for(d).is_some())
        && moves(lowering.row.operator.schema())
    {
        return Some(Action::Bits(lowering));
    }
    kernel_for(schema, dtypes).map(|kernel| Action::Host(kernel, schema)).or(lowering.map(Action::Rule))
}

impl Kernel {
    /// Finds an operator's implementation, and prepares the call if all its shapes are fixed.
    pub(crate) fn load(plan: &ExecutionPlan, op: u32, args: &[u32], engine: &Arc<dyn Engine>) -> Result<Kernel, InstructionError> {
        let operator = &plan.operators[op as usize];
        let name = operator.full_name();
        let failed = |source| InstructionError::Operator { operator: operator.full_name(), source };
        let dtype = |at: &u32| if let Some(EValue::Tensor(t)) = plan.values.get(*at as usize) { Some(t.dtype) } else { None };
        let dtypes: Vec<DType> = items(plan, args).iter().filter_map(dtype).collect();
        let found = match Prim::named(&name) {
            Some(prim) => Some(Action::Prim(prim)),
            None => action(&name, schema_of(&operator.name, &operator.overload), &dtypes),
        };
        let action = found.ok_or_else(|| failed(Refuse::NoRule.into()))?;
        // Number of results, and of trailing values that represent them.
        let (count, tail) = match &action {
            Action::Prim(prim) => (args.len().saturating_sub(prim.arity()), args.len().saturating_sub(prim.arity())),
            Action::Copy => (1, 1),
            _ => result_count(plan, args).ok_or_else(|| failed(OperatorError::Unrepeated))?,
        };
        let inputs = args.len().saturating_sub(tail);
        let results = args.get(inputs..inputs + count).unwrap_or_default();
        let mut kernel = Kernel { name, action, inputs, results: items(plan, results), ready: None };
        if let (&Action::Rule(lowering), Some(signature)) = (&kernel.action, kernel.fixed_signature(plan, args))
            && !takes_masks(lowering.row)
        {
            let session = kernel.build(plan, lowering, &signature, engine)?;
            kernel.ready = Some((signature, session));
        }
        Ok(kernel)
    }

    /// The signature, if all tensor shapes and integers are fixed.
    fn fixed_signature(&self, plan: &ExecutionPlan, args: &[u32]) -> Option<Signature> {
        let inputs = args.get(..self.inputs)?;
        let seen = |at: u32| match plan.values.get(at as usize) {
            Some(EValue::Tensor(t)) if !t.dynamic => Ok(Seen::Tensor(t.dtype, t.sizes.iter().map(|&d| d as usize).collect())),
            Some(EValue::Int(v)) => Ok(Seen::Value(Value::Int(*v))),
            Some(EValue::Bool(v)) => Ok(Seen::Value(Value::Bool(*v))),
            Some(EValue::Double(v)) => Ok(Seen::Value(Value::Double(*v))),
            Some(EValue::String(v)) => Ok(Seen::Value(Value::String(v.clone()))),
            Some(EValue::None) => Ok(Seen::Value(Value::None)),
            _ => Err(InstructionError::Unset(at)),
        };
        self.signature(plan, inputs, &seen).ok().map(|(signature, _)| signature)
    }

    /// The signature of a call, and the values of its tensors.
    fn signature(
        &self,
        plan: &ExecutionPlan,
        inputs: &[u32],
        seen: &dyn Fn(u32) -> Result<Seen, InstructionError>,
    ) -> Result<(Signature, Vec<u32>), InstructionError> {
        let (mut tensors, mut values, mut args) = (Vec::new(), Vec::new(), Vec::new());
        let mut tensor = |at: u32| match seen(at)? {
            Seen::Tensor(dtype, shape) => {
                tensors.push((dtype, shape));
                values.push(at);
                Ok(flambeau_ir::Tid(tensors.len() as u32 - 1))
            }
            Seen::Value(v) => Err(InstructionError::Kind { value: at, found: v.describe(), expected: "a tensor" }),
        };
        for &at in inputs {
            args.push(match plan.values.get(at as usize) {
                Some(EValue::Tensor(_)) => Arg::Tensor(tensor(at)?),
                Some(EValue::TensorList(list)) => {
                    Arg::Tensors(list.iter().map(|&at| tensor(at).map(Some)).collect::<Result<_, _>>()?)
                }
                Some(EValue::OptionalTensorList(list)) => {
                    Arg::Tensors(list.iter().map(|at| at.map(&mut tensor).transpose()).collect::<Result<_, _>>()?)
                }
                Some(EValue::IntList(list)) => Arg::Ints(list.iter().map(|&at| integer(seen, at)).collect::<Result<_, _>>()?),
                Some(EValue::DoubleList(list)) => Arg::Floats(list.clone()),
                Some(EValue::BoolList(_)) => Arg::Opaque("list of booleans"),
                _ => scalar(seen, at)?,
            });
        }
        Ok((Signature { tensors, args, stands_in: false }, values))
    }

    fn build(
        &self,
        plan: &ExecutionPlan,
        lowering: Lowering,
        signature: &Signature,
        engine: &Arc<dyn Engine>,
    ) -> Result<Box<dyn Session>, InstructionError> {
        let built = graph::build(plan, lowering, signature, &self.results);
        let (graph, literals) = built.map_err(|source| self.failed(source))?;
        let session = engine.load(graph, &Literals(literals), &LoadOptions::default());
        session.map_err(|source| self.failed(source.into()))
    }

    fn failed(&self, source: OperatorError) -> InstructionError {
        InstructionError::Operator { operator: self.name.clone(), source }
    }

    /// Converts the last operand to the result's element type and the first operand's shape.
    fn convert(&self, plan: &ExecutionPlan, inputs: &[u32], cells: &mut [Option<Value>]) -> Result<(), InstructionError> {
        let operand = |at: u32| match read(cells, at)? {
            Value::Tensor(t) => Ok(t),
            other => Err(InstructionError::Kind { value: at, found: other.describe(), expected: "a tensor" }),
        };
        let from = match (&self.action, inputs) {
            (Action::Copy, [to, from, ..]) => {
                let (to, from) = (operand(*to)?, operand(*from)?);
                let from = flambeau_host::broadcast(from, to.shape()).map_err(|source| self.failed(source.into()))?;
                cast(&from, to.dtype())?
            }
            (_, [from, ..]) => operand(*from)?.clone(),
            _ => return Err(self.failed(OperatorError::Arguments("none".to_owned()))),
        };
        self.results.iter().try_for_each(|&at| set_tensor(plan, cells, at, from.clone()))
    }

    /// Reshapes the operand.
    fn view(&self, plan: &ExecutionPlan, inputs: &[u32], cells: &mut [Option<Value>]) -> Result<(), InstructionError> {
        let ([from, sizes], [to]) = (inputs, &self.results[..]) else {
            return Err(self.failed(OperatorError::Arguments(format!("{} values", inputs.len()))));
        };
        let integer = |at| {
            let value = read(cells, at)?;
            let kind = || InstructionError::Kind { value: at, found: value.describe(), expected: "an integer" };
            value.as_int().ok_or_else(kind)
        };
        let sizes: Vec<i64> = items(plan, &[*sizes]).into_iter().map(integer).collect::<Result<_, _>>()?;
        let Value::Tensor(tensor) = read(cells, *from)? else {
            let found = read(cells, *from)?.describe();
            return Err(InstructionError::Kind { value: *from, found, expected: "a tensor" });
        };
        let tensor = reshape(tensor, &sizes).map_err(|source| self.failed(source))?;
        cells[*to as usize] = Some(Value::Tensor(tensor));
        Ok(())
    }

    /// Runs the call.
    pub(crate) fn run(
        &mut self,
        plan: &ExecutionPlan,
        args: &[u32],
        cells: &mut [Option<Value>],
        engine: &Arc<dyn Engine>,
    ) -> Result<(), InstructionError> {
        let inputs = args.get(..self.inputs).unwrap_or_default();
        let lowering = match &self.action {
            Action::Prim(prim) => {
                let operands: Vec<&Value> = inputs.iter().map(|&at| read(cells, at)).collect::<Result<_, _>>()?;
                let value = prim.eval(&operands).map_err(|source| self.failed(source))?;
                self.results.iter().for_each(|&at| cells[at as usize] = Some(value.clone()));
                return Ok(());
            }
            Action::View => return self.view(plan, inputs, cells),
            Action::Copy | Action::Convert => return self.convert(plan, inputs, cells),
            Action::Host(kernel, schema) => {
                let results =
                    host::run(kernel, schema, plan, inputs, &self.results, cells).map_err(|source| self.failed(source))?;
                return self.results.iter().zip(results).try_for_each(|(&at, tensor)| set_tensor(plan, cells, at, tensor));
            }
            Action::Bits(lowering) | Action::Rule(lowering) => *lowering,
        };
        let seen = |at: u32| match read(cells, at)? {
            Value::Tensor(t) => Ok(Seen::Tensor(t.dtype(), t.shape().to_vec())),
            other => Ok(Seen::Value(other.clone())),
        };
        let (mut signature, tensors) = self.signature(plan, inputs, &seen)?;
        let mut arguments = Vec::with_capacity(tensors.len());
        for at in tensors {
            if let Value::Tensor(t) = read(cells, at)? {
                arguments.push(t.clone());
            }
        }
        if matches!(self.action, Action::Bits(_)) {
            stand_in(&mut signature, &mut arguments)?;
        }
        if takes_masks(lowering.row) {
            places_for_masks(&mut signature, &mut arguments).map_err(|source| self.failed(source))?;
        }
        let stands_in = signature.stands_in;
        let (_, session) = match self.ready.take().filter(|(known, _)| *known == signature) {
            Some(ready) => self.ready.insert(ready),
            None => {
                let session = self.build(plan, lowering, &signature, engine)?;
                self.ready.insert((signature, session))
            }
        };
        let arguments: Vec<EngineValue> = arguments.into_iter().map(EngineValue::Tensor).collect();
        let results = session.run(&arguments);
        let results = results.map_err(|source| self.failed(source.into()))?;
        for (&at, result) in self.results.iter().zip(results) {
            if let EngineValue::Tensor(tensor) = result {
                let tensor = if stands_in { as_declared(plan, at, tensor)? } else { tensor };
                set_tensor(plan, cells, at, tensor)?;
            }
        }
        Ok(())
    }
}

/// The integer type of the same width for an element type that graphs lack.
fn stand_in_for(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F64 | DType::C64 => Some(DType::I64),
        DType::C32 => Some(DType::I32),
        _ => None,
    }
}

/// Reinterprets elements of types that graphs lack as integers with the same bits.
fn stand_in(signature: &mut Signature, tensors: &mut [Tensor]) -> Result<(), flambeau_tensor::Error> {
    signature.stands_in = true;
    for (tensor, (dtype, _)) in tensors.iter_mut().zip(&mut signature.tensors) {
        if let Some(integers) = stand_in_for(*dtype) {
            *tensor = Tensor::new(integers, tensor.shape(), tensor.bytes().clone())?;
            *dtype = integers;
        }
    }
    Ok(())
}

/// Reinterprets a result of a call on such integers in the type that the plan declares.
fn as_declared(plan: &ExecutionPlan, at: u32, tensor: Tensor) -> Result<Tensor, flambeau_tensor::Error> {
    match plan.values.get(at as usize) {
        Some(EValue::Tensor(t)) if stand_in_for(t.dtype).is_some() => Tensor::new(t.dtype, tensor.shape(), tensor.bytes().clone()),
        _ => Ok(tensor),
    }
}

/// Whether indices may be masks, whose true elements are known only at run time.
fn takes_masks(row: &RuleRow) -> bool {
    matches!(row.target, "aten.index.Tensor" | "aten.index_put.default")
}

/// Replaces each mask index by the indices of its true elements, one tensor per axis of the mask.
fn places_for_masks(signature: &mut Signature, tensors: &mut Vec<Tensor>) -> Result<(), OperatorError> {
    for arg in &mut signature.args {
        let Arg::Tensors(list) = arg else { continue };
        let mut places = Vec::with_capacity(list.len());
        for index in std::mem::take(list) {
            let mask = index.and_then(|t| tensors.get(t.0 as usize)).filter(|t| matches!(t.dtype(), DType::Bool | DType::U8));
            let Some(mask) = mask.cloned() else {
                places.push(index);
                continue;
            };
            for column in flambeau_host::mask_indices(&mask)? {
                places.push(Some(flambeau_ir::Tid(tensors.len() as u32)));
                signature.tensors.push((column.dtype(), column.shape().to_vec()));
                tensors.push(column);
            }
        }
        *list = places;
    }
    Ok(())
}

fn integer(seen: &dyn Fn(u32) -> Result<Seen, InstructionError>, at: u32) -> Result<Expr, InstructionError> {
    match seen(at)? {
        Seen::Value(Value::Int(v)) => Ok(Expr::Int(v)),
        other => Err(InstructionError::Kind { value: at, found: other.describe(), expected: "an integer" }),
    }
}

fn scalar(seen: &dyn Fn(u32) -> Result<Seen, InstructionError>, at: u32) -> Result<Arg, InstructionError> {
    Ok(match seen(at)? {
        Seen::Value(Value::Int(v)) => Arg::Int(Expr::Int(v)),
        Seen::Value(Value::Bool(v)) => Arg::Bool(v),
        Seen::Value(Value::Double(v)) => Arg::Float(v),
        Seen::Value(Value::String(v)) => Arg::Str(v),
        Seen::Value(Value::None) => Arg::None,
        tensor @ (Seen::Value(Value::Tensor(_)) | Seen::Tensor(..)) => {
            return Err(InstructionError::Kind { value: at, found: tensor.describe(), expected: "a number" });
        }
    })
}

/// The tensor with these sizes. One size may be -1 and is inferred.
fn reshape(tensor: &Tensor, sizes: &[i64]) -> Result<Tensor, OperatorError> {
    let known: Option<usize> = sizes.iter().filter(|&&d| d != -1).try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
    let known = known.ok_or_else(|| OperatorError::NoShape(sizes.to_vec()))?;
    let inferred = tensor.numel().checked_div(known).unwrap_or(0);
    let shape: Vec<usize> = sizes.iter().map(|&d| usize::try_from(d).unwrap_or(inferred)).collect();
    Ok(tensor.reshape(&shape)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_run_by_the_rules_of_their_functional_forms() {
        let check = |name: &str, overload: &str, expected: Option<&str>| {
            let found = schema_of(name, overload).and_then(lowering);
            assert_eq!(found.map(|l| l.row.target), expected, "{name}.{overload}");
        };
        check("aten::gather", "out", Some("aten.gather.default"));
        check("aten::add", "out", Some("aten.add.Tensor"));
        check("aten::add", "Scalar_out", Some("aten.add.Scalar"));
        check("aten::add_", "Tensor", Some("aten.add.Tensor"));
        check("aten::clamp", "out", Some("aten.clamp.default"));
        check("aten::mean", "out", Some("aten.mean.dim"));
        check("aten::sum", "IntList_out", Some("aten.sum.dim_IntList"));
        check("aten::div", "out_mode", Some("aten.div.Tensor_mode"));
        check("aten::topk", "values", Some("aten.topk.default"));
        check("aten::permute_copy", "out", Some("aten.permute_copy.default"));
        check("aten::_native_batch_norm_legit", "out", Some("aten._native_batch_norm_legit.default"));
        check("dim_order_ops::_clone_dim_order", "out", Some("aten.clone.default"));
        check("torchao::dequantize_affine", "out", Some("torchao.dequantize_affine.default"));
        check("aten::no_such_operator", "out", None);
        check("aten::add", "no_such_overload", None);
    }

    #[test]
    fn results_stand_twice_at_the_end() {
        let list = EValue::TensorList(vec![4, 5]);
        let plan = ExecutionPlan { values: vec![EValue::None, list], ..ExecutionPlan::default() };
        assert_eq!(result_count(&plan, &[0, 2, 3, 3]), Some((1, 2)));
        assert_eq!(result_count(&plan, &[0, 4, 5, 4, 5]), Some((2, 4)));
        assert_eq!(result_count(&plan, &[0, 4, 5, 1]), Some((2, 3)));
        assert_eq!(result_count(&plan, &[0, 2, 3]), None);
        assert_eq!(result_count(&plan, &[]), None);
    }
}
