//! Nodes that compute 32-bit integers, on the host.

use flambeau_ir as ir;

use super::{index::integers, reduce::axis_of};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
    trace::Origin,
};

fn narrow(value: i64) -> Result<i32> {
    i32::try_from(value).map_err(|_| OpError::value(format!("{value} does not fit 32 bits")))
}

/// `a mod b` with the sign of `b`.
fn floor_rem(a: i64, b: i64) -> Option<i64> {
    let r = a.checked_rem_euclid(b)?;
    Some(if r != 0 && b < 0 { r + b } else { r })
}

/// `floor(a / b)`.
fn floor_div(a: i64, b: i64) -> Option<i64> {
    Some((a - floor_rem(a, b)?) / b)
}

macro_rules! integer_nodes {
    ($($node:ident: $f:expr;)*) => { $(impl Eval for ir::$node {
        const HAS_RULE: bool = false;
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let f: fn(i64, i64) -> Option<i64> = $f;
            let (a, b) = (cx.int(self.a)?, cx.int(self.b)?);
            let value = f(a, b).ok_or_else(|| OpError::value(format!("divides {a} by zero")))?;
            cx.put_value(self.out, narrow(value)?);
            Ok(())
        }
    })* };
}

integer_nodes! {
    MultiplyInt: |a, b| Some(a * b);
    FloorDivideInt: floor_div;
    ModInt: floor_rem;
}

/// What is open of `a + sign * b`.
///
/// # Errors
/// If it is more than one integer and a constant.
fn open_sum(cx: &Cx<'_>, [a, b]: [ir::Int; 2], sign: i64) -> Result<Option<Origin>> {
    match (cx.origin_of(a), cx.origin_of(b)) {
        (None, None) => Ok(None),
        (Some(origin), None) => Ok(Some(Origin { offset: origin.offset + sign * cx.int(b)?, ..origin })),
        (None, Some(origin)) if sign == 1 => Ok(Some(Origin { offset: origin.offset + cx.int(a)?, ..origin })),
        _ => Err(OpError::value("cannot trace such a sum")),
    }
}

macro_rules! sum_nodes {
    ($($node:ident: $sign:literal;)*) => { $(impl Eval for ir::$node {
        const HAS_RULE: bool = false;
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            const SIGN: i64 = $sign;
            let value = cx.int(self.a)? + SIGN * cx.int(self.b)?;
            let origin = open_sum(cx, [self.a, self.b], SIGN)?;
            cx.put_value(self.out, narrow(value)?);
            cx.put_open(self.out, origin);
            Ok(())
        }
    })* };
}

sum_nodes! {
    AddInt: 1;
    SubtractInt: -1;
}

impl Eval for ir::SymSize {
    const HAS_RULE: bool = false;
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let slot = cx.peek(self.a.0)?;
        let axis = axis_of(self.dim.into(), slot.rank())?;
        let (size, origin) = (slot.shape[axis], slot.padded.filter(|p| p.axis == axis).map(|p| p.length));
        cx.put_value(self.out, narrow(size as i64)?);
        cx.put_open(self.out, origin);
        Ok(())
    }
}

impl Eval for ir::ItemInt {
    const HAS_RULE: bool = false;
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        if let Some(origin) = cx.peek(self.x.0)?.origin {
            let value = cx.trace()?.value(origin)?;
            cx.put_value(self.out, narrow(value)?);
            cx.put_open(self.out, Some(origin));
            return Ok(());
        }
        let x = cx.read(self.x.0)?;
        match integers(&x)?[..] {
            [value] => cx.put_value(self.out, value as i32),
            _ => return Err(OpError::value(format!("expected one element, found shape {:?}", x.shape()))),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn division_follows_the_divisor_sign() {
        for (a, b, q, r) in [(7i64, 2i64, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (-6, -2, 3, 0), (6, -2, -3, 0)] {
            assert_eq!(super::floor_div(a, b), Some(q), "{a} / {b}");
            assert_eq!(super::floor_rem(a, b), Some(r), "{a} mod {b}");
        }
    }
}
