//! Sizes that may be symbolic: integer polynomials over named symbols, kept in one canonical form.
//!
//! Equal expressions that differ only by ring arithmetic (`2*(s+1)` and `s+s+2`) have the same
//! representation, so structural equality is the equality test. Floor division and remainder
//! simplify where they are exact and are atoms otherwise. Arithmetic saturates at the bounds of
//! `i64`; no real size comes near them, and every consumer has a limit far below.

use std::{
    fmt,
    ops::{Add, Mul, Neg, Sub},
    sync::Arc,
};

use crate::{Real, Rounding};

/// The name of an integer that is known only at run time, such as `s77`.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Symbol(Arc<str>);

impl Symbol {
    /// The symbol of that name.
    pub fn new(name: &str) -> Symbol {
        Symbol(name.into())
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Symbol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A factor that addition and multiplication do not take apart.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Atom {
    Symbol(Symbol),
    /// Quotient rounded toward minus infinity.
    FloorDiv(Expr, Expr),
    /// Remainder with the sign of the divisor.
    Mod(Expr, Expr),
    Max(Expr, Expr),
    Min(Expr, Expr),
    /// A real number rounded to an integer.
    Rounded(Rounding, Real),
    /// An expression outside of this algebra, by its text. It cannot be evaluated.
    Opaque(Arc<str>),
}

impl Atom {
    fn weight(&self) -> usize {
        match self {
            Atom::Symbol(_) | Atom::Opaque(_) => 1,
            Atom::Rounded(_, x) => 1 + x.weight(),
            Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => 1 + a.weight() + b.weight(),
        }
    }
}

/// `coefficient * factors[0] * factors[1] * …`, the factors sorted.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Term {
    factors: Vec<Atom>,
    coefficient: i64,
}

/// An integer expression in canonical form.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Expr {
    /// A known integer.
    Int(i64),
    /// A sum of terms sorted by their factors; never a constant.
    Sum(Arc<[Term]>),
}

impl Expr {
    /// The expression that is just a symbol.
    pub fn symbol(symbol: Symbol) -> Expr {
        Expr::atom(Atom::Symbol(symbol))
    }

    /// The expression that is just an atom.
    pub fn atom(atom: Atom) -> Expr {
        Expr::Sum([Term { factors: vec![atom], coefficient: 1 }].into())
    }

