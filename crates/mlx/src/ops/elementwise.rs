//! Nodes that compute each element from the operands' elements at the same place.

use flambeau_ir as ir;
use flambeau_tensor::DType;

use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
    ffi::{Array, Binary, Unary},
    rows::{One, Rows},
    values::cast,
};

/// The type to compute a float function in. On a CPU, MLX rounds half precision after every step;
/// PyTorch rounds once.
fn working(cx: &Cx<'_>, dtype: DType) -> DType {
    if cx.is_cpu() { DType::F32 } else { dtype }
}

macro_rules! float_function {
    ($name:ident) => {
        impl Eval for ir::$name {
            fn rows(&self, _: One<'_>) -> Option<Rows> {
                Rows::aligned([self.x])
            }

            fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
                let dtype = working(cx, cx.out(self.out)?.dtype);
                let y = cx.get_as(self.x, dtype)?.unary(Unary::$name)?;
                cx.put(self.out, y)
            }
        }
    };
}
ir::for_each_float_function!(float_function);

/// The type to compute an activation in. On MLX's CPU it is the result's type, because the program
/// defines each step in that type. On GPUs it is f32, as in PyTorch.
fn activation_type(cx: &Cx<'_>, out: ir::Out) -> Result<DType> {
    Ok(if cx.is_cpu() { cx.out(out)?.dtype } else { DType::F32 })
}

impl Eval for ir::Silu {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.x])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get_as(self.x, activation_type(cx, self.out)?)?;
        let y = x.binary(Binary::Multiply, &x.unary(Unary::Sigmoid)?)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Gelu {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.x])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let dtype = activation_type(cx, self.out)?;
        let x = cx.get_as(self.x, dtype)?;
        let number = |v: f64| cx.scalar(v, dtype);
        let inner = if self.approximate == "tanh" {
            let cube = x.binary(Binary::Multiply, &x)?.binary(Binary::Multiply, &x)?;
            let sum = x.binary(Binary::Add, &cube.binary(Binary::Multiply, &number(0.044715)?)?)?;
            let scale = number(std::f64::consts::FRAC_2_PI.sqrt())?;
            sum.binary(Binary::Multiply, &scale)?.unary(Unary::Tanh)?
        } else {
            x.binary(Binary::Multiply, &number(std::f64::consts::FRAC_1_SQRT_2)?)?.unary(Unary::Erf)?
        };
        let half = x.binary(Binary::Multiply, &number(0.5)?)?;
        let y = half.binary(Binary::Multiply, &inner.binary(Binary::Add, &number(1.0)?)?)?;
        cx.put(self.out, y)
    }
}

macro_rules! keep_nodes {
    ($($node:ident: $op:ident;)*) => { $(impl Eval for ir::$node {
        fn rows(&self, _: One<'_>) -> Option<Rows> {
            Rows::aligned([self.x])
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let y = cx.peek(self.x.0)?.array.unary(Unary::$op)?;
            cx.put(self.out, y)
        }
    })* };
}

keep_nodes! {
    Square: Square;
    Abs: Abs;
    BitwiseInvert: BitwiseInvert;
}

/// Rounding functions leave integers as they are.
macro_rules! rounding_nodes {
    ($($node:ident: |$x:ident| $y:expr;)*) => { $(impl Eval for ir::$node {
        fn rows(&self, _: One<'_>) -> Option<Rows> {
            Rows::aligned([self.x])
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let slot = cx.get(self.x)?;
            let $x = slot.array;
            let y = if slot.dtype.is_float() { $y } else { $x };
            cx.put(self.out, y)
        }
    })* };
}

rounding_nodes! {
    Floor: |x| x.unary(Unary::Floor)?;
    Ceil: |x| x.unary(Unary::Ceil)?;
}

impl Eval for ir::Trunc {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.x])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let y = if x.dtype.is_float() {
            let is_negative = x.array.binary(Binary::Less, &cx.scalar(0.0, x.dtype)?)?;
            is_negative.choose(&x.array.unary(Unary::Ceil)?, &x.array.unary(Unary::Floor)?)?
        } else {
            x.array
        };
        cx.put(self.out, y)
    }
}

impl Eval for ir::Neg {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.x])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        if x.dtype == DType::Bool {
            return Err(OpError::DType(x.dtype));
        }
        let y = x.array.unary(Unary::Negative)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Sign {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.x])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let y = match x.dtype {
            DType::Bool => x.array,
            d if d.is_float() => {
                let sign = x.array.unary(Unary::Sign)?;
                x.array.unary(Unary::IsNan)?.choose(&cx.scalar(0.0, d)?, &sign)?
            }
            _ => x.array.unary(Unary::Sign)?,
        };
        cx.put(self.out, y)
    }
}

