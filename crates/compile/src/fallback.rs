//! Fallback calls, which kernels run between delegates.

use flambeau_aten::{Literal, Type};
use flambeau_ir::{Slot, Spec, Tid, Vid};
use flambeau_lower::{Arg, Call, ConstExpr, Constant, Item, Lower, Origin, Range, Refuse};
use flambeau_tensor::{DType, Expr, Shape, Symbol, Tensor, cast};
use flambeau_wire::pte::EValue;

use crate::{
    Options, Ties,
    functionalize::bare,
    portable::{Kernel, Param, kernel_for},
};

/// A size that is known at compile time or computed by a delegate.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Size {
    Known(i64),
    Slot(Vid),
}

/// An argument of a kernel call; tensors and sizes are slots of the graph.
#[derive(Clone, Debug)]
pub(crate) enum KernelArg {
    Tensor(Tid),
    Tensors(Vec<Tid>),
    OptionalTensors(Vec<Option<Tid>>),
    Size(Size),
    Sizes(Vec<Size>),
    Value(EValue),
}

/// A call that a kernel runs.
#[derive(Clone, Debug)]
pub(crate) struct FallbackCall {
    pub(crate) kernel: Kernel,
    pub(crate) args: Vec<KernelArg>,
    pub(crate) results: Vec<Tid>,
    /// Number of the call in the program, for the report.
    pub(crate) call: u32,
}

impl KernelArg {
    /// Slots that must hold a value before the kernel runs.
    fn slots(&self) -> Vec<Slot> {
        let size = |s: &Size| if let Size::Slot(v) = s { Some(Slot::Value(*v)) } else { None };
        match self {
            KernelArg::Tensor(t) => vec![Slot::Tensor(*t)],
            KernelArg::Tensors(list) => list.iter().map(|t| Slot::Tensor(*t)).collect(),
            KernelArg::OptionalTensors(list) => list.iter().flatten().map(|t| Slot::Tensor(*t)).collect(),
            KernelArg::Size(s) => size(s).into_iter().collect(),
            KernelArg::Sizes(list) => list.iter().filter_map(size).collect(),
            KernelArg::Value(_) => Vec::new(),
        }
    }
}

/// The fallback policy and the calls that fell back.
#[derive(Debug)]
pub(crate) struct Fallback {
    /// Whether a call without nodes may fall back.
    allowed: bool,
    /// The positions that sorting and selection give among equal elements.
    pub(crate) ties: Ties,
    /// Targets that the caller keeps out of delegates.
    undelegated: Vec<String>,
    /// Number of open chains of control flow. Kernels cannot run there, inside a delegate.
    pub(crate) open_chains: usize,
    pub(crate) calls: Vec<FallbackCall>,
}

impl Fallback {
    pub(crate) fn new(options: &Options) -> Fallback {
        let undelegated = options.undelegated.iter().map(|target| bare(target).to_owned()).collect();
        Fallback { allowed: !options.require_full, ties: options.ties, undelegated, open_chains: 0, calls: Vec::new() }
    }

    /// Whether the caller keeps a target out of delegates.
    pub(crate) fn is_forced(&self, target: &str) -> bool {
        self.undelegated.iter().any(|undelegated| undelegated == target)
    }

    /// Assigns a call to a kernel and returns its results. `n_inputs` is the method's number of
    /// inputs. Results of kernels are numbered after them.
    ///
    /// # Errors
    /// Returns `reason` if the call cannot fall back or is not allowed to.
    pub(crate) fn call(
        &mut self,
        lower: &mut Lower,
        call: &Call,
        id: u32,
        n_inputs: usize,
        reason: Refuse,
    ) -> Result<Vec<Item>, Refuse> {
        if !self.allowed || self.open_chains > 0 {
            return Err(reason);
        }
        let first = n_inputs as u32 + self.calls.iter().map(|c| c.results.len() as u32).sum::<u32>();
        let fallback = FallbackCall::new(lower, call, id, first, reason)?;
        let items = fallback.items(call);
        self.calls.push(fallback);
        Ok(items)
    }
}

impl FallbackCall {
    /// Creates the kernel call for a call without nodes. Its results are the graph's inputs from
    /// number `first` on.
    ///
    /// # Errors
    /// Returns `reason` if there is no kernel for it or its arguments cannot be passed.
    fn new(lower: &mut Lower, call: &Call, id: u32, first: u32, reason: Refuse) -> Result<FallbackCall, Refuse> {
        let Some(kernel) = kernel_for(&call.target, &dtypes(lower, call)).filter(|k| k.results() == call.outputs.len()) else {
            return Err(reason);
        };
        let Some(args) = kernel.params().map(|p| argument(lower, call, p)).collect::<Option<Vec<_>>>() else { return Err(reason) };
        bound_sizes(lower, call, &args);
        let mut results = Vec::new();
        for (i, out) in call.outputs.iter().enumerate() {
            let spec = Spec { dtype: out.dtype, dims: out.dims.iter().cloned().collect() };
            results.push(lower.slot(spec, Origin::Input(first + i as u32)));
        }
        Ok(FallbackCall { kernel, args, results, call: id })
    }

    /// The results in the form of the call's outputs.
    fn items(&self, call: &Call) -> Vec<Item> {
        let used = |i: usize| call.outputs.get(i).is_some_and(|o| o.used);
        self.results.iter().enumerate().map(|(i, t)| if used(i) { Item::Tensor(*t) } else { Item::None }).collect()
    }