    /// The value, if it is known.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Expr::Int(v) => Some(*v),
            Expr::Sum(_) => None,
        }
    }

    /// The symbol, if the expression is nothing else.
    pub fn as_symbol(&self) -> Option<&Symbol> {
        match self.as_atom() {
            Some(Atom::Symbol(s)) => Some(s),
            _ => None,
        }
    }

    /// The atom, if the expression is nothing else.
    pub fn as_atom(&self) -> Option<&Atom> {
        match self {
            Expr::Sum(terms) => match &terms[..] {
                [Term { factors, coefficient: 1 }] if factors.len() == 1 => Some(&factors[0]),
                _ => None,
            },
            Expr::Int(_) => None,
        }
    }

    /// Number of terms and factors at all depths: the cost of arithmetic on the expression. A known
    /// integer weighs one.
    pub fn weight(&self) -> usize {
        match self {
            Expr::Int(_) => 1,
            Expr::Sum(terms) => terms.iter().map(|t| 1 + t.factors.iter().map(Atom::weight).sum::<usize>()).sum(),
        }
    }

    /// The sum's terms as (coefficient, factors); a known integer is one term without factors.
    pub fn terms(&self) -> Vec<(i64, Vec<Atom>)> {
        self.to_terms().into_iter().map(|t| (t.coefficient, t.factors)).collect()
    }

    fn to_terms(&self) -> Vec<Term> {
        match self {
            Expr::Int(0) => Vec::new(),
            Expr::Int(v) => vec![Term { factors: Vec::new(), coefficient: *v }],
            Expr::Sum(terms) => terms.to_vec(),
        }
    }

    /// Sorts, merges equal factor lists, drops zeros.
    fn from_terms(mut terms: Vec<Term>) -> Expr {
        terms.sort_by(|a, b| a.factors.cmp(&b.factors));
        let mut merged: Vec<Term> = Vec::with_capacity(terms.len());
        for term in terms {
            match merged.last_mut() {
                Some(last) if last.factors == term.factors => {
                    last.coefficient = last.coefficient.saturating_add(term.coefficient);
                }
                _ => merged.push(term),
            }
        }
        merged.retain(|t| t.coefficient != 0);
        match &merged[..] {
            [] => Expr::Int(0),
            [only] if only.factors.is_empty() => Expr::Int(only.coefficient),
            _ => Expr::Sum(merged.into()),
        }
    }

    /// `Some(answer)` if equality is decided for all values of the symbols, else `None`.
    pub fn known_eq(&self, other: &Expr) -> Option<bool> {
        if self == other {
            return Some(true);
        }
        (self.clone() - other.clone()).as_int().map(|d| d == 0)
    }

    /// `self / divisor` rounded toward minus infinity. Division by a known zero gives an atom that
    /// does not evaluate.
    #[must_use]
    pub fn floor_div(&self, divisor: &Expr) -> Expr {
        if let (Expr::Int(a), Expr::Int(d @ (..=-1 | 1..))) = (self, divisor) {
            return Expr::Int(floor_div(*a, *d));
        }
        if let Some(exact) = self.exact_div(divisor) {
            return exact;
        }
        let opaque = |a: Expr| Expr::atom(Atom::FloorDiv(a, divisor.clone()));
        match (self, divisor.as_int()) {
            (_, Some(0)) => opaque(self.clone()),
            (Expr::Int(a), Some(d)) => Expr::Int(floor_div(*a, d)),
            (_, Some(d)) => {
                // floor((d*x + r) / d) = x + floor(r / d)
                let (whole, rest): (Vec<Term>, Vec<Term>) =
                    self.to_terms().into_iter().partition(|t| t.coefficient.wrapping_rem(d) == 0);
                let whole = whole.into_iter().map(|t| Term { coefficient: t.coefficient.wrapping_div(d), ..t }).collect();
                match Expr::from_terms(rest) {
                    Expr::Int(r) => Expr::from_terms(whole) + Expr::Int(floor_div(r, d)),
                    rest => Expr::from_terms(whole) + opaque(rest),
                }
            }
            _ => opaque(self.clone()),
        }
    }

    /// The quotient, if division leaves no remainder for all values of the symbols (the divisor
    /// taken as non-zero).
    pub fn exact_div(&self, divisor: &Expr) -> Option<Expr> {
        if self == divisor {
            return Some(Expr::Int(1));
        }
        let by = match &divisor.to_terms()[..] {
            [one] => one.clone(),
            _ => return None,
        };
        let divide = |t: Term| {
            let mut factors = t.factors;
            for f in &by.factors {
                let at = factors.iter().position(|g| g == f)?;
                factors.remove(at);
            }
            let exact = t.coefficient.wrapping_rem(by.coefficient) == 0;
            exact.then(|| Term { factors, coefficient: t.coefficient.wrapping_div(by.coefficient) })
        };
        self.to_terms().into_iter().map(divide).collect::<Option<Vec<_>>>().map(Expr::from_terms)
    }

    /// Remainder with the sign of the divisor.
    #[must_use]
    pub fn modulo(&self, divisor: &Expr) -> Expr {
        if let (Expr::Int(a), Expr::Int(d @ (..=-1 | 1..))) = (self, divisor) {
            return Expr::Int(a.wrapping_sub(floor_div(*a, *d).wrapping_mul(*d)));
        }
        if self.exact_div(divisor).is_some() {
            return Expr::Int(0);
        }
        Expr::atom(Atom::Mod(self.clone(), divisor.clone()))
    }

    /// A real number rounded to an integer: the integer itself if the number is known and has one.
    pub fn rounded(rounding: Rounding, x: Real) -> Expr {
        let known = x.value().and_then(|value| rounding.apply(value));
        known.map_or_else(|| Expr::atom(Atom::Rounded(rounding, x)), Expr::Int)
    }

    /// The larger of two.
    #[must_use]
    pub fn maximum(&self, other: &Expr) -> Expr {
        match (self.clone() - other.clone()).as_int() {
            Some(d) if d >= 0 => self.clone(),
            Some(_) => other.clone(),
            None => Expr::atom(Atom::Max(self.clone(), other.clone())),
        }
    }

    /// The smaller of two.
    #[must_use]
    pub fn minimum(&self, other: &Expr) -> Expr {
        match (self.clone() - other.clone()).as_int() {
            Some(d) if d <= 0 => self.clone(),
            Some(_) => other.clone(),
            None => Expr::atom(Atom::Min(self.clone(), other.clone())),
        }
    }

    /// The expression with each symbol replaced by `f(symbol)`. `None` if `f` returns `None`, or if
    /// a division has no result.
    pub fn substitute(&self, f: &dyn Fn(&Symbol) -> Option<Expr>) -> Option<Expr> {
        let mut sum = Expr::Int(0);
        for term in self.to_terms() {
            let mut product = Expr::Int(term.coefficient);
            for factor in &term.factors {
                product = product * substitute_atom(factor, f)?;
            }
            sum = sum + product;
        }
        Some(sum)
    }

    /// The value under an assignment of the symbols; `None` if one is missing, or for a division by
    /// zero or an opaque atom.
    pub fn eval(&self, value_of: &dyn Fn(&Symbol) -> Option<i64>) -> Option<i64> {
        match self {
            Expr::Int(v) => Some(*v),
            Expr::Sum(_) => self.substitute(&|s| value_of(s).map(Expr::Int))?.as_int(),
        }
    }

    /// Every symbol that occurs, in order of first occurrence, without repeats.
    pub fn symbols(&self) -> Vec<Symbol> {
        let mut out = Vec::new();
        self.visit_symbols(&mut |s| {
            if !out.contains(s) {
                out.push(s.clone());
            }
        });
        out
    }

    /// Whether any part of it cannot be evaluated.
    pub fn has_opaque(&self) -> bool {
        let Expr::Sum(terms) = self else { return false };
        terms.iter().flat_map(|t| &t.factors).any(|factor| match factor {
            Atom::Symbol(_) => false,
            Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => a.has_opaque() || b.has_opaque(),
            Atom::Rounded(_, x) => {
                let mut found = false;
                x.visit_sizes(&mut |size| found |= size.has_opaque());
                found
            }
            Atom::Opaque(_) => true,
        })
    }

    fn visit_symbols(&self, visit: &mut dyn FnMut(&Symbol)) {
        let Expr::Sum(terms) = self else { return };
        for factor in terms.iter().flat_map(|t| &t.factors) {
            match factor {
                Atom::Symbol(s) => visit(s),
                Atom::FloorDiv(a, b) | Atom::Mod(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => {
                    a.visit_symbols(visit);
                    b.visit_symbols(visit);
                }
                Atom::Rounded(_, x) => x.visit_sizes(&mut |size| size.visit_symbols(visit)),
                Atom::Opaque(_) => {}
            }
        }
    }

    /// An interval that holds the value for all symbol values within `range`, both ends included.
    ///
    /// Exact for sums of distinct symbols; a correlated expression may get a wider interval than it
    /// needs.
    pub fn bounds(&self, range: &dyn Fn(&Symbol) -> (i64, i64)) -> (i64, i64) {
        let mut total = (0i64, 0i64);
        for term in self.to_terms() {
            let mut product = (term.coefficient, term.coefficient);
            for factor in &term.factors {
                product = interval_mul(product, atom_bounds(factor, range));
            }
            total = (total.0.saturating_add(product.0), total.1.saturating_add(product.1));
        }
        total
    }
}