impl Eval for ir::Round {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.x])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let y = if self.decimals == 0 {
            if x.dtype.is_float() { x.array.round(0)? } else { x.array }
        } else if x.dtype.is_float() || self.decimals < 0 {
            let scale = 10f32.powi(self.decimals);
            let wide = cast(&x, DType::F32)?.binary(Binary::Multiply, &cx.scalar(scale.into(), DType::F32)?)?;
            wide.round(0)?.binary(Binary::Multiply, &cx.scalar((1.0 / scale).into(), DType::F32)?)?
        } else {
            x.array
        };
        cx.put(self.out, y)
    }
}

/// Both operands in the result's type.
fn pair(cx: &Cx<'_>, a: ir::In, b: ir::In, out: ir::Out) -> Result<(Array, Array, DType)> {
    let dtype = cx.out(out)?.dtype;
    Ok((cx.get_as(a, dtype)?, cx.get_as(b, dtype)?, dtype))
}

macro_rules! pair_nodes {
    ($($node:ident: $op:ident;)*) => { $(impl Eval for ir::$node {
        fn rows(&self, _: One<'_>) -> Option<Rows> {
            Rows::aligned([self.a, self.b])
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let (a, b, _) = pair(cx, self.a, self.b, self.out)?;
            let y = a.binary(Binary::$op, &b)?;
            cx.put(self.out, y)
        }
    })* };
}

pair_nodes! {
    Add: Add;
    Multiply: Multiply;
    Divide: Divide;
    Maximum: Maximum;
    Minimum: Minimum;
    BitwiseAnd: BitwiseAnd;
    BitwiseOr: BitwiseOr;
}

/// Bools that differ; the bits of MLX's true and false are not always 1 and 0.
macro_rules! differ_nodes {
    ($($node:ident: $op:ident;)*) => { $(impl Eval for ir::$node {
        fn rows(&self, _: One<'_>) -> Option<Rows> {
            Rows::aligned([self.a, self.b])
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let (a, b, dtype) = pair(cx, self.a, self.b, self.out)?;
            let y = a.binary(if dtype == DType::Bool { Binary::NotEqual } else { Binary::$op }, &b)?;
            cx.put(self.out, y)
        }
    })* };
}

differ_nodes! {
    Subtract: Subtract;
    BitwiseXor: BitwiseXor;
}

macro_rules! float_pair_nodes {
    ($($node:ident: $op:ident;)*) => { $(impl Eval for ir::$node {
        fn rows(&self, _: One<'_>) -> Option<Rows> {
            Rows::aligned([self.a, self.b])
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let dtype = working(cx, cx.out(self.out)?.dtype);
            let y = cx.get_as(self.a, dtype)?.binary(Binary::$op, &cx.get_as(self.b, dtype)?)?;
            cx.put(self.out, y)
        }
    })* };
}

float_pair_nodes! {
    Atan2: Arctan2;
    LogAddExp: LogAddExp;
}

impl Eval for ir::Power {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.a, self.b])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (a, b, dtype) = pair(cx, self.a, self.b, self.out)?;
        let y = match dtype {
            DType::Bool => a.binary(Binary::LogicalOr, &b.unary(Unary::LogicalNot)?)?,
            d if d.is_float() => a.binary(Binary::Power, &b)?,
            d => {
                // MLX's loop over an exponent's bits never ends for a negative one.
                let zero = cx.scalar(0.0, d)?;
                let negative = b.binary(Binary::Less, &zero)?;
                negative.choose(&zero, &a.binary(Binary::Power, &b.binary(Binary::Maximum, &zero)?)?)?
            }
        };
        cx.put(self.out, y)
    }
}

/// Intermediate arrays of an integer division.
struct Division {
    quotient: Array,
    remainder: Array,
}

