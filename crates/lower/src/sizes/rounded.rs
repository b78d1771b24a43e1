//! Sizes that programs compute in floats, such as `trunc(1.7 * s)`. They become integer quotients
//! that agree for every compared size, or else table lookups.

use flambeau_ir::{
    Add, Divide, FloorDivideInt, In, Index, Int, ItemInt, Multiply, MultiplyInt, Power, Sqrt, SubtractInt, Take, Tid, Vid,
};
use flambeau_tensor::{DType, Expr, Real, Rounding};

use crate::{
    Lower, Refuse,
    call::unsupported,
    lower::{NEW, NEW_VALUE},
};

/// Largest compared size. Larger sizes follow the same quotient, or exceed the table.
const COMPARED: i64 = 1 << 16;

/// Upper bound of products of sizes and numerators.
const LARGEST: i64 = i32::MAX as i64;

/// `floor(n * size / d)`, or the quotient rounded upward.
#[derive(Debug, PartialEq)]
struct Quotient {
    n: i64,
    d: i64,
}

/// The simplest fraction between `low` and `high`, given as (numerator, denominator). It may equal
/// `low` if `has_low`, else `high`.
fn simplest(low: (i64, i64), high: (i64, i64), has_low: bool) -> Option<Quotient> {
    let (mut left, mut right) = ((0i64, 1i64), (1i64, 0i64));
    let product = |a: i64, b: i64| i128::from(a) * i128::from(b);
    for _ in 0..4096 {
        let (n, d) = (left.0 + right.0, left.1 + right.1);
        let (from_low, to_high) = (product(n, low.1) - product(low.0, d), product(high.0, d) - product(n, high.1));
        let above = if has_low { from_low >= 0 } else { from_low > 0 };
        let below = if has_low { to_high > 0 } else { to_high >= 0 };
        match (above, below) {
            (true, true) => return Some(Quotient { n, d }),
            (false, _) => left = (n, d),
            (true, false) => right = (n, d),
        }
        if n > LARGEST || d > LARGEST {
            return None;
        }
    }
    None
}

/// A quotient that gives `values[i]` for the size `first + i`, rounded downward or upward.
fn quotient(first: i64, values: &[i64], upward: bool) -> Option<Quotient> {
    let (mut low, mut high) = ((0i64, 1i64), (i64::from(i32::MAX), 1i64));
    for (size, &value) in (first..).zip(values) {
        if size <= 0 || value < 0 {
            if size == 0 && value == 0 {
                continue;
            }
            return None;
        }
        // Downward, `value <= size * n / d < value + 1`; upward,
        // `value - 1 < size * n / d <= value`.
        let (from, to) = if upward { (value - 1, value) } else { (value, value + 1) };
        if i128::from(from) * i128::from(low.1) > i128::from(low.0) * i128::from(size) {
            low = (from, size);
        }
        if i128::from(to) * i128::from(high.1) < i128::from(high.0) * i128::from(size) {
            high = (to, size);
        }
    }
    let last = first + values.len() as i64 - 1;
    simplest(low, high, !upward).filter(|q| q.n.saturating_mul(last).saturating_add(q.d) < LARGEST)
}

impl Lower {
    /// The slot of a real number rounded to an integer. The number may depend on one size.
    pub(super) fn rounded(&mut self, whole: &Expr, rounding: Rounding, x: &Real) -> Result<Vid, Refuse> {
        let mut sizes: Vec<&Expr> = Vec::new();
        x.visit_sizes(&mut |size| {
            if size.as_int().is_none() && !sizes.contains(&size) {
                sizes.push(size);
            }
        });
        let [size] = sizes[..] else {
            return unsupported(format!(
                "the size {whole} depends on several sizes by way of floats; compute it from one, or in integers"
            ));
        };
        let (low, high) = self.graph().bounds(size);
        let (low, high) = (low.max(0), high.min(COMPARED));
        let at = |n: i64| {
            let value = x.eval(&|e| e.as_int().or_else(|| (e == size).then_some(n)))?;
            rounding.apply(value).filter(|v| v.abs() < LARGEST)
        };
        let Some(values) = (low..=high).map(at).collect::<Option<Vec<_>>>() else {
            return unsupported(format!("the size {whole} has no value for some {size} from {low} to {high}"));
        };
        let a = Int::Vid(self.vid(size)?);
        let vid = if let Some(q) = quotient(low, &values, false) {
            self.divide(a, &q, 0)?
        } else if let Some(q) = quotient(low, &values, true) {
            let up = q.d - 1;
            self.divide(a, &q, up)?
        } else {
            self.look_up(a, low, &values)?
        };
        self.know_value(vid, whole);
        Ok(vid)
    }

