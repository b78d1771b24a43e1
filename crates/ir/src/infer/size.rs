//! Arithmetic and comparison of sizes, with bounded cost for any program.

use flambeau_tensor::Expr;

use super::{Dims, InferError, Result, ShapeCx};
use crate::limits::MAX_SIZE_WEIGHT;

/// Unifies two sizes that must be equal, and returns the more definite one.
///
/// # Errors
/// [`InferError::Size`] if both are known and differ.
pub(crate) fn unify(field: &'static str, found: &Expr, expected: &Expr) -> Result<Expr> {
    match (found, expected) {
        (Expr::Int(a), Expr::Int(b)) if a != b => Err(InferError::Size { field, found: found.clone(), expected: expected.clone() }),
        (Expr::Int(_), _) => Ok(found.clone()),
        _ => Ok(expected.clone()),
    }
}

/// One size of two broadcast shapes, or `None` if both are known and incompatible.
fn broadcast_dim(a: &Expr, b: &Expr) -> Option<Expr> {
    match (a, b) {
        _ if a == b => Some(a.clone()),
        (Expr::Int(1), other) | (other, Expr::Int(1)) => Some(other.clone()),
        (Expr::Int(_), Expr::Int(_)) => None,
        (Expr::Sum(_), Expr::Int(_)) => Some(b.clone()),
        _ => Some(a.clone()),
    }
}

/// The common broadcast shape by numpy's rules. A symbolic size and a known size other than 1 give
/// the known size. Two different symbolic sizes give the left one.
///
/// # Errors
/// [`InferError::Broadcast`] if two known sizes are incompatible.
pub fn broadcast(a: &[Expr], b: &[Expr]) -> Result<Dims> {
    if a == b {
        return Ok(a.into());
    }
    let one = Expr::Int(1);
    let rank = a.len().max(b.len());
    let at = |s: &'_ [Expr], i: usize| (i + s.len()).checked_sub(rank).and_then(|j| s.get(j).cloned()).unwrap_or(one.clone());
    let dims: Option<Dims> = (0..rank).map(|i| broadcast_dim(&at(a, i), &at(b, i))).collect();
    dims.ok_or_else(|| InferError::Broadcast(Box::new([a.into(), b.into()])))
}

/// Proves that `from` broadcasts to exactly `to`.
///
/// # Errors
/// [`InferError::Broadcast`] if it does not.
pub(crate) fn check_broadcasts_to(from: &[Expr], to: &[Expr]) -> Result<()> {
    let refuse = || InferError::Broadcast(Box::new([from.into(), to.into()]));
    let lead = to.len().checked_sub(from.len()).ok_or_else(refuse)?;
    let fits = |(a, b): (&Expr, &Expr)| match (a, b) {
        (Expr::Int(a), Expr::Int(b)) => a == b || *a == 1,
        _ => true,
    };
    if from.iter().zip(&to[lead..]).all(fits) { Ok(()) } else { Err(refuse()) }
}

impl dyn ShapeCx + '_ {
    fn bounded(&mut self, weight: usize, f: impl FnOnce() -> Expr) -> Expr {
        if weight <= MAX_SIZE_WEIGHT { f() } else { self.unknown() }
    }

    /// Bounds a size computed by a few arithmetic steps.
    pub fn bound(&mut self, size: Expr) -> Expr {
        self.bounded(size.weight(), || size)
    }

    /// `a + b`.
    pub fn add(&mut self, a: &Expr, b: &Expr) -> Expr {
        self.bounded(a.weight() + b.weight(), || a.clone() + b.clone())
    }

    /// `a - b`.
    pub fn sub(&mut self, a: &Expr, b: &Expr) -> Expr {
        self.bounded(a.weight() + b.weight(), || a.clone() - b.clone())
    }

    /// `a * b`.
    pub fn mul(&mut self, a: &Expr, b: &Expr) -> Expr {
        self.bounded(a.weight() * b.weight(), || a.clone() * b.clone())
    }

    /// `a / b` toward minus infinity.
    pub fn floor_div(&mut self, a: &Expr, b: &Expr) -> Expr {
        self.bounded(a.weight() + b.weight() + 3, || a.floor_div(b))
    }

    /// `a mod b` with the sign of `b`.
    pub fn modulo(&mut self, a: &Expr, b: &Expr) -> Expr {
        self.bounded(a.weight() + b.weight() + 2, || a.modulo(b))
    }

    /// `a / b` toward plus infinity, for a known `b >= 1`.
    pub fn ceil_div(&mut self, a: &Expr, b: i64) -> Expr {
        let up = self.add(a, &Expr::Int(b.saturating_sub(1)));
        self.floor_div(&up, &Expr::Int(b))
    }

    /// The smaller of two sizes, without a `min` if the bounds decide.
    pub fn smaller(&mut self, a: &Expr, b: &Expr) -> Expr {
        if let (Expr::Int(x), Expr::Int(y)) = (a, b) {
            return Expr::Int(*x.min(y));
        }
        let (x, y) = (self.bounds(a), self.bounds(b));
        match () {
            () if x.1 <= y.0 => a.clone(),
            () if y.1 <= x.0 => b.clone(),
            () => self.bounded(a.weight() + b.weight() + 2, || a.minimum(b)),
        }
    }

    /// Product of sizes.
    pub fn product(&mut self, dims: &[Expr]) -> Expr {
        let mut n = Expr::Int(1);
        for dim in dims {
            n = self.mul(&n, dim);
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use flambeau_tensor::Symbol;

    use super::*;
    use crate::infer::Env;

    fn dims(text: &str) -> Dims {
        let dim = |w: &str| w.parse().map_or_else(|_| Expr::symbol(Symbol::new(w)), Expr::Int);
        text.split_whitespace().map(dim).collect()
    }

    #[test]
    fn broadcasting_prefers_what_is_known() {
        let check = |a, b, want: &str| assert_eq!(broadcast(&dims(a), &dims(b)).unwrap(), dims(want), "{a} with {b}");
        check("3 1", "4", "3 4");
        check("s", "1", "s");
        check("1", "s", "s");
        check("s", "5", "5");
        check("5", "s", "5");
        check("s", "s", "s");
        check("s", "t", "s");
        check("", "2 0", "2 0");
        check("s", "0", "0");
        assert!(broadcast(&dims("2"), &dims("3")).is_err());
    }

    #[test]
    fn a_target_is_never_enlarged() {
        let check = |a, b, ok| assert_eq!(check_broadcasts_to(&dims(a), &dims(b)).is_ok(), ok, "{a} to {b}");
        check("1 4", "3 4", true);
        check("4", "3 4", true);
        check("s", "4", true);
        check("3 4", "1 4", false);
        check("1 1 4", "3 4", false);
    }

    #[test]
    fn sizes_stop_growing() {
        let mut env = Env::new();
        let cx: &mut dyn ShapeCx = &mut env;
        let mut size = cx.unknown();
        for _ in 0..1000 {
            let grown = cx.add(&size, &Expr::Int(1));
            size = cx.mul(&grown, &grown);
            size = cx.floor_div(&size, &Expr::Int(3));
            assert!(size.weight() <= MAX_SIZE_WEIGHT);
        }
    }
}
