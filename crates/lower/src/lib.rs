//! From PyTorch calls to MLX nodes.
//!
//! A [`Lower`] grows an [`SsaGraph`]: nodes in single-assignment form over virtual slots, with constants that are expressions ([`ConstExpr`]), not bytes.
//! [`Lower::call`] looks a call's target up in the rule table and lets the rule emit nodes. A rule that refuses leaves nothing
//! behind, so lowering a call is also how to ask whether it can be lowered. No weight is read.
//!
//! [`fuse`] then rewrites the graph: each fusion is a pattern over the nodes' meaning, not over the spelling of the program that
//! led to them.

#![forbid(unsafe_code)]

mod call;
mod constant;
mod formula;
mod fusions;
mod lower;
mod promotion;
mod refusals;
mod rules;
mod simplify;
mod sizes;
mod ssa;

pub use call::{Arg, Call, Item, OutMeta, Refuse};
pub use constant::{ConstExpr, Constant, Fit, QuantPart, Scheme};
pub use formula::{Formula, FormulaError};
pub use fusions::{FUSIONS, Fusion, drop_unread, fuse};
pub use lower::Lower;
pub use promotion::{Operand, result_type};
pub use refusals::{Refusal, refusal, refusals};
pub use rules::{Loop, Rule, RuleRow, has_complex_rule, rule_for, rule_rows};
pub use ssa::{Origin, Range, SsaGraph, SsaNode, TensorInfo};
