//! PyTorch's type promotion, for calls without a recorded computation type.

use flambeau_tensor::{DType, DTypeClass};

use crate::{Arg, Lower};

/// An operand's kind in type promotion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A tensor with at least one dim.
    Tensor(DType),
    /// A rank-0 tensor; it widens the result only from a higher category.
    ZeroDim(DType),
    /// A Python number; only its category counts.
    Number(DTypeClass),
}

impl Operand {
    /// The kind of an argument. Arguments that are neither tensors, booleans nor integers count as
    /// floats.
    pub fn of(cx: &Lower, arg: &Arg) -> Operand {
        match arg {
            Arg::Tensor(t) if cx.spec(*t).rank() == 0 => Operand::ZeroDim(cx.spec(*t).dtype),
            Arg::Tensor(t) => Operand::Tensor(cx.spec(*t).dtype),
            Arg::Bool(_) => Operand::Number(DTypeClass::Bool),
            Arg::Int(_) => Operand::Number(DTypeClass::Integer),
            _ => Operand::Number(DTypeClass::Float),
        }
    }
}

/// The computation type of an elementwise operation.
///
/// Tensors with dims decide the type. Rank-0 tensors, and then numbers, count only where they raise
/// the category.
pub fn result_type(operands: &[Operand]) -> DType {
    let join = |pick: &dyn Fn(&Operand) -> Option<DType>| operands.iter().filter_map(pick).reduce(torch_promote);
    let dims = join(&|o| if let Operand::Tensor(d) = o { Some(*d) } else { None });
    let zero_dims = join(&|o| if let Operand::ZeroDim(d) = o { Some(*d) } else { None });
    let numbers = join(&|o| if let Operand::Number(c) = o { Some(default_of(*c)) } else { None });
    [zero_dims, numbers]
        .into_iter()
        .flatten()
        .fold(dims, |acc, d| match acc {
            Some(a) if a.class() >= d.class() => Some(a),
            Some(a) => Some(torch_promote(a, d)),
            None => Some(d),
        })
        .unwrap_or(DType::F32)
}

fn default_of(class: DTypeClass) -> DType {
    match class {
        DTypeClass::Bool => DType::Bool,
        DTypeClass::Integer => DType::I64,
        DTypeClass::Float => DType::F32,
        DTypeClass::Complex => DType::C64,
    }
}

/// Promotes two tensors of the same kind. As in MLX, except that an integer never widens a half
/// type, and u8 with i8 gives i16.
fn torch_promote(a: DType, b: DType) -> DType {
    if a == DType::F64 || b == DType::F64 {
        return DType::F64;
    }
    flambeau_ir::promote(a, b)
}

#[cfg(test)]
mod tests {
    use super::{Operand::*, *};

    #[test]
    fn numbers_and_rank_zero_only_raise_the_category() {
        use DType::*;
        assert_eq!(result_type(&[Tensor(BF16), Number(DTypeClass::Float)]), BF16);
        assert_eq!(result_type(&[Tensor(BF16), ZeroDim(F32)]), BF16);
        assert_eq!(result_type(&[Tensor(I32), Number(DTypeClass::Float)]), F32);
        assert_eq!(result_type(&[Tensor(I32), Number(DTypeClass::Integer)]), I32);
        assert_eq!(result_type(&[Tensor(Bool), Number(DTypeClass::Integer)]), I64);
        assert_eq!(result_type(&[ZeroDim(F16), Number(DTypeClass::Float)]), F16);
        assert_eq!(result_type(&[Tensor(F16), Tensor(BF16)]), F32);
    }
}
