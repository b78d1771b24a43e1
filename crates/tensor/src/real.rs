//! Real numbers computed from sizes, as programs make sizes by way of floats: `trunc(1.7 * s)`.

use std::{fmt, sync::Arc};

use crate::{Expr, Symbol};

/// A real number computed from sizes in 64-bit floats.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Real {
    Size(Expr),
    /// A float by its bits.
    Number(u64),
    Sum(Arc<[Real; 2]>),
    Product(Arc<[Real; 2]>),
    Quotient(Arc<[Real; 2]>),
    Power(Arc<[Real; 2]>),
    Sqrt(Arc<Real>),
}

/// Conversion of a real number to an integer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Rounding {
    Floor,
    Ceil,
    /// Toward zero.
    Trunc,
    /// To the nearest integer, of two the even one.
    Nearest,
}

impl Rounding {
    /// The integer; `None` for NaN and values that do not fit.
    pub fn apply(self, value: f64) -> Option<i64> {
        let rounded = match self {
            Rounding::Floor => value.floor(),
            Rounding::Ceil => value.ceil(),
            Rounding::Trunc => value.trunc(),
            Rounding::Nearest => value.round_ties_even(),
        };
        (rounded.abs() < 9e18).then_some(rounded as i64)
    }
}

impl Real {
    /// A known number.
    pub fn number(value: f64) -> Real {
        Real::Number(value.to_bits())
    }

    /// Number of parts at all depths.
    pub fn weight(&self) -> usize {
        match self {
            Real::Size(e) => 1 + e.weight(),
            Real::Number(_) => 1,
            Real::Sqrt(x) => 1 + x.weight(),
            Real::Sum(ab) | Real::Product(ab) | Real::Quotient(ab) | Real::Power(ab) => 1 + ab[0].weight() + ab[1].weight(),
        }
    }

    /// The value, if it depends on no symbol.
    pub fn value(&self) -> Option<f64> {
        self.eval(&Expr::as_int)
    }

    /// The value, given the values of its sizes.
    pub fn eval(&self, value_of: &dyn Fn(&Expr) -> Option<i64>) -> Option<f64> {
        let both = |ab: &[Real; 2], op: fn(f64, f64) -> f64| Some(op(ab[0].eval(value_of)?, ab[1].eval(value_of)?));
        match self {
            Real::Size(e) => value_of(e).map(|size| size as f64),
            Real::Number(bits) => Some(f64::from_bits(*bits)),
            Real::Sum(ab) => both(ab, |a, b| a + b),
            Real::Product(ab) => both(ab, |a, b| a * b),
            Real::Quotient(ab) => both(ab, |a, b| a / b),
            Real::Power(ab) => both(ab, f64::powf),
            Real::Sqrt(x) => x.eval(value_of).map(f64::sqrt),
        }
    }

    /// An interval that contains the value, given intervals of its sizes; `None` if no simple rule
    /// applies.
    pub fn bounds(&self, range: &dyn Fn(&Expr) -> (i64, i64)) -> Option<(f64, f64)> {
        let both = |ab: &[Real; 2]| Some((ab[0].bounds(range)?, ab[1].bounds(range)?));
        let is_increasing = |a: (f64, f64), b: (f64, f64)| a.0 >= 0.0 && b.0 >= 0.0;
        match self {
            Real::Size(e) => {
                let (low, high) = range(e);
                Some((low as f64, high as f64))
            }
            Real::Number(bits) => Some((f64::from_bits(*bits), f64::from_bits(*bits))),
            Real::Sum(ab) => both(ab).map(|(a, b)| (a.0 + b.0, a.1 + b.1)),
            Real::Product(ab) => both(ab).filter(|(a, b)| is_increasing(*a, *b)).map(|(a, b)| (a.0 * b.0, a.1 * b.1)),
            Real::Quotient(ab) => both(ab).filter(|(a, b)| a.0 >= 0.0 && b.0 > 0.0).map(|(a, b)| (a.0 / b.1, a.1 / b.0)),
            Real::Power(ab) => both(ab).filter(|(a, b)| a.0 >= 1.0 && b.0 >= 0.0).map(|(a, b)| (a.0.powf(b.0), a.1.powf(b.1))),
            Real::Sqrt(x) => x.bounds(range).filter(|x| x.0 >= 0.0).map(|x| (x.0.sqrt(), x.1.sqrt())),
        }
    }

