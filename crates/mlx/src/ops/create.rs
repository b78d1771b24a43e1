//! Nodes that make tensors out of numbers.

use flambeau_ir::{self as ir, infer::run::OutSpec};
use flambeau_tensor::DType;

use crate::{
    cx::Cx,
    error::Result,
    eval::Eval,
    ffi::{Array, Binary},
    rows::{One, Rows},
};

impl Eval for ir::ARange {
    /// Exact integers, converted at the end: half precision would drift.
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let (start, step) = (cx.int(self.start)?, cx.int(self.step)?);
        let count = cx.out(self.out)?.shape.iter().product::<usize>();
        let places = Array::arange(cx.api(), 0.0, count as f64, 1.0, DType::I64)?;
        let scaled = places.binary(Binary::Multiply, &cx.scalar(step as f64, DType::I64)?)?;
        let y = scaled.binary(Binary::Add, &cx.scalar(start as f64, DType::I64)?)?;
        cx.put(self.out, y)
    }
}

fn full(cx: &Cx<'_>, value: ir::Float, spec: &OutSpec) -> Result<Array> {
    let value = match value {
        ir::Float::Lit(v) => v as f32,
        ir::Float::Vid(vid) => cx.value(vid)? as f32,
    };
    let one = cx.scalar(value.into(), DType::F32)?.cast(spec.dtype)?;
    Ok(one.broadcast(&spec.shape)?)
}

impl Eval for ir::Full {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let y = full(cx, self.v, &cx.out(self.out)?)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::FullLike {
    fn rows(&self, _: One<'_>) -> Option<Rows> {
        Rows::aligned([self.x])
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let y = full(cx, self.v, &cx.out(self.out)?)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Tri {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let y = Array::full(cx.api(), &spec.shape, 1.0, spec.dtype)?.tril(self.k)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Tril {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let y = cx.peek(self.x.0)?.array.tril(self.k)?;
        cx.put(self.out, y)
    }
}

impl Eval for ir::Triu {
    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let y = cx.peek(self.x.0)?.array.triu(self.k)?;
        cx.put(self.out, y)
    }
}