fn floor_div(a: i64, d: i64) -> i64 {
    let q = a.wrapping_div(d);
    if a.wrapping_rem(d) != 0 && ((a < 0) != (d < 0)) { q - 1 } else { q }
}

fn substitute_atom(atom: &Atom, f: &dyn Fn(&Symbol) -> Option<Expr>) -> Option<Expr> {
    let known_zero = |e: &Expr| e.as_int() == Some(0);
    Some(match atom {
        Atom::Symbol(s) => f(s)?,
        Atom::FloorDiv(a, b) => {
            let b = b.substitute(f).filter(|b| !known_zero(b))?;
            a.substitute(f)?.floor_div(&b)
        }
        Atom::Mod(a, b) => {
            let b = b.substitute(f).filter(|b| !known_zero(b))?;
            a.substitute(f)?.modulo(&b)
        }
        Atom::Max(a, b) => a.substitute(f)?.maximum(&b.substitute(f)?),
        Atom::Min(a, b) => a.substitute(f)?.minimum(&b.substitute(f)?),
        Atom::Rounded(rounding, x) => Expr::rounded(*rounding, x.substitute(f)?),
        Atom::Opaque(_) => return None,
    })
}

fn interval_mul(a: (i64, i64), b: (i64, i64)) -> (i64, i64) {
    let p = [a.0.saturating_mul(b.0), a.0.saturating_mul(b.1), a.1.saturating_mul(b.0), a.1.saturating_mul(b.1)];
    (p.into_iter().min().unwrap_or(0), p.into_iter().max().unwrap_or(0))
}

