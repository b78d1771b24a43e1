//! Modified Bessel functions of the first kind of orders 0 and 1, in f32, accurate to a few units
//! in the last place.

use flambeau_ir::Tid;
use flambeau_tensor::DType;

use super::{
    RuleRow, one,
    ops::{self, Emitted, polynomial},
    row,
};
use crate::{Call, Item, Lower, Refuse};

type Items = Result<Vec<Item>, Refuse>;

/// Polynomial for `i0e(x)` in `x - 1.5`, for `x` from 0 to 3.
const I0E_NEAR: [f64; 12] = [
    -5.777_523_6e-7,
    3.465_041_6e-6,
    -1.527_131_6e-5,
    7.393_456e-5,
    -3.312_509_5e-4,
    1.296_683e-3,
    -4.461_039_3e-3,
    1.335_190_1e-2,
    -3.429_205_3e-2,
    7.538_127e-2,
    -1.483_942_3e-1,
    3.674_336e-1,
];

/// Polynomial for `i0e(x)` in `x - 5.5`, for `x` from 3 to 8.
const I0E_MIDDLE: [f64; 12] = [
    -4.675_52e-10,
    3.181_844_6e-9,
    -1.182_265_3e-8,
    6.747_999_5e-8,
    -4.292_090_8e-7,
    2.360_588_5e-6,
    -1.269_396_2e-5,
    7.006_332_5e-5,
    -4.013_316_6e-4,
    2.445_813_7e-3,
    -1.678_224_7e-2,
    1.744_832_5e-1,
];

/// Polynomial for `i0e(x) √x` in `8 / x - 0.5`, for `x` from 8 on.
const I0E_FAR: [f64; 6] = [1.135_238_4e-5, 2.622_463_8e-5, 8.897_725e-5, 5.446_246_4e-4, 6.721_106_4e-3, 4.021_765e-1];

/// Polynomial for `i1e(x) / x` in `x - 1.5`, for `x` from 0 to 3.
const I1E_NEAR: [f64; 12] = [
    -1.029_356_44e-7,
    6.724_265e-7,
    -3.382_793_5e-6,
    1.830_316_4e-5,
    -9.181_69e-5,
    4.103_712_9e-4,
    -1.637_158_4e-3,
    5.763_964_7e-3,
    -1.759_921_6e-2,
    4.551_816_4e-2,
    -9.577_22e-2,
    1.460_262_5e-1,
];

/// Polynomial for `i1e(x) / x` in `x - 5.5`, for `x` from 3 to 8.
const I1E_MIDDLE: [f64; 12] = [
    -1.644_637_2e-10,
    1.262_780_4e-9,
    -6.170_475_2e-9,
    4.109_970_7e-8,
    -2.817_786_8e-7,
    1.732_130_2e-6,
    -1.012_394_75e-5,
    5.697_84e-5,
    -3.068_446_5e-4,
    1.566_734_3e-3,
    -7.375_195e-3,
    2.867_291e-2,
];

/// Polynomial for `i1e(x) √x` in `8 / x - 0.5`, for `x` from 8 on.
const I1E_FAR: [f64; 6] = [-1.318_692_4e-5, -3.215_419_6e-5, -1.201_222_04e-4, -8.766_731e-4, -1.949_915_7e-2, 3.893_984_6e-1];

/// A function's polynomials below 3, from 3 to 8, and from 8 on.
struct Pieces<'p> {
    near: &'p [f64],
    middle: &'p [f64],
    far: &'p [f64],
}

const I0E: Pieces = Pieces { near: &I0E_NEAR, middle: &I0E_MIDDLE, far: &I0E_FAR };
const I1E: Pieces = Pieces { near: &I1E_NEAR, middle: &I1E_MIDDLE, far: &I1E_FAR };

impl Pieces<'_> {
    /// The polynomials' values for magnitudes below 8 and from 8 on: `(before, beyond)`.
    fn of(&self, cx: &mut Lower, x: Tid) -> Result<(Tid, Tid), Refuse> {
        let (near, middle) = (ops::add_number(cx, x, -1.5)?, ops::add_number(cx, x, -5.5)?);
        let (near, middle) = (polynomial(cx, near, self.near)?, polynomial(cx, middle, self.middle)?);
        let edge = ops::number_like(cx, x, 3.0)?;
        let is_near = ops::lt(cx, x, edge)?;
        let before = ops::select(cx, is_near, near, middle)?;
        let root = ops::rsqrt(cx, x)?;
        let inverse = ops::reciprocal(cx, x)?;
        let part = ops::mul_number(cx, inverse, 8.0)?;
        let part = ops::add_number(cx, part, -0.5)?;
        let beyond = polynomial(cx, part, self.far)?;
        Ok((before, ops::mul(cx, beyond, root)?))
    }
}

/// `e^-|x| I0(x)`.
fn i0e_of(cx: &mut Lower, magnitude: Tid) -> Emitted {
    let (before, beyond) = I0E.of(cx, magnitude)?;
    let edge = ops::number_like(cx, magnitude, 8.0)?;
    let is_before = ops::lt(cx, magnitude, edge)?;
    ops::select(cx, is_before, before, beyond)
}

/// `e^-|x| I1(x)`, with the sign of `x`.
fn i1e_of(cx: &mut Lower, x: Tid, magnitude: Tid) -> Emitted {
    let (before, beyond) = I1E.of(cx, magnitude)?;
    let before = ops::mul(cx, before, x)?;
    let sign = ops::sign(cx, x)?;
    let beyond = ops::mul(cx, beyond, sign)?;
    let edge = ops::number_like(cx, magnitude, 8.0)?;
    let is_before = ops::lt(cx, magnitude, edge)?;
    ops::select(cx, is_before, before, beyond)
}

/// `y e^x`, infinite where the power is, as in PyTorch.
fn unscaled(cx: &mut Lower, y: Tid, x: Tid) -> Emitted {
    let power = ops::exp(cx, x)?;
    ops::mul(cx, y, power)
}

/// The operand and its magnitude.
fn operand(cx: &mut Lower, call: &Call) -> Result<(Tid, Tid), Refuse> {
    let x = cx.operand(call, "self", DType::F32)?;
    Ok((x, ops::abs(cx, x)?))
}

fn i0e(cx: &mut Lower, call: &Call) -> Items {
    let (_, magnitude) = operand(cx, call)?;
    one(i0e_of(cx, magnitude)?)
}

fn i0(cx: &mut Lower, call: &Call) -> Items {
    let (_, magnitude) = operand(cx, call)?;
    let scaled = i0e_of(cx, magnitude)?;
    one(unscaled(cx, scaled, magnitude)?)
}

fn i1e(cx: &mut Lower, call: &Call) -> Items {
    let (x, magnitude) = operand(cx, call)?;
    one(i1e_of(cx, x, magnitude)?)
}

fn i1(cx: &mut Lower, call: &Call) -> Items {
    let (x, magnitude) = operand(cx, call)?;
    let scaled = i1e_of(cx, x, magnitude)?;
    one(unscaled(cx, scaled, magnitude)?)
}

pub(super) const ROWS: &[RuleRow] = &[
    row("aten.i0.default", i0),
    row("aten.special_i0.default", i0),
    row("aten.special_i0e.default", i0e),
    row("aten.special_i1.default", i1),
    row("aten.special_i1e.default", i1e),
    row("aten.special_modified_bessel_i0.default", i0),
    row("aten.special_modified_bessel_i1.default", i1),
];
