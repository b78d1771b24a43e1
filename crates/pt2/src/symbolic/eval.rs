//! Evaluates constructors and operators.

use std::sync::Arc;

use flambeau_tensor::{Atom, Expr, Real, Rounding, Symbol};

use super::{Comparison, ExpressionFault, SymBool};
use crate::limits::{MAX_EXPR_DEGREE, MAX_EXPR_TERMS, MAX_EXPR_WEIGHT};

/// Value of a sub-expression.
#[derive(Clone, Debug)]
pub(super) enum SymValue {
    Int(Expr),
    /// An exact quotient without rounding, such as a true division of integers.
    Ratio(Expr, Expr),
    /// A number that involves floats.
    Real(Real),
    /// A value that holds under a condition.
    Case(Box<SymValue>, SymBool),
    Bool(SymBool),
    /// Any other value, by its text.
    Opaque(Arc<str>),
}

pub(super) enum Arg<'a> {
    Value(SymValue),
    Text(&'a str),
    /// The key of an argument `key=value`. Its value has no effect.
    Keyword(&'a str),
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Infix {
    Add,
    Sub,
    Mul,
    TrueDiv,
    FloorDiv,
    Mod,
    Pow,
    Compare(Comparison),
    And,
    Or,
}

impl SymValue {
    fn opaque(text: &str) -> SymValue {
        SymValue::Opaque(text.into())
    }

    /// Evaluates a decimal literal: an integer or a float.
    pub(super) fn number(text: &str) -> Option<SymValue> {
        if let Ok(v) = text.parse() {
            return Some(SymValue::Int(Expr::Int(v)));
        }
        text.parse().ok().map(|v| float(v, text))
    }

    pub(super) fn into_int(self, text: &str) -> Expr {
        let opaque = |text: &str| Expr::atom(Atom::Opaque(text.trim().into()));
        match self {
            SymValue::Int(e) => e,
            SymValue::Ratio(num, den) => num.exact_div(&den).unwrap_or_else(|| opaque(text)),
            SymValue::Real(_) | SymValue::Case(..) | SymValue::Bool(_) => opaque(text),
            SymValue::Opaque(text) => opaque(&text),
        }
    }

    pub(super) fn into_bool(self, text: &str) -> SymBool {
        match self {
            SymValue::Bool(b) => b,
            _ => SymBool::Opaque(text.trim().into()),
        }
    }

    /// Converts the number to a real number.
    pub(super) fn real(&self) -> Option<Real> {
        match self {
            SymValue::Int(e) => Some(Real::Size(e.clone())),
            SymValue::Ratio(num, den) => Some(Real::Quotient(Arc::new([Real::Size(num.clone()), Real::Size(den.clone())]))),
            SymValue::Real(x) => Some(x.clone()),
            SymValue::Case(..) | SymValue::Bool(_) | SymValue::Opaque(_) => None,
        }
    }

    /// Numerator and denominator, if the number is exact.
    fn ratio(&self) -> Option<(Expr, Expr)> {
        match self {
            SymValue::Int(e) => Some((e.clone(), Expr::Int(1))),
            SymValue::Ratio(num, den) => Some((num.clone(), den.clone())),
            _ => None,
        }
    }
}

/// Converts `value` to a fraction over a power of two, if products with sizes stay exact in a
/// double. Else it becomes a real number, or is opaque if not finite.
fn float(value: f64, text: &str) -> SymValue {
    const DENOMINATOR: i64 = 1 << 16;
    const LARGEST: f64 = 1e9;
    let scaled = value * DENOMINATOR as f64;
    if !value.is_finite() {
        return SymValue::opaque(text);
    }
    if !(value.abs() < LARGEST && scaled.fract() == 0.0) {
        return SymValue::Real(Real::number(value));
    }
    let num = scaled as i64;
    let shift = num.trailing_zeros().min(DENOMINATOR.trailing_zeros());
    quotient(Expr::Int(num >> shift), Expr::Int(DENOMINATOR >> shift))
}

fn quotient(num: Expr, den: Expr) -> SymValue {
    match den {
        Expr::Int(1) => SymValue::Int(num),
        den => SymValue::Ratio(num, den),
    }
}

/// Evaluates a bare name.
pub(super) fn name(text: &str) -> SymValue {
    match text {
        "true" | "True" => SymValue::Bool(SymBool::Known(true)),
        "false" | "False" => SymValue::Bool(SymBool::Known(false)),
        "oo" | "int_oo" | "inf" | "nan" | "zoo" | "pi" | "E" => SymValue::opaque(text),
        _ => SymValue::Int(Expr::symbol(Symbol::new(text))),
    }
}

fn terms(e: &Expr) -> usize {
    match e {
        Expr::Int(_) => 1,
        Expr::Sum(terms) => terms.len(),
    }
}

fn degree(e: &Expr) -> usize {
    e.terms().iter().map(|(_, factors)| factors.len()).max().unwrap_or(0)
}

fn product(a: &Expr, b: &Expr) -> Option<Expr> {
    let small = terms(a).checked_mul(terms(b))? <= MAX_EXPR_TERMS && degree(a) + degree(b) <= MAX_EXPR_DEGREE;
    // Every term of one factor is multiplied by all terms of the other. Nested products would grow
    // without bound.
    let is_light = || a.weight() * terms(b) + b.weight() * terms(a) <= MAX_EXPR_WEIGHT;
    (small && is_light()).then(|| a.clone() * b.clone())
}

fn sum(a: &Expr, b: &Expr) -> Option<Expr> {
    (terms(a) + terms(b) <= MAX_EXPR_TERMS).then(|| a.clone() + b.clone())
}

/// Applies an operation to inexact numbers, as Python computes it in floats.
fn in_floats(a: &SymValue, b: &SymValue, of: fn(Arc<[Real; 2]>) -> Real) -> Option<SymValue> {
    let x = of(Arc::new([a.real()?, b.real()?]));
    (x.weight() <= MAX_EXPR_WEIGHT).then_some(SymValue::Real(x))
}

fn add(a: &SymValue, b: &SymValue) -> Option<SymValue> {
    exact_sum(a, b).or_else(|| in_floats(a, b, Real::Sum))
}

fn exact_sum(a: &SymValue, b: &SymValue) -> Option<SymValue> {
    let ((n, d), (m, e)) = (a.ratio()?, b.ratio()?);
    if d == e {
        return Some(quotient(sum(&n, &m)?, d));
    }
    // Symbolic denominators would occur several times in the result, so it would grow without
    // bound.
    let (d_int, e_int) = (Expr::Int(d.as_int()?), Expr::Int(e.as_int()?));
    Some(quotient(sum(&product(&n, &e_int)?, &product(&m, &d_int)?)?, product(&d_int, &e_int)?))
}

fn mul(a: &SymValue, b: &SymValue) -> Option<SymValue> {
    let exact = || {
        let ((n, d), (m, e)) = (a.ratio()?, b.ratio()?);
        Some(quotient(product(&n, &m)?, product(&d, &e)?))
    };
    exact().or_else(|| in_floats(a, b, Real::Product))
}

fn true_div(a: &SymValue, b: &SymValue) -> Option<SymValue> {
    let exact = || {
        let ((n, d), (m, e)) = (a.ratio()?, b.ratio()?);
        (m.as_int() != Some(0)).then_some(())?;
        Some(quotient(product(&n, &e)?, product(&d, &m)?))
    };
    exact().or_else(|| in_floats(a, b, Real::Quotient))
}

fn floor_div(a: &SymValue, b: &SymValue) -> Option<SymValue> {
    let quotient = true_div(a, b)?;
    floor(&quotient)
}

/// Rounds a number that involves floats.
fn rounded_real(v: &SymValue, rounding: Rounding) -> Option<SymValue> {
    match v {
        SymValue::Real(x) => Some(SymValue::Int(Expr::rounded(rounding, x.clone()))),
        _ => None,
    }
}

fn floor(v: &SymValue) -> Option<SymValue> {
    if let Some(rounded) = rounded_real(v, Rounding::Floor) {
        return Some(rounded);
    }
    let (num, den) = v.ratio()?;
    Some(SymValue::Int(num.floor_div(&den)))
}

fn ceil(v: &SymValue) -> Option<SymValue> {
    if let Some(rounded) = rounded_real(v, Rounding::Ceil) {
        return Some(rounded);
    }
    let (num, den) = v.ratio()?;
    Some(SymValue::Int(match den.as_int() {
        Some(d) if d > 0 => (num + Expr::Int(d - 1)).floor_div(&den),
        _ => -((-num).floor_div(&den)),
    }))
}

/// Rounds toward zero. An exact quotient is rounded down, so neither operand may be negative.
fn trunc(v: &SymValue) -> Option<SymValue> {
    if let Some(rounded) = rounded_real(v, Rounding::Trunc) {
        return Some(rounded);
    }
    let (num, den) = v.ratio()?;
    if den.as_int() == Some(1) {
        return Some(SymValue::Int(num));
    }
    let smallest = |e: &Expr| e.bounds(&|s| if is_size(s) { (0, i64::MAX) } else { (i64::MIN, i64::MAX) }).0;
    (smallest(&num) >= 0 && smallest(&den) >= 0).then(|| SymValue::Int(num.floor_div(&den)))
}

/// Whether a symbol is a size of an input. The exporter names such symbols `s` and a number.
fn is_size(symbol: &Symbol) -> bool {
    symbol.name().strip_prefix('s').is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Rounds to the nearest integer, ties to even.
fn nearest(v: &SymValue) -> Option<SymValue> {
    let (num, den) = match (rounded_real(v, Rounding::Nearest), v.ratio()) {
        (Some(rounded), _) => return Some(rounded),
        (None, ratio) => ratio?,
    };
    match den.as_int() {
        Some(1) => Some(SymValue::Int(num)),
        _ => Some(SymValue::Int(Expr::rounded(Rounding::Nearest, v.real()?))),
    }
}

fn square_root(v: &SymValue) -> Option<SymValue> {
    Some(SymValue::Real(Real::Sqrt(Arc::new(v.real()?))))
}

fn power(base: &SymValue, exponent: &SymValue) -> Option<SymValue> {
    exact_power(base, exponent).or_else(|| {
        let power = in_floats(base, exponent, Real::Power)?;
        // A power of integers is an integer. Floats represent it exactly in the range of sizes.
        let are_integers = matches!((base, exponent), (SymValue::Int(_), SymValue::Int(n)) if n.as_int().is_none_or(|n| n >= 0));
        if are_integers { rounded_real(&power, Rounding::Nearest) } else { Some(power) }
    })
}

fn exact_power(base: &SymValue, exponent: &SymValue) -> Option<SymValue> {
    let (SymValue::Int(base), SymValue::Int(Expr::Int(n))) = (base, exponent) else { return None };
    // `product` limits the size of nested powers.
    let n = usize::try_from(*n).ok().filter(|&n| n <= MAX_EXPR_DEGREE)?;
    (0..n).try_fold(Expr::Int(1), |acc, _| product(&acc, base)).map(SymValue::Int)
}

fn compare(op: Comparison, a: &SymValue, b: &SymValue) -> Option<SymValue> {
    let ((n, d), (m, e)) = (a.ratio()?, b.ratio()?);
    (d.as_int() == Some(1) && e.as_int() == Some(1)).then_some(())?;
    let known = (n.clone() - m.clone()).as_int().map(|d| SymBool::Known(op.holds(d, 0)));
    Some(SymValue::Bool(known.unwrap_or(SymBool::Compare(op, n, m))))
}

pub(super) fn infix(op: Infix, a: SymValue, b: SymValue, text: &str) -> SymValue {
    let value = match op {
        Infix::Add => add(&a, &b),
        Infix::Sub => mul(&b, &SymValue::Int(Expr::Int(-1))).and_then(|b| add(&a, &b)),
        Infix::Mul => mul(&a, &b),
        Infix::TrueDiv => true_div(&a, &b),
        Infix::FloorDiv => floor_div(&a, &b),
        Infix::Mod => modulo(&a, &b),
        Infix::Pow => power(&a, &b),
        Infix::Compare(op) => compare(op, &a, &b),
        Infix::And | Infix::Or => {
            let both = vec![a.into_bool(text), b.into_bool(text)];
            Some(SymValue::Bool(if op == Infix::And { SymBool::And(both) } else { SymBool::Or(both) }))
        }
    };
    value.unwrap_or_else(|| SymValue::opaque(text))
}

fn modulo(a: &SymValue, b: &SymValue) -> Option<SymValue> {
    match (a, b) {
        (SymValue::Int(a), SymValue::Int(b)) if b.as_int() != Some(0) => Some(SymValue::Int(a.modulo(b))),
        _ => None,
    }
}

pub(super) fn negate(v: SymValue, text: &str) -> SymValue {
    mul(&v, &SymValue::Int(Expr::Int(-1))).unwrap_or_else(|| SymValue::opaque(text))
}

pub(super) fn not(v: SymValue, inner: &str) -> SymValue {
    SymValue::Bool(match v.into_bool(inner) {
        SymBool::Known(value) => SymBool::Known(!value),
        other => SymBool::Not(Box::new(other)),
    })
}

/// Evaluates `head(args)`, written as `text`.
pub(super) fn call(head: &str, args: Vec<Arg<'_>>, text: &str) -> Result<SymValue, ExpressionFault> {
    if let Some(literal) = literal(head, &args) {
        return literal.ok_or_else(|| ExpressionFault::Malformed(head.to_owned()));
    }
    let mut values = Vec::with_capacity(args.len());
    for arg in args {
        match arg {
            Arg::Value(v) => values.push(v),
            Arg::Text(_) => return Err(ExpressionFault::TextArgument(head.to_owned())),
            Arg::Keyword("evaluate") => {}
            Arg::Keyword(key) => return Err(ExpressionFault::Keyword { head: head.to_owned(), key: key.to_owned() }),
        }
    }
    Ok(apply(head, values, text)?.unwrap_or_else(|| SymValue::opaque(text)))
}

/// Evaluates `Symbol`, `Integer` and `Float`, whose arguments are literals. Returns `None` for any
/// other head.
fn literal(head: &str, args: &[Arg<'_>]) -> Option<Option<SymValue>> {
    let value = match (head, args.first()) {
        ("Symbol" | "Dummy", Some(Arg::Text(name))) => Some(SymValue::Int(Expr::symbol(Symbol::new(name)))),
        ("Integer", Some(Arg::Value(v @ SymValue::Int(Expr::Int(_))))) => Some(v.clone()),
        ("Float", Some(Arg::Text(digits))) => digits.parse().ok().map(|v| float(v, digits)),
        ("Float", Some(Arg::Value(v))) => Some(v.clone()),
        ("Symbol" | "Dummy" | "Integer" | "Float", _) => None,
        _ => return None,
    };
    Some(value)
}

fn apply(head: &str, mut values: Vec<SymValue>, text: &str) -> Result<Option<SymValue>, ExpressionFault> {
    if let Some(value) = apply_nary(head, &mut values, text) {
        return Ok(value);
    }
    Ok(match (head, &values[..]) {
        ("Rational" | "IntTrueDiv" | "FloatTrueDiv", [a, b]) => true_div(a, b),
        ("Pow" | "PowByNatural" | "FloatPow", [a, b]) => power(a, b),
        ("OpaqueUnaryFn_sqrt" | "sqrt" | "math.sqrt", [x]) => square_root(x),
        ("ExprCondPair", [value, SymValue::Bool(condition)]) => Some(SymValue::Case(Box::new(value.clone()), condition.clone())),
        ("Where", [SymValue::Bool(condition), then, otherwise]) => choice(condition, then, otherwise),
        ("Piecewise", cases) => piecewise(cases),
        ("FloorDiv" | "CleanDiv", [a, b]) => floor_div(a, b).or_else(|| Some(SymValue::Int(SymValue::opaque(text).into_int(text)))),
        ("CeilDiv", [a, b]) => true_div(a, b).and_then(|q| ceil(&q)),
        ("Mod" | "PythonMod", [a, b]) => modulo(a, b),
        ("ModularIndexing", [x, d, m]) => floor_div(x, d).and_then(|q| modulo(&q, m)),
        ("LShift", [a, b]) => two_to(b).and_then(|p| mul(a, &p)),
        ("RShift", [a, b]) => two_to(b).and_then(|p| floor_div(a, &p)),
        ("Identity" | "ToFloat", [x]) => Some(x.clone()),
        ("FloorToInt" | "floor" | "math.floor", [x]) => Some(rounded(floor(x), text)),
        ("CeilToInt" | "ceiling" | "math.ceil", [x]) => Some(rounded(ceil(x), text)),
        ("TruncToInt" | "TruncToFloat" | "math.trunc", [x]) => Some(rounded(trunc(x), text)),
        ("RoundToInt", [x]) => Some(rounded(nearest(x), text)),
        ("Equality" | "Eq", [a, b]) => compare(Comparison::Eq, a, b),
        ("Unequality" | "Ne", [a, b]) => compare(Comparison::Ne, a, b),
        ("GreaterThan" | "Ge", [a, b]) => compare(Comparison::Ge, a, b),
        ("LessThan" | "Le", [a, b]) => compare(Comparison::Le, a, b),
        ("StrictGreaterThan" | "Gt", [a, b]) => compare(Comparison::Gt, a, b),
        ("StrictLessThan" | "Lt", [a, b]) => compare(Comparison::Lt, a, b),
        ("Not", [_]) => values.pop().map(|v| not(v, text)),
        ("Abs", [SymValue::Int(x)]) => Some(SymValue::Int(x.maximum(&-x.clone()))),
        ("Where" | "ExprCondPair" | "RoundDecimal" | "Abs", _) => None,
        _ if head.starts_with("OpaqueUnaryFn_") || head.starts_with("BitwiseFn_") => None,
        _ => return Err(ExpressionFault::Unknown { head: head.to_owned(), operands: values.len() }),
    })
}

/// 1 if a condition is true, else 0.
fn indicator(condition: &SymBool) -> Option<Expr> {
    let one = Expr::Int(1);
    let not_negative = |e: Expr| (e + Expr::Int(1)).maximum(&Expr::Int(0)).minimum(&Expr::Int(1));
    Some(match condition {
        SymBool::Known(holds) => Expr::Int(i64::from(*holds)),
        SymBool::Compare(op, a, b) => {
            let (apart, back) = (a.clone() - b.clone(), b.clone() - a.clone());
            match op {
                Comparison::Ge => not_negative(apart),
                Comparison::Le => not_negative(back),
                Comparison::Lt => one - not_negative(apart),
                Comparison::Gt => one - not_negative(back),
                Comparison::Eq => not_negative(apart) * not_negative(back),
                Comparison::Ne => one - not_negative(apart) * not_negative(back),
            }
        }
        SymBool::And(all) => all.iter().try_fold(one, |both, c| product(&both, &indicator(c)?))?,
        SymBool::Or(any) => {
            let none = any.iter().try_fold(one.clone(), |none, c| product(&none, &(Expr::Int(1) - indicator(c)?)))?;
            one - none
        }
        SymBool::Not(c) => one - indicator(c)?,
        SymBool::Opaque(_) => return None,
    })
}

/// Evaluates `condition ? then : otherwise`.
fn choice(condition: &SymBool, then: &SymValue, otherwise: &SymValue) -> Option<SymValue> {
    let holds = SymValue::Int(indicator(condition)?);
    let fails = infix(Infix::Sub, SymValue::Int(Expr::Int(1)), holds.clone(), "");
    add(&mul(&holds, then)?, &mul(&fails, otherwise)?)
}

/// The value of the first case with a true condition.
fn piecewise(cases: &[SymValue]) -> Option<SymValue> {
    let (last, rest) = cases.split_last()?;
    let SymValue::Case(otherwise, SymBool::Known(true)) = last else { return None };
    rest.iter().rev().try_fold((**otherwise).clone(), |otherwise, case| match case {
        SymValue::Case(then, condition) => choice(condition, then, &otherwise),
        _ => None,
    })
}

/// The exact integer, else an opaque integer.
fn rounded(exact: Option<SymValue>, text: &str) -> SymValue {
    exact.unwrap_or_else(|| SymValue::Int(SymValue::opaque(text).into_int(text)))
}

fn two_to(v: &SymValue) -> Option<SymValue> {
    match v {
        SymValue::Int(Expr::Int(n @ 0..=62)) => Some(SymValue::Int(Expr::Int(1 << n))),
        _ => None,
    }
}

/// Evaluates heads with any number of operands. Returns `None` for any other head.
fn apply_nary(head: &str, values: &mut Vec<SymValue>, text: &str) -> Option<Option<SymValue>> {
    let fold = |zero: i64, f: fn(&SymValue, &SymValue) -> Option<SymValue>| match values.split_first() {
        Some((first, rest)) => rest.iter().try_fold(first.clone(), |acc, v| f(&acc, v)),
        None => Some(SymValue::Int(Expr::Int(zero))),
    };
    let extreme = |f: fn(&Expr, &Expr) -> Expr| {
        let as_int = |v: &SymValue| match v {
            SymValue::Int(e) => Some(e.clone()),
            _ => None,
        };
        let (first, rest) = values.split_first()?;
        rest.iter().try_fold(as_int(first)?, |acc, v| Some(f(&acc, &as_int(v)?))).map(SymValue::Int)
    };
    Some(match head {
        "Add" => fold(0, add),
        "Mul" => fold(1, mul),
        "Max" => extreme(Expr::maximum),
        "Min" => extreme(Expr::minimum),
        "And" | "Or" => {
            let all = std::mem::take(values).into_iter().map(|v| v.into_bool(text)).collect();
            Some(SymValue::Bool(if head == "And" { SymBool::And(all) } else { SymBool::Or(all) }))
        }
        _ => return None,
    })
}