/// Division of integers toward minus infinity; both parts are 0 where the divisor is 0. On a CPU,
/// dividing by zero and dividing the least integer by -1 end the process, so both kinds of divisors
/// are replaced first.
fn divide(cx: &Cx<'_>, a: &Array, b: &Array, dtype: DType) -> Result<Division> {
    let (zero, one) = (cx.scalar(0.0, dtype)?, cx.scalar(1.0, dtype)?);
    let by_zero = b.binary(Binary::Equal, &zero)?;
    let is_signed = matches!(dtype, DType::I8 | DType::I16 | DType::I32 | DType::I64);
    let by_minus_one = if is_signed { Some(b.binary(Binary::Equal, &cx.scalar(-1.0, dtype)?)?) } else { None };
    let unsafe_divisor = match &by_minus_one {
        Some(minus) => by_zero.binary(Binary::LogicalOr, minus)?,
        None => by_zero.share()?,
    };
    let b = unsafe_divisor.choose(&one, b)?;
    let mut quotient = a.binary(Binary::FloorDivide, &b)?;
    // Versions of MLX round integer quotients toward zero or down: the remainder shows the
    // direction.
    let mut remainder = a.binary(Binary::Subtract, &quotient.binary(Binary::Multiply, &b)?)?;
    if let Some(by_minus_one) = by_minus_one {
        let signs = remainder.binary(Binary::Less, &zero)?.binary(Binary::NotEqual, &b.binary(Binary::Less, &zero)?)?;
        let is_inexact = remainder.binary(Binary::NotEqual, &zero)?;
        let adjust = signs.binary(Binary::LogicalAnd, &is_inexact)?;
        quotient = adjust.choose(&quotient.binary(Binary::Subtract, &one)?, &quotient)?;
        remainder = adjust.choose(&remainder.binary(Binary::Add, &b)?, &remainder)?;
        quotient = by_minus_one.choose(&a.unary(Unary::Negative)?, &quotient)?;
    }
    Ok(Division { quotient: by_zero.choose(&zero, &quotient)?, remainder })
}

impl Eval for ir::FloorDivide {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.a, self.b])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (a, b, dtype) = pair(cx, self.a, self.b, self.out)?;
        let y = match dtype {
            DType::Bool => a.binary(Binary::LogicalAnd, &b)?,
            d if d.is_float() => a.binary(Binary::Divide, &b)?.unary(Unary::Floor)?,
            d => divide(cx, &a, &b, d)?.quotient,
        };
        cx.put(self.out, y)
    }
}

impl Eval for ir::Remainder {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.a, self.b])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (a, b, dtype) = pair(cx, self.a, self.b, self.out)?;
        let y = match dtype {
            DType::Bool => a.binary(Binary::LogicalAnd, &b.unary(Unary::LogicalNot)?)?,
            d if d.is_float() => a.binary(Binary::Remainder, &b)?,
            d => divide(cx, &a, &b, d)?.remainder,
        };
        cx.put(self.out, y)
    }
}

macro_rules! compare_nodes {
    ($($node:ident)*) => { $(impl Eval for ir::$node {
        fn rows(&self, _: One<'_>) -> Option<Rows> {
            Rows::aligned([self.a, self.b])
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let (a, b) = (cx.peek(self.a.0)?, cx.peek(self.b.0)?);
            let common = ir::promote(a.dtype, b.dtype);
            let y = cast(a, common)?.binary(Binary::$node, &cast(b, common)?)?;
            cx.put(self.out, y)
        }
    })* };
}

compare_nodes!(Less LessEqual Greater GreaterEqual Equal NotEqual);

macro_rules! logical_nodes {
    ($($node:ident)*) => { $(impl Eval for ir::$node {
        fn rows(&self, _: One<'_>) -> Option<Rows> {
            Rows::aligned([self.a, self.b])
        }

        fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
            let (a, b) = (cx.get_as(self.a, DType::Bool)?, cx.get_as(self.b, DType::Bool)?);
            let y = a.binary(Binary::$node, &b)?;
            cx.put(self.out, y)
        }
    })* };
}

logical_nodes!(LogicalAnd LogicalOr);

impl Eval for ir::LogicalNot {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.x])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let y = cx.get_as(self.x, DType::Bool)?.unary(Unary::LogicalNot)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Where {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.condition, self.x, self.y])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let dtype = cx.out(self.out)?.dtype;
        let condition = cx.get_as(self.condition, DType::Bool)?;
        let y = condition.choose(&cx.get_as(self.x, dtype)?, &cx.get_as(self.y, dtype)?)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Clip {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.x].into_iter().chain(self.a_min).chain(self.a_max))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let dtype = cx.out(self.out)?.dtype;
        let mut y = cx.get_as(self.x, dtype)?;
        if let Some(low) = cx.get_opt_as(self.a_min, dtype)? {
            y = y.binary(Binary::Maximum, &low)?;
        }
        if let Some(high) = cx.get_opt_as(self.a_max, dtype)? {
            y = y.binary(Binary::Minimum, &high)?;
        }
        cx.put(self.out, y)
    }
}

impl Eval for ir::AsType {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.x])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let x = cx.get(self.x)?;
        let y = cast(&x, self.scalar_type)?;
        let host = x.host.as_ref().and_then(|h| crate::ops::index::host_cast(h, self.scalar_type));
        cx.put_host(self.out, y, host, x.origin)
    }
}
