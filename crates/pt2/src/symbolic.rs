//! Symbolic scalars: sympy's constructor syntax (`Add(Symbol('s77', integer=True), Integer(1))`)
//! and Python's (`s77 + 1`).
//!
//! Integers become [`Expr`]. A float computation that equals an integer division becomes that
//! division. Any other float computation becomes a rounded [`Real`]. All other expressions become
//! opaque atoms with their text, which can be compared and printed, but not evaluated.

mod eval;
mod syntax;

use std::{fmt, sync::Arc};

use flambeau_tensor::{Expr, Real};

use crate::{
    Error, Limited, Result,
    limits::{MAX_EXPR_BYTES, MAX_EXPR_DEPTH, MAX_EXPR_NODES},
};

/// Reason why a text is not a symbolic expression.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExpressionFault {
    #[error("unexpected text after the expression")]
    TrailingText,
    #[error("expected `{0}`")]
    Token(&'static str),
    #[error("expected {0}")]
    Expected(&'static str),
    #[error("quote without end")]
    UnterminatedQuote,
    #[error("malformed number")]
    Number,
    #[error("nested more than {MAX_EXPR_DEPTH} deep")]
    Depth,
    #[error("too many operands")]
    Operands,
    /// `Symbol`, `Integer` or `Float` with an argument other than its text.
    #[error("malformed `{0}`")]
    Malformed(String),
    #[error("`{0}` takes no text")]
    TextArgument(String),
    #[error("`{head}` takes no `{key}`")]
    Keyword { head: String, key: String },
    /// An unknown function, or a function with a wrong number of operands.
    #[error("`{head}` with {operands} operands is not known")]
    Unknown { head: String, operands: usize },
}

/// A relation between integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
}

/// A boolean that may depend on symbols.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SymBool {
    Known(bool),
    Compare(Comparison, Expr, Expr),
    And(Vec<SymBool>),
    Or(Vec<SymBool>),
    Not(Box<SymBool>),
    /// An inexpressible condition, as text.
    Opaque(Arc<str>),
}

impl SymBool {
    /// The value under an assignment of the symbols, if it is determined.
    pub fn eval(&self, value_of: &dyn Fn(&flambeau_tensor::Symbol) -> Option<i64>) -> Option<bool> {
        match self {
            SymBool::Known(value) => Some(*value),
            SymBool::Compare(op, a, b) => Some(op.holds(a.eval(value_of)?, b.eval(value_of)?)),
            SymBool::And(all) => all.iter().try_fold(true, |acc, c| Some(acc & c.eval(value_of)?)),
            SymBool::Or(any) => any.iter().try_fold(false, |acc, c| Some(acc | c.eval(value_of)?)),
            SymBool::Not(c) => c.eval(value_of).map(|v| !v),
            SymBool::Opaque(_) => None,
        }
    }
}

impl Comparison {
    /// Whether the relation holds between `a` and `b`.
    pub fn holds(self, a: i64, b: i64) -> bool {
        match self {
            Comparison::Eq => a == b,
            Comparison::Ne => a != b,
            Comparison::Lt => a < b,
            Comparison::Le => a <= b,
            Comparison::Gt => a > b,
            Comparison::Ge => a >= b,
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Comparison::Eq => "==",
            Comparison::Ne => "!=",
            Comparison::Lt => "<",
            Comparison::Le => "<=",
            Comparison::Gt => ">",
            Comparison::Ge => ">=",
        })
    }
}

impl fmt::Display for SymBool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, items: &[SymBool], by: &str| {
            items.iter().enumerate().try_for_each(|(i, item)| write!(f, "{}({item})", if i > 0 { by } else { "" }))
        };
        match self {
            SymBool::Known(value) => write!(f, "{value}"),
            SymBool::Compare(op, a, b) => write!(f, "{a} {op} {b}"),
            SymBool::And(all) => list(f, all, " & "),
            SymBool::Or(any) => list(f, any, " | "),
            SymBool::Not(c) => write!(f, "~({c})"),
            SymBool::Opaque(text) => f.write_str(text),
        }
    }
}

/// A float that may depend on symbols.
#[derive(Clone, Debug, PartialEq)]
pub enum SymFloat {
    Known(f64),
    /// An expression as text.
    Expr(Arc<str>),
}

/// Parses an integer expression.
///
/// # Errors
/// [`Error::Expression`] with the byte offset of the fault, [`Error::Limit`] if it is too long.
pub fn parse_int(text: &str) -> Result<Expr> {
    let value = parse(text)?;
    Ok(value.into_int(text))
}

/// Parses a real number. Returns `None` if it does not consist of sizes and arithmetic.
///
/// # Errors
/// As [`parse_int`].
pub fn parse_real(text: &str) -> Result<Option<Real>> {
    Ok(parse(text)?.real())
}

/// Parses a boolean expression.
///
/// # Errors
/// As [`parse_int`].
pub fn parse_bool(text: &str) -> Result<SymBool> {
    let value = parse(text)?;
    Ok(value.into_bool(text))
}

fn parse(text: &str) -> Result<eval::SymValue> {
    if text.len() > MAX_EXPR_BYTES {
        return Err(Error::limit(Limited::ExpressionBytes, text.len(), MAX_EXPR_BYTES));
    }
    syntax::Parser::new(text).parse().map_err(|syntax::Fault { offset, fault }| {
        if fault == ExpressionFault::Operands {
            return Error::limit(Limited::ExpressionOperands, MAX_EXPR_NODES + 1, MAX_EXPR_NODES);
        }
        let shown = text.char_indices().nth(200).map_or(text, |(end, _)| &text[..end]);
        Error::Expression { offset, fault, text: shown.to_owned() }
    })
}

#[cfg(test)]
mod tests;
