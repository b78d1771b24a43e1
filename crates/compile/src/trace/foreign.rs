//! Calls on element types that graphs lack: 64-bit and 8-bit floats.

use flambeau_host::Argument;
use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, ConstExpr, Constant, Item, OutMeta, Refuse};
use flambeau_tensor::{AlignedBytes, DType, Expr, Shape, Tensor, cast};

use super::Trace;
use crate::report::Precision;

/// Largest result that is computed at compile time, in bytes.
const MAX_BYTES: usize = 1 << 20;

fn is_float8(dtype: DType) -> bool {
    matches!(dtype, DType::F8E4M3 | DType::F8E5M2)
}

/// Whether a call only changes the element type.
fn converts(call: &Call) -> bool {
    call.target.starts_with("aten.to.") || call.target == "aten._to_copy.default"
}

/// Rewrites a call that keeps the element order of a 64-bit tensor as a reshape with explicit
/// sizes.
fn reshaped(call: &Call) -> Option<Call> {
    const RESHAPES: [&str; 6] = ["flatten", "ravel", "reshape_as", "squeeze", "unflatten", "view_as"];
    let out = call.outputs.first().filter(|out| out.dtype == DType::F64)?;
    let name = flambeau_aten::schema(&call.target)?.name;
    let own = call.args.iter().find(|(name, _)| name == "self")?.clone();
    let args = vec![own, ("size".to_owned(), Arg::Ints(out.dims.clone()))];
    RESHAPES.contains(&name).then(|| Call { target: "aten.view_copy.default".to_owned(), args, outputs: call.outputs.clone() })
}

