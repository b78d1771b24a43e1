//! Integer arithmetic on sizes, and calls that only record assumptions.

use flambeau_ir::{In, ItemInt};
use flambeau_tensor::{Expr, Real, Rounding};

use super::{RuleRow, row};
use crate::{Call, Item, Lower, Refuse, call::unsupported, lower::NEW_VALUE};

type Items = Result<Vec<Item>, Refuse>;

fn sym_size(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    let axis = cx.axis(call, "dim", 0, cx.spec(x).rank())?;
    match cx.spec(x).dims.get(axis) {
        Some(size) => Ok(vec![Item::Int(size.clone())]),
        None => unsupported("a rank-0 tensor has no sizes"),
    }
}

fn item(cx: &mut Lower, call: &Call) -> Items {
    let x = call.tensor("self")?;
    if cx.spec(x).dtype.is_float() {
        return unsupported("value slots hold integers, not floats");
    }
    let vid = cx.emit_value(ItemInt { x: In(x), out: NEW_VALUE })?;
    Ok(vec![Item::Int(cx.graph().values[vid.0 as usize].clone())])
}

macro_rules! arithmetic {
    ($($name:ident($a:ident, $b:ident) => $value:expr;)*) => { $(
        fn $name(_: &mut Lower, call: &Call) -> Items {
            let ($a, $b) = (call.size("a")?, call.size("b")?);
            Ok(vec![Item::Int($value)])
        }
    )* };
}

arithmetic! {
    add(a, b) => a + b;
    sub(a, b) => a - b;
    mul(a, b) => a * b;
    floordiv(a, b) => a.floor_div(&b);
    modulo(a, b) => a.modulo(&b);
    maximum(a, b) => a.maximum(&b);
    minimum(a, b) => a.minimum(&b);
}

fn neg(_: &mut Lower, call: &Call) -> Items {
    Ok(vec![Item::Int(Expr::Int(-1) * call.size("a")?)])
}

/// A known power with a small exponent, or a symbolic power.
fn power(_: &mut Lower, call: &Call) -> Items {
    let (base, exponent) = (call.size("a")?, call.size("b")?);
    let Some(exponent) = exponent.as_int() else {
        let power = Real::Power([Real::Size(base), Real::Size(exponent)].into());
        return Ok(vec![Item::Int(Expr::rounded(Rounding::Nearest, power))]);
    };
    if !(0..=8).contains(&exponent) {
        return unsupported(format!("a size to the power of {exponent}"));
    }
    Ok(vec![Item::Int((0..exponent).fold(Expr::Int(1), |n, _| n * base.clone()))])
}

/// Calls that only record the exporter's assumptions.
fn nothing(_: &mut Lower, _: &Call) -> Items {
    Ok(Vec::new())
}

pub(super) const ROWS: &[RuleRow] = &[
    row("_operator.add", add),
    row("_operator.floordiv", floordiv),
    row("_operator.mod", modulo),
    row("_operator.mul", mul),
    row("_operator.neg", neg),
    row("_operator.pos", |_, call| Ok(vec![Item::Int(call.size("a")?)])),
    row("_operator.sub", sub),
    row("torch.sym_max", maximum),
    row("torch.sym_min", minimum),
    row("aten._assert_async.msg", nothing),
    row("aten._assert_scalar.default", nothing),
    row("aten._assert_tensor_metadata.default", nothing),
    row("aten._linalg_check_errors.default", nothing),
    row("aten._print.default", nothing),
    row("aten.item.default", item),
    row("aten._local_scalar_dense.default", item),
    row("aten.sym_constrain_range.default", nothing),
    row("aten.sym_constrain_range_for_size.default", nothing),
    row("aten.sym_size.int", sym_size),
    // Truth values of sizes only feed assertions.
    row("_operator.eq", nothing),
    row("_operator.ge", nothing),
    row("_operator.gt", nothing),
    row("_operator.le", nothing),
    row("_operator.lt", nothing),
    row("_operator.ne", nothing),
    row("_operator.and_", nothing),
    row("_operator.or_", nothing),
    row("_operator.pow", power),
    row("torch.sym_not", nothing),
    row("aten._assert_async.default", nothing),
    row("aten._functional_assert_async.msg", nothing),
    row("aten.sym_numel.default", |cx, call| Ok(vec![Item::Int(cx.spec(call.tensor("self")?).numel())])),
];
