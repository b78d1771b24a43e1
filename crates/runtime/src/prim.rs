//! Operators on single numbers, and between numbers and tensors. Graphs cannot express them.

use flambeau_tensor::{DType, Tensor, cast};

use crate::{OperatorError, Value};

/// An operator on numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prim {
    Add,
    Sub,
    Mul,
    FloorDiv,
    TrueDiv,
    Mod,
    Neg,
    Eq,
    Gt,
    Ge,
    Lt,
    Le,
    /// The only element of a tensor.
    Item,
    /// One size of a tensor.
    Size,
}

impl Prim {
    /// The operator with this full name.
    pub(crate) fn named(name: &str) -> Option<Prim> {
        Some(match name {
            "executorch_prim::add.Scalar" => Prim::Add,
            "executorch_prim::sub.Scalar" => Prim::Sub,
            "executorch_prim::mul.Scalar" => Prim::Mul,
            "executorch_prim::floordiv.Scalar" => Prim::FloorDiv,
            "executorch_prim::truediv.Scalar" => Prim::TrueDiv,
            "executorch_prim::mod.Scalar" | "executorch_prim::mod.int" => Prim::Mod,
            "executorch_prim::neg.Scalar" => Prim::Neg,
            "executorch_prim::eq.Scalar" => Prim::Eq,
            "executorch_prim::gt.Scalar" => Prim::Gt,
            "executorch_prim::ge.Scalar" => Prim::Ge,
            "executorch_prim::lt.Scalar" => Prim::Lt,
            "executorch_prim::le.Scalar" => Prim::Le,
            "aten::_local_scalar_dense" | "aten::item" => Prim::Item,
            "aten::sym_size.int" => Prim::Size,
            _ => return None,
        })
    }

    /// Number of operands.
    pub(crate) fn arity(self) -> usize {
        if matches!(self, Prim::Neg | Prim::Item) { 1 } else { 2 }
    }

    /// Computes the result.
    pub(crate) fn eval(self, args: &[&Value]) -> Result<Value, OperatorError> {
        match (self, args) {
            (Prim::Item, [Value::Tensor(t)]) => item(t),
            (Prim::Size, [Value::Tensor(t), Value::Int(dim)]) => {
                let axis = flambeau_tensor::normalize_axis(*dim, t.rank());
                let missing = || OperatorError::Axis { axis: *dim, rank: t.rank() };
                let size = axis.and_then(|axis| t.shape().get(axis)).ok_or_else(missing)?;
                Ok(Value::Int(*size as i64))
            }
            (Prim::Neg, [Value::Int(a)]) => Ok(Value::Int(a.wrapping_neg())),
            (Prim::Neg, [Value::Double(a)]) => Ok(Value::Double(-a)),
            (op, [Value::Int(a), Value::Int(b)]) => op.integers(*a, *b),
            (op, [a, b]) => match (number(a), number(b)) {
                (Some(a), Some(b)) => op.floats(a, b),
                _ => Err(OperatorError::of_arguments(args)),
            },
            (_, args) => Err(OperatorError::of_arguments(args)),
        }
    }