impl Trace<'_> {
    /// Keeps 8-bit floats computed at run time in f16, which represents all their values. Returns
    /// the results of a conversion to 8-bit floats, or `None` if the call can be lowered unchanged.
    pub(super) fn float8(&mut self, call: &mut Call) -> Option<Result<Vec<Item>, Refuse>> {
        let dtype = call.outputs.iter().map(|out| out.dtype).find(|d| is_float8(*d))?;
        let operands: Vec<Tid> =
            call.args.iter().filter_map(|(_, a)| if let Arg::Tensor(t) = a { Some(*t) } else { None }).collect();
        if operands.iter().all(|t| self.lower.graph().constant(*t).is_some()) {
            return None;
        }
        if let (true, Ok(x)) = (converts(call), call.tensor("self")) {
            return Some(self.lower.to_float8(x, dtype).map(|t| vec![Item::Tensor(t)]));
        }
        call.outputs.iter_mut().filter(|out| is_float8(out.dtype)).for_each(|out| out.dtype = DType::F16);
        None
    }

    /// Rewrites the call into a form that needs fewer kernels, or returns `None` if nothing
    /// changes. Reshapes state their sizes. Operands of rank 0 in 64-bit floats take the type of
    /// the other operands, as numbers do in arithmetic.
    pub(super) fn narrowed(&mut self, call: &Call, id: u32) -> Result<Option<Call>, Refuse> {
        if let Some(call) = reshaped(call) {
            return Ok(Some(call));
        }
        if call.outputs.iter().any(|out| out.used && out.dtype == DType::F64) || converts(call) {
            return Ok(None);
        }
        let is_wide = |trace: &Self, t: Tid| trace.lower.spec(t).dtype == DType::F64;
        let operands: Vec<Tid> =
            call.args.iter().filter_map(|(_, a)| if let Arg::Tensor(t) = a { Some(*t) } else { None }).collect();
        let beside = operands.iter().copied().find(|t| !is_wide(self, *t) && self.lower.spec(*t).dtype != DType::Bool);
        let Some(beside) = beside.map(|t| self.lower.spec(t).dtype) else { return Ok(None) };
        let dtype = if beside.is_float() { beside } else { DType::F32 };
        let mut narrow = call.clone();
        let mut changed = false;
        for (_, arg) in &mut narrow.args {
            let Arg::Tensor(t) = arg else { continue };
            if is_wide(self, *t) && self.lower.spec(*t).rank() == 0 {
                *t = self.converted(*t, dtype, id)?;
                changed = true;
            }
        }
        // PyTorch computes with a float tensor in that tensor's type, and with an integer one in 64
        // bits.
        if changed && !beside.is_float() {
            self.precision = Some(Precision { asked: DType::F64, used: dtype });
        }
        Ok(changed.then_some(narrow))
    }

    /// Computes a call on 64-bit floats in f32, for calls without a kernel. The report names the
    /// type. Returns `None` if the call has no such floats, or cannot be computed in f32 either.
    pub(super) fn in_f32(&mut self, call: &Call, id: u32) -> Option<Result<Vec<Item>, Refuse>> {
        let is_wide = |trace: &Self, t: Tid| trace.lower.spec(t).dtype == DType::F64;
        if call.outputs.iter().all(|out| out.dtype != DType::F64) && !call.reads().any(|t| is_wide(self, t)) {
            return None;
        }
        let mut narrow = call.clone();
        for t in narrow.reads_mut() {
            if is_wide(self, *t) {
                *t = self.converted(*t, DType::F32, id).ok()?;
            }
        }
        for (_, arg) in &mut narrow.args {
            if *arg == Arg::DType(DType::F64) {
                *arg = Arg::DType(DType::F32);
            }
        }
        narrow.outputs.iter_mut().filter(|out| out.dtype == DType::F64).for_each(|out| out.dtype = DType::F32);
        let mut items = self.lower_call(&narrow, id).ok()?;
        let mut outputs = call.outputs.iter();
        for item in &mut items {
            let made: Vec<&mut Tid> = match item {
                Item::Tensor(t) => vec![t],
                Item::Tensors(list) => list.iter_mut().collect(),
                Item::None => {
                    outputs.next();
                    continue;
                }
                Item::Int(_) => continue,
            };
            for t in made {
                if outputs.next().is_some_and(|out| out.used && out.dtype == DType::F64) {
                    *t = self.converted(*t, DType::F64, id).ok()?;
                }
            }
        }
        self.precision = Some(Precision { asked: DType::F64, used: DType::F32 });
        Some(Ok(items))
    }

    /// Computes at compile time a call that makes 64-bit floats of constants. Returns `None` for
    /// any other call.
    pub(super) fn computed(&mut self, call: &Call) -> Option<Vec<Item>> {
        if call.outputs.iter().all(|out| out.dtype != DType::F64) {
            return None;
        }
        let schema = flambeau_aten::schema(&call.target)?;
        let schema = schema.copying().unwrap_or(schema);
        let args = schema.operands().map(|param| self.host_argument(call, param.name)).collect::<Option<Vec<_>>>()?;
        let results: Vec<DType> = call.outputs.iter().map(|out| out.dtype).collect();
        let kernel = flambeau_host::kernel_for(schema, &results)?;
        let tensors = kernel.run(&flambeau_host::Call { schema, args: &args, results: &results }).ok()?;
        let known = |(tensor, out): (&Tensor, &OutMeta)| {
            let sizes: Option<Vec<usize>> = out.dims.iter().map(|d| usize::try_from(d.as_int()?).ok()).collect();
            sizes.as_deref() == Some(tensor.shape()) && tensor.bytes().len() <= MAX_BYTES
        };
        if tensors.len() != results.len() || !tensors.iter().zip(&call.outputs).all(known) {
            return None;
        }
        tensors.iter().zip(results).map(|(tensor, dtype)| Some(Item::Tensor(self.literal(&cast(tensor, dtype).ok()?)))).collect()
    }

    fn literal(&mut self, tensor: &Tensor) -> Tid {
        let shape = Shape::from_slice(tensor.shape());
        let expr = ConstExpr::Literal(AlignedBytes::copy_of(tensor.bytes()).into_bytes());
        self.lower.constant(Constant { name: "_computed".to_owned(), dtype: tensor.dtype(), shape, expr })
    }

    /// An argument in the form that kernels take, if it is known at compile time.
    fn host_argument(&self, call: &Call, name: &str) -> Option<Argument> {
        Some(match call.arg(name) {
            None => Argument::None,
            Some(Arg::Tensor(t)) => {
                let constant = self.lower.graph().constant(*t)?;
                let ConstExpr::Literal(bytes) = &constant.expr else { return None };
                Argument::Tensor(Tensor::new(constant.dtype, &constant.shape, bytes.clone()).ok()?.aligned())
            }
            Some(Arg::Bool(b)) => Argument::Bool(*b),
            Some(Arg::Int(e)) => Argument::Int(e.as_int()?),
            Some(Arg::Ints(list)) => Argument::Ints(list.iter().map(Expr::as_int).collect::<Option<_>>()?),
            Some(Arg::Float(v)) => Argument::Float(*v),
            Some(Arg::Floats(list)) => Argument::Floats(list.clone()),
            Some(Arg::Str(s)) => Argument::Str(s.clone()),
            Some(Arg::DType(d)) => Argument::Int(d.code().into()),
            Some(Arg::Opaque(_) | Arg::None) => Argument::None,
            Some(Arg::Tensors(_) | Arg::Complex(..)) => return None,
        })
    }

    /// Converts the tensor to another element type.
    pub(super) fn converted(&mut self, t: Tid, dtype: DType, id: u32) -> Result<Tid, Refuse> {
        let dims = self.lower.spec(t).dims.to_vec();
        let args = vec![("self".to_owned(), Arg::Tensor(t)), ("dtype".to_owned(), Arg::DType(dtype))];
        let outputs = vec![OutMeta { dtype, dims, used: true }];
        match self.lower_call(&Call { target: "aten._to_copy.default".to_owned(), args, outputs }, id)?.first() {
            Some(Item::Tensor(t)) => Ok(*t),
            _ => Err(Refuse::DType(dtype)),
        }
    }
}
