//! Rounds to 8-bit floats at run time. Nodes have no such type, so the values stay in a wider type.

use flambeau_ir::Tid;
use flambeau_tensor::DType;

use super::{
    ops::{self, Emitted},
    qparams::rounded,
};
use crate::{Lower, call::unsupported};

/// Parameters of an 8-bit float type: mantissa bits, exponents of the smallest and largest normal
/// numbers, largest number.
fn format(dtype: DType) -> Option<(i32, i32, i32, f64)> {
    match dtype {
        DType::F8E4M3 => Some((3, -6, 8, 448.0)),
        DType::F8E5M2 => Some((2, -14, 15, 57344.0)),
        _ => None,
    }
}

impl Lower {
    /// Rounds `x` to the nearest number of an 8-bit float type, ties to even. The result is f16,
    /// which represents all these numbers. Overflow gives the largest number in E4M3 and infinity
    /// in E5M2.
    ///
    /// # Errors
    /// Fails for other types.
    pub fn to_float8(&mut self, x: Tid, dtype: DType) -> Emitted {
        let Some((mantissa, low, high, largest)) = format(dtype) else {
            return unsupported(format!("rounding to {dtype}"));
        };
        let x = self.cast(x, DType::F32)?;
        let magnitude = ops::abs(self, x)?;
        let mut step = self.number(2f64.powi(low - mantissa), DType::F32)?;
        for exponent in low + 1..=high {
            let from = self.number(2f64.powi(exponent), DType::F32)?;
            let inside = ops::ge(self, magnitude, from)?;
            let wider = self.number(2f64.powi(exponent - mantissa), DType::F32)?;
            step = ops::select(self, inside, wider, step)?;
        }
        let steps = ops::div(self, x, step)?;
        let steps = rounded(self, steps)?;
        let nearest = ops::mul(self, steps, step)?;
        let magnitude = ops::abs(self, nearest)?;
        let most = self.number(largest, DType::F32)?;
        let beyond = ops::gt(self, magnitude, most)?;
        let sign = ops::sign(self, x)?;
        let instead = ops::mul_number(self, sign, if dtype == DType::F8E4M3 { largest } else { f64::INFINITY })?;
        let rounded = ops::select(self, beyond, instead, nearest)?;
        self.cast(rounded, DType::F16)
    }
}