fn atom_bounds(atom: &Atom, range: &dyn Fn(&Symbol) -> (i64, i64)) -> (i64, i64) {
    let all = (i64::MIN, i64::MAX);
    match atom {
        Atom::Symbol(s) => range(s),
        Atom::FloorDiv(a, b) => match (a.bounds(range), b.bounds(range)) {
            ((lo, hi), (b_lo, b_hi)) if b_lo > 0 => {
                let q = [floor_div(lo, b_lo), floor_div(lo, b_hi), floor_div(hi, b_lo), floor_div(hi, b_hi)];
                (q.into_iter().min().unwrap_or(lo), q.into_iter().max().unwrap_or(hi))
            }
            _ => all,
        },
        Atom::Mod(_, b) => match b.bounds(range) {
            (lo, hi) if lo > 0 => (0, hi.saturating_sub(1)),
            _ => all,
        },
        Atom::Max(a, b) => {
            let (a, b) = (a.bounds(range), b.bounds(range));
            (a.0.max(b.0), a.1.max(b.1))
        }
        Atom::Min(a, b) => {
            let (a, b) = (a.bounds(range), b.bounds(range));
            (a.0.min(b.0), a.1.min(b.1))
        }
        Atom::Rounded(rounding, x) => {
            let ends = x.bounds(&|size| size.bounds(range));
            ends.map_or(all, |(low, high)| (rounding.apply(low).unwrap_or(all.0), rounding.apply(high).unwrap_or(all.1)))
        }
        Atom::Opaque(_) => all,
    }
}

impl From<i64> for Expr {
    fn from(value: i64) -> Expr {
        Expr::Int(value)
    }
}

impl Add for Expr {
    type Output = Expr;
    fn add(self, other: Expr) -> Expr {
        match (&self, &other) {
            (Expr::Int(a), Expr::Int(b)) => Expr::Int(a.saturating_add(*b)),
            _ => Expr::from_terms([self.to_terms(), other.to_terms()].concat()),
        }
    }
}

impl Neg for Expr {
    type Output = Expr;
    fn neg(self) -> Expr {
        Expr::Int(-1) * self
    }
}

impl Sub for Expr {
    type Output = Expr;
    fn sub(self, other: Expr) -> Expr {
        self + -other
    }
}

impl Mul for Expr {
    type Output = Expr;
    fn mul(self, other: Expr) -> Expr {
        if let (Expr::Int(a), Expr::Int(b)) = (&self, &other) {
            return Expr::Int(a.saturating_mul(*b));
        }
        let (a, b) = (self.to_terms(), other.to_terms());
        let product = |x: &Term, y: &Term| {
            let mut factors = [&x.factors[..], &y.factors[..]].concat();
            factors.sort();
            Term { factors, coefficient: x.coefficient.saturating_mul(y.coefficient) }
        };
        Expr::from_terms(a.iter().flat_map(|x| b.iter().map(|y| product(x, y)).collect::<Vec<_>>()).collect())
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Atom::Symbol(s) => write!(f, "{s}"),
            Atom::FloorDiv(a, b) => write!(f, "({a})//({b})"),
            Atom::Mod(a, b) => write!(f, "({a})%({b})"),
            Atom::Max(a, b) => write!(f, "max({a}, {b})"),
            Atom::Min(a, b) => write!(f, "min({a}, {b})"),
            Atom::Rounded(rounding, x) => write!(f, "{rounding}({x})"),
            Atom::Opaque(text) => f.write_str(text),
        }
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Expr::Sum(terms) = self else { return self.as_int().unwrap_or(0).fmt(f) };
        // Constants sort first; sums read better with them last.
        let (constant, rest): (Vec<_>, Vec<_>) = terms.iter().partition(|t| t.factors.is_empty());
        for (i, term) in rest.into_iter().chain(constant).enumerate() {
            let sign = if term.coefficient < 0 { "-" } else { "+" };
            if i > 0 || term.coefficient < 0 {
                f.write_str(sign)?;
            }
            let magnitude = term.coefficient.unsigned_abs();
            let factors: Vec<String> = term.factors.iter().map(Atom::to_string).collect();
            match (magnitude, factors.is_empty()) {
                (m, true) => write!(f, "{m}")?,
                (1, false) => f.write_str(&factors.join("*"))?,
                (m, false) => write!(f, "{m}*{}", factors.join("*"))?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
