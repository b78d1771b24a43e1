//! Kernel calls: operators that an exporter left outside of delegates.
//!
//! The operator's functional form is looked up in the rule table of the compiler; its rule gives a graph of a few nodes, and the
//! engine of the method runs it. Shapes are those of the actual call, so a graph serves until they change.

mod data;
mod graph;
mod wide;

use std::{collections::HashMap, sync::Arc};

use flambeau_ir::engine::{Constants, Engine, LoadOptions, Session, Value as EngineValue};
use flambeau_lower::{Arg, Refuse, RuleRow, rule_rows};
use flambeau_tensor::{Bytes, DType, Expr, Tensor};
use flambeau_wire::pte::{EValue, ExecutionPlan};

use crate::{
    Value,
    kernel::data::Data,
    prim::Prim,
    run::{read, set, set_tensor},
};

/// What the operator is.
#[derive(Debug)]
enum Action {
    Prim(Prim),
    /// `executorch_prim::et_view`: another shape of the same elements.
    View,
    Data(Data),
    /// The rule's operator on 64-bit floats.
    Wide(&'static RuleRow),
    Rule(&'static RuleRow),
}

/// A kernel call that is ready to run.
pub(crate) struct Kernel {
    name: String,
    action: Action,
    /// Number of arguments before the results.
    pub(crate) inputs: usize,
    /// Values that receive the results.
    results: Vec<u32>,
    ready: Option<(Signature, Box<dyn Session>)>,
}

/// Everything that the graph of a call depends on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Signature {
    /// Of the tensor arguments, in order.
    tensors: Vec<(DType, Vec<usize>)>,
    /// Tensors are numbered as in `tensors`.
    args: Vec<Arg>,
    /// Whether 64-bit integers stand for floats, of which only the bits are moved.
    stands_in: bool,
}

/// What is known of a value when a signature is made.
enum Seen {
    Tensor(DType, Vec<usize>),
    Value(Value),
}

struct Literals(HashMap<String, Bytes>);

impl Constants for Literals {
    fn get(&self, key: &str) -> Option<Bytes> {
        self.0.get(key).cloned()
    }
}

/// The values with the elements of tensor and integer lists in place of the lists.
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

/// Number of results and of values that stand for them at the end: they are arguments first, and then return values, either one
/// by one or as one list.
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

/// The rule of an operator's functional form. An out-variant is named after it: `add.Scalar_out` writes what `add.Scalar` returns.
/// Where only `out` is left, or the functional overload has a longer name, the number of arguments decides.
fn find_rule(name: &str, overload: &str, inputs: usize) -> Option<&'static RuleRow> {
    let functional = match name {
        "dim_order_ops::_clone_dim_order" | "dim_order_ops::_empty_dim_order" => "aten.clone".to_owned(),
        _ => name.replace("::", ".").trim_end_matches('_').to_owned(),
    };
    let stem = overload.strip_suffix("out").map_or(overload, |s| s.trim_end_matches('_'));
    let params = |row: &RuleRow| row.params.split_whitespace().count();
    let mut best: Option<(&'static RuleRow, usize)> = None;
    for row in rule_rows() {
        let Some((base, own)) = row.target.rsplit_once('.') else { continue };
        let fits = own == stem || (stem.is_empty() && own != "out") || own.strip_suffix(stem).is_some_and(|r| r.ends_with('_'));
        if base != functional || !fits || params(row) > inputs {
            continue;
        }
        let usual = stem.is_empty() && matches!(own, "default" | "Tensor" | "self" | "dim");
        let rank = params(row) * 2 + usize::from(own == stem || usual);
        if best.is_none_or(|(_, other)| rank > other) {
            best = Some((row, rank));
        }
    }
    best.map(|(row, _)| row)
}

impl Kernel {
    /// Finds what an operator does, and prepares the call if all its shapes are fixed.
    pub(crate) fn load(plan: &ExecutionPlan, op: u32, args: &[u32], engine: &Arc<dyn Engine>) -> Result<Kernel, String> {
        let operator = plan.operators.get(op as usize).ok_or_else(|| format!("there is no operator {op}"))?;
        let name = operator.full_name();
        let (action, inputs) = if let Some(prim) = Prim::named(&name) {
            (Action::Prim(prim), prim.arity())
        } else if let Some(Data::Copy) = Data::named(&name) {
            (Action::Data(Data::Copy), args.len().saturating_sub(1))
        } else {
            let count = result_count(plan, args);
            let (_, tail) = count.ok_or_else(|| format!("operator `{}`: its results are not repeated", name.escape_debug()))?;
            let inputs = args.len() - tail;
            let rule = || find_rule(&operator.name, &operator.overload, inputs).map(Action::Rule);
            let data = Data::named(&name).map(Action::Data);
            let action = if name.starts_with("executorch_prim::et_view.") { Some(Action::View) } else { data.or_else(rule) };
            (action.ok_or_else(|| format!("operator `{}`: {}", name.escape_debug(), Refuse::NoRule))?, inputs)
        };
        let results = args.get(inputs..).unwrap_or_default();
        let results = match action {
            Action::Prim(_) | Action::Data(Data::Copy) => results,
            _ => &results[..result_count(plan, args).map_or(0, |(k, _)| k)],
        };
        let is_wide = |at: &u32| matches!(plan.values.get(*at as usize), Some(EValue::Tensor(t)) if t.dtype == DType::F64);
        let action = match action {
            Action::Rule(row) if items(plan, args).iter().any(is_wide) => Action::Wide(row),
            other => other,
        };
        let mut kernel = Kernel { name, action, inputs, results: items(plan, results), ready: None };
        if let (Action::Rule(row), Some(signature)) = (&kernel.action, kernel.fixed_signature(plan, args))
            && !takes_masks(row)
        {
            let session = kernel.build(plan, row, &signature, engine)?;
            kernel.ready = Some((signature, session));
        }
        Ok(kernel)
    }

