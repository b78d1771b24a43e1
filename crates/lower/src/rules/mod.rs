//! The rule table: one row per PyTorch operator, in files by family.
//!
//! A row names the operator and its rule. The operator's schema names its parameters; an operator
//! without a schema fails the build. Every rule
//! - reads metadata only;
//! - emits nodes with PyTorch's result for every input that the metadata admits, or refuses the
//!   call;
//! - never emits a node that a simpler node could replace;
//! - leaves storage layout to the engines.

mod activation;
mod arithmetic;
mod arrange;
mod attention;
mod bessel;
mod combine;
pub(crate) mod complex;
mod conv;
mod create;
mod decomposed;
mod delta;
mod diagonal;
mod distance;
mod division;
mod elementwise;
mod empty;
mod float8;
mod fractional;
mod gamma;
mod geometry;
mod grid;
mod histogram;
mod index;
mod integer_conv;
mod linalg;
mod loss;
mod margin;
mod moe;
mod norm;
mod normal;
mod ops;
mod packed;
mod pad;
mod pool;
mod product;
mod put;
mod qparams;
mod quantile;
mod quantized;
mod random;
mod recurrent;
mod reduce;
mod refused;
mod resize;
mod sample;
mod scalar;
mod scan;
mod scatter;
mod segment;
mod shape;
mod sort;
mod special;
mod statistics;
mod window;

use std::{collections::HashMap, sync::LazyLock};

use flambeau_aten::Operator;

pub use self::{complex::has_complex_rule, scan::Loop};
use crate::{Call, Item, Lower, Refuse};

/// Emits nodes for a call and returns its results.
pub type Rule = fn(&mut Lower, &Call) -> Result<Vec<Item>, Refuse>;

/// The rule of one operator.
#[derive(Clone, Copy, Debug)]
pub struct RuleRow {
    /// Target without the `torch.ops.` prefix.
    pub target: &'static str,
    pub operator: Operator,
    pub rule: Rule,
}

/// Builds a row.
const fn row(target: &'static str, rule: Rule) -> RuleRow {
    RuleRow { target, operator: Operator::named(target), rule }
}

const FAMILIES: &[&[RuleRow]] = &[
    activation::ROWS,
    arithmetic::ROWS,
    distance::ROWS,
    division::ROWS,
    arrange::ROWS,
    attention::ROWS,
    bessel::ROWS,
    combine::ROWS,
    conv::ROWS,
    create::ROWS,
    decomposed::ROWS,
    delta::ROWS,
    diagonal::ROWS,
    elementwise::ROWS,
    fractional::ROWS,
    gamma::ROWS,
    grid::ROWS,
    histogram::ROWS,
    index::ROWS,
    linalg::ROWS,
    loss::ROWS,
    margin::ROWS,
    moe::ROWS,
    norm::ROWS,
    normal::ROWS,
    packed::ROWS,
    pad::ROWS,
    pool::ROWS,
    product::ROWS,
    put::ROWS,
    qparams::ROWS,
    quantile::ROWS,
    quantized::ROWS,
    random::ROWS,
    recurrent::ROWS,
    reduce::ROWS,
    refused::ROWS,
    resize::ROWS,
    sample::ROWS,
    scalar::ROWS,
    scan::ROWS,
    scatter::ROWS,
    segment::ROWS,
    shape::ROWS,
    sort::ROWS,
    special::ROWS,
    statistics::ROWS,
    window::ROWS,
];

/// All rows, family by family.
pub fn rule_rows() -> impl Iterator<Item = &'static RuleRow> {
    FAMILIES.iter().flat_map(|rows| rows.iter())
}

/// The row of a target.
pub fn rule_for(target: &str) -> Option<&'static RuleRow> {
    static BY_TARGET: LazyLock<HashMap<&str, &RuleRow>> = LazyLock::new(|| rule_rows().map(|row| (row.target, row)).collect());
    BY_TARGET.get(target).copied()
}

/// Runs a rule that needs an axis; rank-0 tensors are passed as vectors of one element.
fn lifted(cx: &mut Lower, call: &Call, tensors: &[&str], rule: Rule) -> Result<Vec<Item>, Refuse> {
    let flat = |cx: &Lower, t| cx.spec(t).rank() == 0;
    let named: Vec<_> = tensors.iter().filter_map(|p| Some((*p, call.tensor_opt(p).ok().flatten()?))).collect();
    if !named.iter().any(|&(_, t)| flat(cx, t)) {
        return rule(cx, call);
    }
    let mut raised = call.clone();
    for (param, t) in named {
        if flat(cx, t) {
            let t = cx.unsqueeze(t, 0)?;
            raised.args.iter_mut().filter(|(name, _)| name == param).for_each(|(_, arg)| *arg = crate::Arg::Tensor(t));
        }
    }
    raised.outputs.iter_mut().filter(|o| o.dims.is_empty()).for_each(|o| o.dims.push(1.into()));
    let mut items = rule(cx, &raised)?;
    for (item, out) in items.iter_mut().zip(&call.outputs) {
        if let Item::Tensor(t) = item {
            *t = cx.reshape(*t, &out.dims)?;
        }
    }
    Ok(items)
}

/// Wraps one tensor as a rule's results.
fn one(t: flambeau_ir::Tid) -> Result<Vec<Item>, Refuse> {
    Ok(vec![Item::Tensor(t)])
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod table {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_target_has_one_row() {
        let mut seen = HashSet::new();
        for row in rule_rows() {
            assert!(seen.insert(row.target), "{} has two rows", row.target);
        }
    }
}
