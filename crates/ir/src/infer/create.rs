//! Rules of nodes that create tensors from attributes.
//!
//! Empty results are always allowed, even if ExecuTorch's runtime refuses them.

use flambeau_tensor::{DType, Expr};

use super::{Infer, InferError, Result, ShapeCx, bad_attribute, need_node_dtype, need_rank_from};
use crate::node::{ARange, Full, FullLike, RandomBits, Tri, Tril, Triu};

/// Number of values from `start` up to `stop`. Symbolic bounds are assumed to be in order.
fn arange_len(cx: &mut dyn ShapeCx, start: &Expr, stop: &Expr, step: &Expr) -> Result<Expr> {
    let n = match step.as_int() {
        Some(0) => return bad_attribute("step", 0, "any other step"),
        Some(by) if by > 0 => {
            let span = cx.sub(stop, start);
            cx.ceil_div(&span, by)
        }
        Some(by) => {
            let span = cx.sub(start, stop);
            cx.ceil_div(&span, -by)
        }
        None => cx.unknown(),
    };
    Ok(n.as_int().map_or(n, |n| Expr::Int(n.max(0))))
}

impl Infer for ARange {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let dtype = need_node_dtype("scalar_type", self.scalar_type.unwrap_or(DType::I32))?;
        if dtype == DType::Bool {
            return Err(InferError::DType { field: "scalar_type", found: dtype, expected: "a number type" });
        }
        let (start, stop, step) = (cx.int(self.start)?, cx.int(self.stop)?, cx.int(self.step)?);
        let n = arange_len(cx, &start, &stop, &step)?;
        cx.write_created(self.out, dtype, [n].into_iter().collect())
    }
}

impl Infer for Full {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        cx.check_float(self.v)?;
        let dims = cx.ints(&self.shape)?;
        cx.write_created(self.out, need_node_dtype("scalar_type", self.scalar_type)?, dims)
    }
}

impl Infer for FullLike {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        cx.check_float(self.v)?;
        let x = cx.read(self.x)?;
        cx.write(self.out, need_node_dtype("scalar_type", self.scalar_type.unwrap_or(x.dtype))?, x.dims)
    }
}

impl Infer for Tri {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let dims = cx.ints(&[self.n, self.m])?;
        cx.write_created(self.out, need_node_dtype("scalar_type", self.scalar_type)?, dims)
    }
}

macro_rules! triangles {
    ($($name:ident)*) => { $(
        impl Infer for $name {
            fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
                let x = cx.read(self.x)?;
                need_rank_from("x", &x, 2)?;
                cx.write(self.out, x.dtype, x.dims)
            }
        }
    )* };
}

triangles!(Tril Triu);

impl Infer for RandomBits {
    fn infer(&self, cx: &mut dyn ShapeCx) -> Result<()> {
        let dtype = match self.width {
            1 => DType::U8,
            2 => DType::U16,
            4 => DType::U32,
            other => return bad_attribute("width", other, "1, 2 or 4 bytes"),
        };
        if let Some(seed) = self.seed {
            cx.value(seed.0)?;
        }
        let dims = cx.ints(&self.shape)?;
        cx.write_created(self.out, dtype, dims)
    }
}
