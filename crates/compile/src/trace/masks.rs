//! Writes by masks that no node expresses: a kernel finds the positions, and nodes write there.

use flambeau_ir::Tid;
use flambeau_lower::{Arg, Call, Item, OutMeta, Range, Refuse};
use flambeau_tensor::{DType, Expr, Symbol};

use super::Trace;

impl Trace<'_> {
    /// The same write with positions in place of masks. `None` if the call is no write by masks, or
    /// no kernel may run.
    pub(super) fn by_positions(&mut self, call: &Call, id: u32) -> Option<Result<Vec<Item>, Refuse>> {
        if !matches!(&call.target[..], "aten.index_put.default" | "aten._unsafe_index_put.default") {
            return None;
        }
        let Some(Arg::Tensors(indices)) = call.arg("indices") else { return None };
        let is_mask = |trace: &Self, t: &Tid| trace.lower.spec(*t).dtype == DType::Bool;
        if !indices.iter().flatten().any(|t| is_mask(self, t)) {
            return None;
        }
        let count = Expr::symbol(Symbol::new(&format!("mask{id}")));
        let mut placed = Vec::new();
        for index in indices.clone() {
            match index {
                Some(mask) if is_mask(self, &mask) => placed.extend(self.positions(mask, &count, id)?),
                other => placed.push(other),
            }
        }
        let mut call = call.clone();
        call.args.iter_mut().filter(|(name, _)| name == "indices").for_each(|(_, arg)| *arg = Arg::Tensors(placed.clone()));
        Some(self.lower_call(&call, id))
    }

    /// The positions of a mask's true elements, one tensor of `count` elements for each axis.
    fn positions(&mut self, mask: Tid, count: &Expr, id: u32) -> Option<Vec<Option<Tid>>> {
        let spec = self.lower.spec(mask).clone();
        let most = spec.dims.iter().map(|d| self.lower.graph().bounds(d).1).try_fold(1_i64, |n, d| n.checked_mul(d));
        if let Some(symbol) = count.as_symbol() {
            self.lower.set_range(symbol.clone(), Range { min: Some(0), max: most });
        }
        let rank = spec.rank() as i64;
        let call = |target: &str, args, outputs| Call { target: target.to_owned(), args, outputs };
        let meta = |dims| OutMeta { dtype: DType::I64, dims, used: true };
        let own = vec![("self".to_owned(), Arg::Tensor(mask))];
        let found = call("aten.nonzero.default", own, vec![meta(vec![count.clone(), Expr::Int(rank)])]);
        let Some(Item::Tensor(found)) = self.lower_call(&found, id).ok()?.first().cloned() else { return None };
        let args = vec![("self".to_owned(), Arg::Tensor(found)), ("dim".to_owned(), Arg::Int(Expr::Int(1)))];
        let columns = call("aten.unbind.int", args, (0..rank).map(|_| meta(vec![count.clone()])).collect());
        match self.lower_call(&columns, id).ok()?.first() {
            Some(Item::Tensors(list)) => Some(list.iter().copied().map(Some).collect()),
            Some(Item::Tensor(t)) => Some(vec![Some(*t)]),
            _ => None,
        }
    }
}