    fn integers(self, a: i64, b: i64) -> Result<Value, OperatorError> {
        let divisor = || if b == 0 { Err(OperatorError::DivisionByZero) } else { Ok(b) };
        let value = match self {
            Prim::Add => Value::Int(a.wrapping_add(b)),
            Prim::Sub => Value::Int(a.wrapping_sub(b)),
            Prim::Mul => Value::Int(a.wrapping_mul(b)),
            Prim::FloorDiv => {
                let (quotient, rest) = (a.wrapping_div(divisor()?), a.wrapping_rem(b));
                Value::Int(quotient - i64::from(rest != 0 && (rest < 0) != (b < 0)))
            }
            Prim::Mod => {
                let rest = a.wrapping_rem(divisor()?);
                Value::Int(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest })
            }
            Prim::TrueDiv => Value::Double(a as f64 / divisor()? as f64),
            Prim::Eq => Value::Bool(a == b),
            Prim::Gt => Value::Bool(a > b),
            Prim::Ge => Value::Bool(a >= b),
            Prim::Lt => Value::Bool(a < b),
            Prim::Le => Value::Bool(a <= b),
            Prim::Neg | Prim::Item | Prim::Size => return Err(OperatorError::of_arguments(&[&Value::Int(a), &Value::Int(b)])),
        };
        Ok(value)
    }

    fn floats(self, a: f64, b: f64) -> Result<Value, OperatorError> {
        Ok(match self {
            Prim::Add => Value::Double(a + b),
            Prim::Sub => Value::Double(a - b),
            Prim::Mul => Value::Double(a * b),
            Prim::FloorDiv => Value::Double((a / b).floor()),
            Prim::TrueDiv => Value::Double(a / b),
            Prim::Mod => Value::Double(a - b * (a / b).floor()),
            Prim::Eq => Value::Bool(a == b),
            Prim::Gt => Value::Bool(a > b),
            Prim::Ge => Value::Bool(a >= b),
            Prim::Lt => Value::Bool(a < b),
            Prim::Le => Value::Bool(a <= b),
            Prim::Neg | Prim::Item | Prim::Size => {
                return Err(OperatorError::of_arguments(&[&Value::Double(a), &Value::Double(b)]));
            }
        })
    }
}

fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Int(v) => Some(*v as f64),
        Value::Double(v) => Some(*v),
        Value::Bool(b) => Some(f64::from(u8::from(*b))),
        _ => None,
    }
}

fn item(t: &Tensor) -> Result<Value, OperatorError> {
    let to = match t.dtype() {
        d if d.is_float() => DType::F64,
        _ => DType::I64,
    };
    let wide = cast(t, to)?;
    let many = || OperatorError::Item(t.numel());
    if to == DType::F64 {
        return wide.as_slice::<f64>().ok().filter(|v| v.len() == 1).map(|v| Value::Double(v[0])).ok_or_else(many);
    }
    let value = wide.as_slice::<i64>().ok().filter(|v| v.len() == 1).map(|v| v[0]).ok_or_else(many)?;
    Ok(if t.dtype() == DType::Bool { Value::Bool(value != 0) } else { Value::Int(value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(op: Prim, a: i64, b: i64, expected: &Value) {
        let found = op.eval(&[&Value::Int(a), &Value::Int(b)]).unwrap();
        assert_eq!(found.describe(), expected.describe(), "{op:?} {a} {b}");
    }

    #[test]
    fn division_rounds_towards_minus_infinity() {
        for (a, b, quotient, rest) in [(7, 2, 3, 1), (-7, 2, -4, 1), (7, -2, -4, -1), (-7, -2, 3, -1), (6, 3, 2, 0)] {
            check(Prim::FloorDiv, a, b, &Value::Int(quotient));
            check(Prim::Mod, a, b, &Value::Int(rest));
        }
        assert!(Prim::Mod.eval(&[&Value::Int(1), &Value::Int(0)]).is_err());
        check(Prim::Le, 2, 2, &Value::Bool(true));
    }

    #[test]
    fn items_and_sizes_come_from_tensors() {
        let t = Tensor::from_slice(&[2.5f32], &[1, 1]).unwrap();
        assert_eq!(Prim::Item.eval(&[&t.clone().into()]).unwrap().describe(), "the number 2.5");
        assert_eq!(Prim::Size.eval(&[&t.clone().into(), &Value::Int(-1)]).unwrap().as_int(), Some(1));
        assert!(Prim::Size.eval(&[&t.into(), &Value::Int(2)]).is_err());
        assert!(Prim::Item.eval(&[&Tensor::zeros(DType::I32, &[2]).unwrap().into()]).is_err());
    }
}
