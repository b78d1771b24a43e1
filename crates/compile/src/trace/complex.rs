//! Complex tensors. Delegates use pairs of real numbers, while kernels and callers use complex
//! elements. A kernel call converts between the two forms without copying.

use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, ConstExpr, Constant, Item, Origin, OutMeta, Refuse, has_complex_rule, refusal};
use flambeau_tensor::{DType, Expr};

use super::Trace;

impl Trace<'_> {
    fn is_complex_tensor(&self, t: Tid) -> bool {
        self.lower.spec(t).dtype.part().is_some()
    }

    /// Whether a call reads or returns complex tensors.
    pub(super) fn is_complex(&self, call: &Call) -> bool {
        call.reads().any(|t| self.is_complex_tensor(t)) || call.outputs.iter().any(|out| out.dtype.part().is_some())
    }

    /// Lowers a complex call to nodes on pairs, or assigns it to a kernel.
    pub(super) fn complex_call(&mut self, call: &Call, id: u32) -> Result<Vec<Item>, Refuse> {
        let before = self.fallback.calls.len();
        let no_form = || Refuse::Unsupported("nodes have no form of it for complex numbers".to_owned());
        let reason = match has_complex_rule(&call.target) && !self.fallback.is_forced(&call.target) {
            true => match self.on_pairs(call, id) {
                Err(reason) => reason,
                items => return items,
            },
            false => refusal(&call.target).map_or_else(no_form, Refuse::Kind),
        };
        self.fallback.calls.truncate(before);
        let mut outside = call.clone();
        self.replace(&mut outside, |trace, t| trace.whole(t, id))?;
        let n_inputs = self.interface.inputs.len();
        self.fallback.call(&mut self.lower, &outside, id, n_inputs, reason)
    }

    fn on_pairs(&mut self, call: &Call, id: u32) -> Result<Vec<Item>, Refuse> {
        let mut operands = call.clone();
        self.replace(&mut operands, |trace, t| trace.paired(t, id))?;
        self.lower.call(&operands, id)
    }

    /// Replaces the tensors that a call reads by other slots.
    fn replace(&mut self, call: &mut Call, with: impl Fn(&mut Self, Tid) -> Result<Tid, Refuse>) -> Result<(), Refuse> {
        call.reads_mut().try_for_each(|t| with(self, *t).map(|new| *t = new))
    }

    /// A slot with the same complex tensor as a pair that nodes can read.
    fn paired(&mut self, t: Tid, id: u32) -> Result<Tid, Refuse> {
        let Some(part) = self.lower.spec(t).dtype.part().filter(|_| self.lower.pair(t).is_err()) else { return Ok(t) };
        if let Some(constant) = self.lower.graph().constant(t).cloned() {
            let shape = constant.shape.iter().copied().chain([2]).collect();
            let expr = ConstExpr::Reinterpret(constant.clone());
            let pair = Constant { name: format!("{}_parts", constant.name), dtype: part, shape, expr };
            let pair = self.lower.constant(pair);
            self.lower.set_pair(t, pair);
            return Ok(t);
        }
        let dims: Vec<Expr> = self.lower.spec(t).dims.iter().cloned().chain([Expr::Int(2)]).collect();
        let pair = self.kernel_of("aten.view_as_real_copy.default", t, part, dims, id)?;
        Ok(self.lower.complex(pair))
    }

    /// A slot with complex elements, which kernels and callers can read.
    pub(super) fn whole(&mut self, t: Tid, id: u32) -> Result<Tid, Refuse> {
        let is_made = matches!(self.lower.graph().tensors[t.0 as usize].origin, Origin::Node);
        if !self.is_complex_tensor(t) || !is_made {
            return Ok(t);
        }
        let (pair, dtype, dims) = (self.lower.pair(t)?, self.lower.spec(t).dtype, self.lower.spec(t).dims.to_vec());
        let whole = self.kernel_of("aten.view_as_complex_copy.default", pair, dtype, dims, id)?;
        self.lower.set_pair(whole, pair);
        Ok(whole)
    }

    /// Calls a kernel with one operand and returns its result.
    fn kernel_of(&mut self, target: &str, t: Tid, dtype: DType, dims: Vec<Expr>, id: u32) -> Result<Tid, Refuse> {
        let outputs = vec![OutMeta { dtype, dims, used: true }];
        let call = Call { target: target.to_owned(), args: vec![("self".to_owned(), Arg::Tensor(t))], outputs };
        let reason = Refuse::Unsupported("complex numbers inside of control flow, or with kernels forbidden".to_owned());
        let n_inputs = self.interface.inputs.len();
        match self.fallback.call(&mut self.lower, &call, id, n_inputs, reason)?.first() {
            Some(Item::Tensor(t)) => Ok(*t),
            _ => Err(Refuse::Missing("self".to_owned())),
        }
    }
}