    /// Slots that must hold a value before the kernel runs.
    pub(crate) fn reads(&self) -> Vec<Slot> {
        self.args.iter().flat_map(KernelArg::slots).collect()
    }
}

/// Element types of a call's tensors and results.
fn dtypes(lower: &Lower, call: &Call) -> Vec<DType> {
    let results = call.outputs.iter().map(|out| out.dtype);
    results.chain(call.reads().map(|t| lower.spec(t).dtype)).collect()
}

/// Bounds data-dependent sizes that the program leaves unbounded. The bound is the number of
/// elements of the first operand. Sizes of operands keep their bounds. `bincount` is excluded,
/// because its length depends on the largest value.
fn bound_sizes(lower: &mut Lower, call: &Call, args: &[KernelArg]) {
    if call.target == "aten.bincount.default" {
        return;
    }
    let Some(KernelArg::Tensor(first)) = args.first() else { return };
    let bounds: Vec<i64> = lower.spec(*first).dims.iter().map(|d| lower.graph().bounds(d).1).collect();
    let Some(most) = bounds.into_iter().try_fold(1i64, |n, d| n.checked_mul(d)) else { return };
    let reads = call.reads().flat_map(|t| lower.spec(t).dims.iter().flat_map(Expr::symbols).collect::<Vec<_>>());
    let known: Vec<Symbol> = reads.collect();
    for symbol in call.outputs.iter().flat_map(|o| &o.dims).filter_map(Expr::as_symbol).filter(|s| !known.contains(s)) {
        let range = lower.graph().ranges.get(symbol).copied().unwrap_or_default();
        if range.max.is_none() {
            lower.set_range(symbol.clone(), Range { max: Some(most), ..range });
        }
    }
}

fn argument(lower: &mut Lower, call: &Call, param: Param) -> Option<KernelArg> {
    let Some(arg) = call.arg(param.name) else {
        return match (&param.default, call.args.iter().any(|(n, _)| n == param.name)) {
            (Some(default), _) => Some(default_arg(default, param.ty)),
            // The argument is absent and the kernel has no default.
            (None, true) => Some(KernelArg::Value(EValue::None)),
            (None, false) => None,
        };
    };
    let mut size = |e: &Expr| match e.as_int() {
        Some(v) => Some(Size::Known(v)),
        None => lower.size_slot(e).ok().map(Size::Slot),
    };
    let takes_tensor = *param.ty == Type::Tensor;
    Some(match arg {
        Arg::Tensor(t) => KernelArg::Tensor(*t),
        Arg::Tensors(list) if param.ty.has_optional_items() => KernelArg::OptionalTensors(list.clone()),
        Arg::Tensors(list) => KernelArg::Tensors(list.iter().copied().collect::<Option<Vec<_>>>()?),
        Arg::Int(Expr::Int(v)) if takes_tensor => KernelArg::Tensor(number(lower, call, *v as f64)?),
        Arg::Float(v) if takes_tensor => KernelArg::Tensor(number(lower, call, *v)?),
        Arg::Int(_) if takes_tensor => return None,
        Arg::Int(e) => KernelArg::Size(size(e)?),
        Arg::Ints(list) => KernelArg::Sizes(list.iter().map(size).collect::<Option<Vec<_>>>()?),
        Arg::Bool(b) => KernelArg::Value(EValue::Bool(*b)),
        Arg::Float(v) => KernelArg::Value(EValue::Double(*v)),
        Arg::Floats(list) => KernelArg::Value(EValue::DoubleList(list.clone())),
        Arg::Str(s) => KernelArg::Value(EValue::String(s.clone())),
        Arg::DType(d) => KernelArg::Value(EValue::Int(d.code().into())),
        Arg::Complex(..) => return None,
        Arg::None | Arg::Opaque(_) => KernelArg::Value(EValue::None),
    })
}

/// Converts a number to a tensor of the type that promotion with the call's first tensor gives.
fn number(lower: &mut Lower, call: &Call, value: f64) -> Option<Tid> {
    let beside = call.args.iter().find_map(|(_, a)| if let Arg::Tensor(t) = a { Some(lower.spec(*t).dtype) } else { None });
    let own = if value.fract() == 0.0 { DType::I64 } else { DType::F32 };
    let dtype = beside.filter(|d| d.is_float() || own == DType::I64).unwrap_or(own);
    let tensor = Tensor::from_slice(&[value], &[]).and_then(|t| cast(&t, dtype)).ok()?;
    let expr = ConstExpr::Literal(tensor.bytes().clone());
    Some(lower.constant(Constant { name: format!("_scalar_{value}_{dtype}"), dtype, shape: Shape::new(), expr }))
}

/// Converts a default value to an argument.
fn default_arg(default: &Literal, ty: &Type) -> KernelArg {
    let sizes = |list: &[i64]| KernelArg::Sizes(list.iter().map(|&v| Size::Known(v)).collect());
    match (default, ty.required()) {
        (Literal::Ints(list), _) => sizes(list),
        (Literal::Int(v), Type::List(_, Some(length))) => sizes(&vec![*v; *length]),
        (Literal::Int(v), _) => KernelArg::Value(EValue::Int(*v)),
        (Literal::None, _) => KernelArg::Value(EValue::None),
        (Literal::Bool(b), _) => KernelArg::Value(EValue::Bool(*b)),
        (Literal::Float(v), _) => KernelArg::Value(EValue::Double(*v)),
        (Literal::Str(s), _) => KernelArg::Value(EValue::String((*s).to_owned())),
    }
}