    /// The signature, if no tensor's shape and no integer can change.
    fn fixed_signature(&self, plan: &ExecutionPlan, args: &[u32]) -> Option<Signature> {
        let inputs = args.get(..self.inputs)?;
        let seen = |at: u32| match plan.values.get(at as usize) {
            Some(EValue::Tensor(t)) if !t.dynamic => Ok(Seen::Tensor(t.dtype, t.sizes.iter().map(|&d| d as usize).collect())),
            Some(EValue::Int(v)) => Ok(Seen::Value(Value::Int(*v))),
            Some(EValue::Bool(v)) => Ok(Seen::Value(Value::Bool(*v))),
            Some(EValue::Double(v)) => Ok(Seen::Value(Value::Double(*v))),
            Some(EValue::String(v)) => Ok(Seen::Value(Value::String(v.clone()))),
            Some(EValue::None) => Ok(Seen::Value(Value::None)),
            _ => Err("not fixed".to_owned()),
        };
        self.signature(plan, inputs, &seen).ok().map(|(signature, _)| signature)
    }

    /// The signature of a call, and the values that are its tensors.
    fn signature(
        &self,
        plan: &ExecutionPlan,
        inputs: &[u32],
        seen: &dyn Fn(u32) -> Result<Seen, String>,
    ) -> Result<(Signature, Vec<u32>), String> {
        let (mut tensors, mut values, mut args) = (Vec::new(), Vec::new(), Vec::new());
        let mut tensor = |at: u32| match seen(at)? {
            Seen::Tensor(dtype, shape) => {
                tensors.push((dtype, shape));
                values.push(at);
                Ok(flambeau_ir::Tid(tensors.len() as u32 - 1))
            }
            Seen::Value(v) => Err(format!("value {at} is {}, expected a tensor", v.describe())),
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
        row: &RuleRow,
        signature: &Signature,
        engine: &Arc<dyn Engine>,
    ) -> Result<Box<dyn Session>, String> {
        let place = |what: String| format!("operator `{}`: {what}", self.name.escape_debug());
        let (graph, literals) = graph::build(plan, row, signature, &self.results).map_err(place)?;
        engine.load(graph, &Literals(literals), &LoadOptions::default()).map_err(|e| place(e.to_string()))
    }

    /// Runs a call on 64-bit floats.
    fn run_wide(
        &self,
        plan: &ExecutionPlan,
        row: &'static RuleRow,
        inputs: &[u32],
        cells: &mut [Option<Value>],
    ) -> Result<(), String> {
        let place = |what| format!("operator `{}`: {what}", self.name.escape_debug());
        let seen = |at: u32| match read(cells, at)? {
            Value::Tensor(t) => Ok(Seen::Tensor(t.dtype(), t.shape().to_vec())),
            other => Ok(Seen::Value(other.clone())),
        };
        let (signature, values) = self.signature(plan, inputs, &seen)?;
        let mut tensors = Vec::with_capacity(values.len());
        for at in values {
            tensors.extend(read(cells, at)?.as_tensor().cloned());
        }
        let result = wide::Call { row, args: &signature.args, tensors: &tensors }.eval().map_err(place)?;
        let [to] = self.results[..] else { return Err(place("it has other than one result".to_owned())) };
        set_tensor(plan, cells, to, result)
    }

    /// Runs the call.
    pub(crate) fn run(
        &mut self,
        plan: &ExecutionPlan,
        args: &[u32],
        cells: &mut [Option<Value>],
        engine: &Arc<dyn Engine>,
    ) -> Result<(), String> {
        let inputs = args.get(..self.inputs).unwrap_or_default();
        let row = match &self.action {
            Action::Prim(prim) => {
                let operands: Vec<&Value> = inputs.iter().map(|&at| read(cells, at)).collect::<Result<_, _>>()?;
                let value = prim.eval(&operands)?;
                return self.results.iter().try_for_each(|&at| set(cells, at, value.clone()));
            }
            Action::View => return view(plan, inputs, &self.results, cells),
            Action::Data(data) => {
                let operands: Vec<&Value> = inputs.iter().map(|&at| read(cells, at)).collect::<Result<_, _>>()?;
                let place = |what| format!("operator `{}`: {what}", self.name.escape_debug());
                let tensor = data.eval(&operands).map_err(place)?;
                return self.results.iter().try_for_each(|&at| set_tensor(plan, cells, at, tensor.clone()));
            }
            Action::Wide(row) if !wide::moves(row) => return self.run_wide(plan, row, inputs, cells),
            Action::Wide(row) | Action::Rule(row) => *row,
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
        if matches!(self.action, Action::Wide(_)) {
            stand_in(&mut signature, &mut arguments)?;
        }
        if takes_masks(row) {
            places_for_masks(&mut signature, &mut arguments)?;
        }
        let stands_in = signature.stands_in;
        if self.ready.as_ref().is_none_or(|(known, _)| *known != signature) {
            let session = self.build(plan, row, &signature, engine)?;
            self.ready = Some((signature, session));
        }
        let arguments: Vec<EngineValue> = arguments.into_iter().map(EngineValue::Tensor).collect();
        let (_, session) = self.ready.as_mut().ok_or("the kernel is not loaded")?;
        let results = session.run(&arguments).map_err(|e| format!("operator `{}`: {e}", self.name.escape_debug()))?;
        for (&at, result) in self.results.iter().zip(results) {
            if let EngineValue::Tensor(tensor) = result {
                let tensor = if stands_in { reinterpreted(&tensor, DType::I64, DType::F64)? } else { tensor };
                set_tensor(plan, cells, at, tensor)?;
            }
        }
        Ok(())
    }
}

/// The same bits as another element type, if the tensor has the first one.
fn reinterpreted(tensor: &Tensor, from: DType, to: DType) -> Result<Tensor, String> {
    if tensor.dtype() != from {
        return Ok(tensor.clone());
    }
    Tensor::new(to, tensor.shape(), tensor.bytes().clone()).map_err(|e| e.to_string())
}

/// Integers of the same bits in the place of 64-bit floats.
fn stand_in(signature: &mut Signature, tensors: &mut [Tensor]) -> Result<(), String> {
    signature.stands_in = true;
    for (tensor, (dtype, _)) in tensors.iter_mut().zip(&mut signature.tensors) {
        *tensor = reinterpreted(tensor, DType::F64, DType::I64)?;
        *dtype = tensor.dtype();
    }
    Ok(())
}

/// Whether indices may be masks, of which only a run knows the places.
fn takes_masks(row: &RuleRow) -> bool {
    matches!(row.target, "aten.index.Tensor" | "aten.index_put.default")
}

/// Indices by masks become indices by the places of their true elements, one for each axis of a mask.
fn places_for_masks(signature: &mut Signature, tensors: &mut Vec<Tensor>) -> Result<(), String> {
    for arg in &mut signature.args {
        let Arg::Tensors(list) = arg else { continue };
        let mut places = Vec::with_capacity(list.len());
        for index in std::mem::take(list) {
            let mask = index.and_then(|t| tensors.get(t.0 as usize)).filter(|t| matches!(t.dtype(), DType::Bool | DType::U8));
            let Some(mask) = mask.cloned() else {
                places.push(index);
                continue;
            };
            for column in data::mask_indices(&mask)? {
                places.push(Some(flambeau_ir::Tid(tensors.len() as u32)));
                signature.tensors.push((column.dtype(), column.shape().to_vec()));
                tensors.push(column);
            }
        }
        *list = places;
    }
    Ok(())
}

fn integer(seen: &dyn Fn(u32) -> Result<Seen, String>, at: u32) -> Result<Expr, String> {
    match seen(at)? {
        Seen::Value(Value::Int(v)) => Ok(Expr::Int(v)),
        _ => Err(format!("value {at} is not an integer")),
    }
}

fn scalar(seen: &dyn Fn(u32) -> Result<Seen, String>, at: u32) -> Result<Arg, String> {
    Ok(match seen(at)? {
        Seen::Value(Value::Int(v)) => Arg::Int(Expr::Int(v)),
        Seen::Value(Value::Bool(v)) => Arg::Bool(v),
        Seen::Value(Value::Double(v)) => Arg::Float(v),
        Seen::Value(Value::String(v)) => Arg::Str(v),
        Seen::Value(Value::None) => Arg::None,
        Seen::Value(Value::Tensor(_)) | Seen::Tensor(..) => return Err(format!("value {at} is a tensor where a number belongs")),
    })
}

fn view(plan: &ExecutionPlan, inputs: &[u32], results: &[u32], cells: &mut [Option<Value>]) -> Result<(), String> {
    let ([from, sizes], [to]) = (inputs, results) else { return Err("et_view takes a tensor and its sizes".into()) };
    let sizes: Vec<i64> = items(plan, &[*sizes])
        .into_iter()
        .map(|at| read(cells, at)?.as_int().ok_or_else(|| format!("value {at} is not an integer")))
        .collect::<Result<_, String>>()?;
    let Value::Tensor(tensor) = read(cells, *from)? else { return Err("et_view of a value that is no tensor".into()) };
    let tensor = reshape(tensor, &sizes)?;
    set(cells, *to, Value::Tensor(tensor))
}

/// The tensor with these sizes, one of which may be -1.
fn reshape(tensor: &Tensor, sizes: &[i64]) -> Result<Tensor, String> {
    let known: Option<usize> = sizes.iter().filter(|&&d| d != -1).try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?));
    let known = known.ok_or_else(|| format!("the sizes {sizes:?} are no shape"))?;
    let inferred = tensor.numel().checked_div(known).unwrap_or(0);
    let shape: Vec<usize> = sizes.iter().map(|&d| usize::try_from(d).unwrap_or(inferred)).collect();
    tensor.reshape(&shape).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_variants_are_named_after_functional_operators() {
        let check = |name: &str, overload: &str, inputs, expected: Option<&str>| {
            assert_eq!(find_rule(name, overload, inputs).map(|row| row.target), expected, "{name}.{overload}");
        };
        check("aten::gather", "out", 4, Some("aten.gather.default"));
        check("aten::add", "out", 3, Some("aten.add.Tensor"));
        check("aten::add", "Scalar_out", 3, Some("aten.add.Scalar"));
        check("aten::mean", "out", 4, Some("aten.mean.dim"));
        check("aten::sum", "IntList_out", 4, Some("aten.sum.dim_IntList"));
        check("aten::permute_copy", "out", 2, Some("aten.permute_copy.default"));
        check("aten::no_such_operator", "out", 2, None);
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