    /// The number with each symbol replaced; `None` if `f` says so.
    pub fn substitute(&self, f: &dyn Fn(&Symbol) -> Option<Expr>) -> Option<Real> {
        let both = |ab: &[Real; 2]| Some(Arc::new([ab[0].substitute(f)?, ab[1].substitute(f)?]));
        Some(match self {
            Real::Size(e) => Real::Size(e.substitute(f)?),
            Real::Number(_) => self.clone(),
            Real::Sum(ab) => Real::Sum(both(ab)?),
            Real::Product(ab) => Real::Product(both(ab)?),
            Real::Quotient(ab) => Real::Quotient(both(ab)?),
            Real::Power(ab) => Real::Power(both(ab)?),
            Real::Sqrt(x) => Real::Sqrt(Arc::new(x.substitute(f)?)),
        })
    }

    /// Calls `visit` with every size that is part of it.
    pub fn visit_sizes<'a>(&'a self, visit: &mut dyn FnMut(&'a Expr)) {
        match self {
            Real::Size(e) => visit(e),
            Real::Number(_) => {}
            Real::Sqrt(x) => x.visit_sizes(visit),
            Real::Sum(ab) | Real::Product(ab) | Real::Quotient(ab) | Real::Power(ab) => {
                ab.iter().for_each(|x| x.visit_sizes(visit));
            }
        }
    }
}

impl fmt::Display for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Real::Size(e) if e.weight() <= 2 => write!(f, "{e}"),
            Real::Size(e) => write!(f, "({e})"),
            Real::Number(bits) => write!(f, "{:?}", f64::from_bits(*bits)),
            Real::Sum(ab) => write!(f, "({} + {})", ab[0], ab[1]),
            Real::Product(ab) => write!(f, "{} * {}", ab[0], ab[1]),
            Real::Quotient(ab) => write!(f, "{} / ({})", ab[0], ab[1]),
            Real::Power(ab) => write!(f, "({}) ** ({})", ab[0], ab[1]),
            Real::Sqrt(x) => write!(f, "sqrt({x})"),
        }
    }
}

impl fmt::Display for Rounding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rounding::Floor => "floor",
            Rounding::Ceil => "ceil",
            Rounding::Trunc => "trunc",
            Rounding::Nearest => "round",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scaled(factor: f64) -> Real {
        Real::Product(Arc::new([Real::number(factor), Real::Size(Expr::symbol(Symbol::new("s")))]))
    }

    #[test]
    fn values_are_those_of_64_bit_floats() {
        let trunc = |factor: f64, n: i64| Rounding::Trunc.apply(scaled(factor).eval(&|_| Some(n)).unwrap());
        // 0.57 * 100 is 56.99999999999999 in Python.
        assert_eq!([trunc(1.7, 10), trunc(0.57, 100), trunc(0.6, 5)], [Some(17), Some(56), Some(3)]);
        assert_eq!([0.5, 1.5, -2.5].map(|v| Rounding::Nearest.apply(v)), [Some(0), Some(2), Some(-2)]);
        assert_eq!(Rounding::Floor.apply(f64::NAN), None);
    }

    #[test]
    fn bounds_follow_the_sizes() {
        assert_eq!(scaled(1.5).bounds(&|_| (2, 8)), Some((3.0, 12.0)));
        assert_eq!(scaled(-1.5).bounds(&|_| (2, 8)), None);
        assert_eq!(scaled(1.5).to_string(), "1.5 * s");
    }
}