    /// `(a * n + shift) / d` toward minus infinity.
    fn divide(&mut self, a: Int, q: &Quotient, shift: i64) -> Result<Vid, Refuse> {
        let product = Int::Vid(self.emit_value(MultiplyInt { a, b: Int::Lit(q.n), out: NEW_VALUE })?);
        let shifted = match shift {
            0 => product,
            _ => Int::Vid(self.emit_value(SubtractInt { a: product, b: Int::Lit(-shift), out: NEW_VALUE })?),
        };
        self.emit_value(FloorDivideInt { a: shifted, b: Int::Lit(q.d), out: NEW_VALUE })
    }

    /// `values[a - first]`.
    fn look_up(&mut self, a: Int, first: i64, values: &[i64]) -> Result<Vid, Refuse> {
        let table = self.integers("_sizes", values, DType::I32)?;
        let place = self.emit_value(SubtractInt { a, b: Int::Lit(first), out: NEW_VALUE })?;
        let value = self.emit(Take { x: In(table), out: NEW, index: Index::Vid(place), axis: 0 })?;
        self.emit_value(ItemInt { x: In(value), out: NEW_VALUE })
    }

    /// A real number computed from sizes, f32 of rank 0.
    ///
    /// # Errors
    /// Fails if nodes cannot compute one of the sizes.
    pub fn real_tensor(&mut self, x: &Real) -> Result<Tid, Refuse> {
        if let Some(value) = x.value() {
            return self.number(value, DType::F32);
        }
        let ab = match x {
            Real::Size(e) => {
                let size = self.size_tensor(e)?;
                return self.cast(size, DType::F32);
            }
            Real::Number(bits) => return self.number(f64::from_bits(*bits), DType::F32),
            Real::Sqrt(x) => {
                let x = In(self.real_tensor(x)?);
                return self.emit(Sqrt { x, out: NEW });
            }
            Real::Sum(ab) | Real::Product(ab) | Real::Quotient(ab) | Real::Power(ab) => ab,
        };
        let (a, b) = (In(self.real_tensor(&ab[0])?), In(self.real_tensor(&ab[1])?));
        match x {
            Real::Sum(_) => self.emit(Add { a, b, out: NEW }),
            Real::Product(_) => self.emit(Multiply { a, b, out: NEW }),
            Real::Quotient(_) => self.emit(Divide { a, b, out: NEW }),
            _ => self.emit(Power { a, b, out: NEW }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(sizes: std::ops::RangeInclusive<i64>, of: impl Fn(f64) -> f64) -> Vec<i64> {
        sizes.map(|n| of(n as f64) as i64).collect()
    }

    #[test]
    fn quotients_agree_with_floats_for_every_size() {
        let check = |of: fn(f64) -> f64, upward, want| assert_eq!(quotient(2, &values(2..=5000, of), upward), want);
        check(|s| (1.7 * s).trunc(), false, Some(Quotient { n: 17, d: 10 }));
        check(|s| (s / 3.0).floor(), false, Some(Quotient { n: 1, d: 3 }));
        check(|s| (1.25 * s).ceil(), true, Some(Quotient { n: 5, d: 4 }));
        // 0.57 * 100 is 56.99999999999999, and 0.57 * 300 is 171.
        check(|s| (0.57 * s).trunc(), false, None);
        check(|s| s.sqrt().floor(), false, None);
    }
}
