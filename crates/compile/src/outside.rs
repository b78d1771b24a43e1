//! Calls outside of delegates: ExecuTorch's portable kernels run them.

use flambeau_ir::{Slot, Spec, Tid, Vid};
use flambeau_lower::{Arg, Call, Constant, Item, Lower, Origin, Range, Recipe, Refuse};
use flambeau_tensor::{DType, Expr, Shape, Tensor, cast};
use flambeau_wire::pte::EValue;

use crate::portable::{Kind, Param, Row, row_for};

/// A size: known, or computed by a delegate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Size {
    Known(i64),
    Slot(Vid),
}

/// An argument of a kernel call; tensors and sizes are slots of the flow.
#[derive(Clone, Debug)]
pub(crate) enum Argument {
    Tensor(Tid),
    Tensors(Vec<Tid>),
    Gaps(Vec<Option<Tid>>),
    Size(Size),
    Sizes(Vec<Size>),
    Value(EValue),
}

/// A kernel call.
#[derive(Clone, Debug)]
pub(crate) struct Outside {
    pub(crate) row: &'static Row,
    pub(crate) args: Vec<Argument>,
    pub(crate) results: Vec<Tid>,
    /// Number of the call in the program, for the report.
    pub(crate) call: u32,
}

impl Argument {
    /// Slots that must hold something when the kernel runs.
    fn slots(&self) -> Vec<Slot> {
        let size = |s: &Size| if let Size::Slot(v) = s { Some(Slot::Value(*v)) } else { None };
        match self {
            Argument::Tensor(t) => vec![Slot::Tensor(*t)],
            Argument::Tensors(list) => list.iter().map(|t| Slot::Tensor(*t)).collect(),
            Argument::Gaps(list) => list.iter().flatten().map(|t| Slot::Tensor(*t)).collect(),
            Argument::Size(s) => size(s).into_iter().collect(),
            Argument::Sizes(list) => list.iter().filter_map(size).collect(),
            Argument::Value(_) => Vec::new(),
        }
    }
}

impl Outside {
    /// The kernel call of a call that has no nodes; its results are the flow's inputs from number `first` on.
    ///
    /// # Errors
    /// `reason`, if there is no kernel for it or its arguments cannot be passed.
    pub(crate) fn new(lower: &mut Lower, call: &Call, id: u32, first: u32, reason: Refuse) -> Result<Outside, Refuse> {
        let Some(row) = row_for(&call.target).filter(|row| row.results == call.outputs.len()) else { return Err(reason) };
        let Some(args) = row.params().map(|p| argument(lower, call, p)).collect::<Option<Vec<_>>>() else { return Err(reason) };
        bound_sizes(lower, call, &args);
        let mut results = Vec::new();
        for (i, out) in call.outputs.iter().enumerate() {
            let spec = Spec { dtype: out.dtype, dims: out.dims.iter().cloned().collect() };
            results.push(lower.slot(spec, Origin::Input(first + i as u32)));
        }
        Ok(Outside { row, args, results, call: id })
    }

    /// The results as the call's own.
    pub(crate) fn items(&self, call: &Call) -> Vec<Item> {
        let used = |i: usize| call.outputs.get(i).is_some_and(|o| o.used);
        self.results.iter().enumerate().map(|(i, t)| if used(i) { Item::Tensor(*t) } else { Item::None }).collect()
    }

    /// Slots that must hold something when the kernel runs.
    pub(crate) fn reads(&self) -> Vec<Slot> {
        self.args.iter().flat_map(Argument::slots).collect()
    }
}

