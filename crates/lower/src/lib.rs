//! Lowers PyTorch calls to MLX nodes.
//!
//! [`Lower`] builds an [`SsaGraph`]: nodes in single-assignment form over virtual slots. Its
//! constants are expressions ([`ConstExpr`]) instead of bytes. [`Lower::call`] finds the rule for a
//! call's target and lets the rule emit nodes. A refused call leaves the graph unchanged, so a
//! trial call tells whether a call can be lowered. Lowering reads no weights.
//!
//! [`fuse`] then rewrites the graph. Each fusion matches nodes by meaning, whatever operators the
//! program used.

#![forbid(unsafe_code)]

mod call;
mod constant;
mod dispatch;
mod emit;
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
