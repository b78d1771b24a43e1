//! Nodes that compute 32-bit integers, on the host.

use flambeau_ir::{self as ir, infer::axis_of};

use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
    open::Origin,
    values::integers,
};

macro_rules! inferred_nodes {
    ($($node:ident)*) => { $(impl Eval for ir::$node {
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            cx.put_inferred(self.out)
        }
    })* };
}
inferred_nodes! { MultiplyInt FloorDivideInt ModInt }

/// The open integer of `a + sign * b`, if there is one.
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
        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let origin = open_sum(cx, [self.a, self.b], $sign)?;
            cx.put_inferred(self.out)?;
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
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let slot = cx.peek(self.a.0)?;
        let axis = axis_of(self.dim, slot.rank())?;
        let origin = slot.padded.filter(|p| p.axis == axis).map(|p| p.length);
        cx.put_inferred(self.out)?;
        cx.put_open(self.out, origin);
        Ok(())
    }
}

impl Eval for ir::ItemInt {
    const HAS_RULE: bool = false;
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        if let Some(origin) = cx.peek(self.x.0)?.origin {
            let value = cx.open()?.value(origin)?;
            let value = i32::try_from(value).map_err(|_| OpError::value(format!("{value} does not fit 32 bits")))?;
            cx.put_value(self.out, value);
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
