//! A call that no graph computes: its arguments by name.

use flambeau_lower::{Arg, RuleRow};
use flambeau_tensor::{Expr, Tensor, normalize_axis};

use super::Lowering;
use crate::OperatorError;

/// Operators that only move elements: they run as graphs on the same bits as integers.
const MOVES: [&str; 24] = [
    "_unsafe_view",
    "alias_copy",
    "cat",
    "clone",
    "expand_copy",
    "flip",
    "gather",
    "index",
    "index_select",
    "permute_copy",
    "repeat",
    "roll",
    "select_copy",
    "slice_copy",
    "split_copy",
    "split_with_sizes_copy",
    "squeeze_copy",
    "stack",
    "t_copy",
    "transpose_copy",
    "unbind_copy",
    "unsqueeze_copy",
    "view_copy",
    "where",
];

/// Whether an operator only moves elements.
pub(super) fn moves(row: &RuleRow) -> bool {
    MOVES.contains(&row.operator.schema().name)
}

/// A call's arguments by the names that the operator gives them.
pub(super) struct Call<'c> {
    pub(super) lowering: Lowering,
    pub(super) args: &'c [Arg],
    pub(super) tensors: &'c [Tensor],
}

impl Call<'_> {
    /// The operator's name without namespace and overload.
    pub(super) fn name(&self) -> &'static str {
        self.lowering.row.operator.schema().name
    }

    pub(super) fn arg(&self, name: &str) -> Option<&Arg> {
        let at = self.lowering.schema.operands().position(|param| param.name == name)?;
        self.args.get(at).filter(|a| **a != Arg::None)
    }

    pub(super) fn tensor(&self, name: &'static str) -> Result<&Tensor, OperatorError> {
        let Some(Arg::Tensor(t)) = self.arg(name) else { return Err(OperatorError::NotTensor(name)) };
        self.tensors.get(t.0 as usize).ok_or(OperatorError::NotTensor(name))
    }

    pub(super) fn number(&self, name: &'static str) -> Result<f64, OperatorError> {
        match self.arg(name) {
            Some(Arg::Int(Expr::Int(v))) => Ok(*v as f64),
            Some(Arg::Float(v)) => Ok(*v),
            Some(Arg::Bool(b)) => Ok(f64::from(u8::from(*b))),
            _ => Err(OperatorError::NotNumber(name)),
        }
    }

    pub(super) fn flag(&self, name: &str) -> bool {
        matches!(self.arg(name), Some(Arg::Bool(true)))
    }

    /// The axes that `dim` names, if it names any.
    pub(super) fn listed_axes(&self, rank: usize) -> Result<Vec<usize>, OperatorError> {
        let listed: Vec<i64> = match self.arg("dim") {
            Some(Arg::Int(e)) => e.as_int().into_iter().collect(),
            Some(Arg::Ints(list)) => list.iter().filter_map(Expr::as_int).collect(),
            _ => Vec::new(),
        };
        listed.iter().map(|&axis| normalize_axis(axis, rank).ok_or(OperatorError::Axis { axis, rank })).collect()
    }

    /// The axes that `dim` names; all if it names none.
    pub(super) fn axes(&self, rank: usize) -> Result<Vec<usize>, OperatorError> {
        let listed = if rank == 0 { Vec::new() } else { self.listed_axes(rank)? };
        Ok(if listed.is_empty() { (0..rank).collect() } else { listed })
    }
}

#[cfg(test)]
impl<'c> Call<'c> {
    /// A call of an operator that has a rule.
    pub(super) fn of(target: &str, args: &'c [Arg], tensors: &'c [Tensor]) -> Call<'c> {
        let row = flambeau_lower::rule_for(target).expect("the operator has a rule");
        Call { lowering: Lowering { schema: row.operator.schema(), row }, args, tensors }
    }
}