/// No more elements come out than went in: the bound of sizes that depend on the data, where the program states none.
fn bound_sizes(lower: &mut Lower, call: &Call, args: &[Argument]) {
    let Some(Argument::Tensor(first)) = args.first() else { return };
    let bounds: Vec<i64> = lower.spec(*first).dims.iter().map(|d| lower.flow().bounds(d).1).collect();
    let Some(most) = bounds.into_iter().try_fold(1i64, |n, d| n.checked_mul(d)) else { return };
    for symbol in call.outputs.iter().flat_map(|o| &o.dims).filter_map(Expr::as_symbol) {
        let range = lower.flow().ranges.get(symbol).copied().unwrap_or_default();
        if range.max.is_none() {
            lower.set_range(symbol.clone(), Range { max: Some(most), ..range });
        }
    }
}

fn argument(lower: &mut Lower, call: &Call, param: Param) -> Option<Argument> {
    let Some(arg) = call.arg(param.name) else {
        return match (param.default, call.args.iter().any(|(n, _)| n == param.name)) {
            (Some(text), _) => default_value(text).map(Argument::Value),
            // None was given where the kernel has no default of its own.
            (None, true) => Some(Argument::Value(EValue::None)),
            (None, false) => None,
        };
    };
    let mut size = |e: &Expr| match e.as_int() {
        Some(v) => Some(Size::Known(v)),
        None => lower.size_slot(e).ok().map(Size::Slot),
    };
    Some(match arg {
        Arg::Tensor(t) => Argument::Tensor(*t),
        Arg::Tensors(list) if param.kind == Kind::Gaps => Argument::Gaps(list.clone()),
        Arg::Tensors(list) => Argument::Tensors(list.iter().copied().collect::<Option<Vec<_>>>()?),
        Arg::Int(Expr::Int(v)) if param.kind == Kind::Tensor => Argument::Tensor(number(lower, call, *v as f64)?),
        Arg::Float(v) if param.kind == Kind::Tensor => Argument::Tensor(number(lower, call, *v)?),
        Arg::Int(_) if param.kind == Kind::Tensor => return None,
        Arg::Int(e) => Argument::Size(size(e)?),
        Arg::Ints(list) => Argument::Sizes(list.iter().map(size).collect::<Option<Vec<_>>>()?),
        Arg::Bool(b) => Argument::Value(EValue::Bool(*b)),
        Arg::Float(v) => Argument::Value(EValue::Double(*v)),
        Arg::Floats(list) => Argument::Value(EValue::DoubleList(list.clone())),
        Arg::Str(s) => Argument::Value(EValue::String(s.clone())),
        Arg::DType(d) => Argument::Value(EValue::Int(d.code().into())),
        Arg::None | Arg::Opaque(_) => Argument::Value(EValue::None),
    })
}

/// A number as a tensor of the type that it takes beside the call's first tensor.
fn number(lower: &mut Lower, call: &Call, value: f64) -> Option<Tid> {
    let beside = call.args.iter().find_map(|(_, a)| if let Arg::Tensor(t) = a { Some(lower.spec(*t).dtype) } else { None });
    let own = if value.fract() == 0.0 { DType::I64 } else { DType::F32 };
    let dtype = beside.filter(|d| d.is_float() || own == DType::I64).unwrap_or(own);
    let tensor = Tensor::from_slice(&[value], &[]).and_then(|t| cast(&t, dtype)).ok()?;
    let recipe = Recipe::Literal(tensor.bytes().clone());
    Some(lower.constant(Constant { name: format!("_scalar_{value}_{dtype}"), dtype, shape: Shape::new(), recipe }))
}

/// The value that a default in the table stands for.
pub(crate) fn default_value(text: &str) -> Option<EValue> {
    Some(match text {
        "none" => EValue::None,
        "true" => EValue::Bool(true),
        "false" => EValue::Bool(false),
        "[]" => EValue::IntList(Vec::new()),
        _ => match (text.strip_prefix('\''), text.parse::<i64>(), text.parse::<f64>()) {
            (Some(s), ..) => EValue::String(s.trim_end_matches('\'').to_owned()),
            (_, Ok(v), _) => EValue::Int(v),
            (_, _, Ok(v)) => EValue::Double(v),
            _ => return None,
        },
    })
}
