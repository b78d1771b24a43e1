//! [`Build`] emits the nodes of a decomposition and infers their results.

use flambeau_tensor::{DType, Expr};

use super::Result;
use crate::{
    Infer, InferError, Node, Role, ShapeCx, Spec, Tid, Vid,
    field::{Float, In, Int, Out, OutVid, SlotRef},
    infer::Env,
    node::{Add, AsType, ExpandDims, Full, IdCopy, Multiply, Subtract, SymSize},
};

/// Nodes under construction. Every result has a separate slot.
pub(super) struct Build {
    env: Env,
    nodes: Vec<Node>,
    first_temp: u32,
    temps: u32,
    first_value: u32,
    values: u32,
}

impl Build {
    /// Starts with the operands' contents. Fresh slots are numbered from the given numbers on.
    pub(super) fn new(env: Env, first_temp: u32, first_value: u32) -> Build {
        Build { env, nodes: Vec::new(), first_temp, temps: 0, first_value, values: 0 }
    }

    /// Returns the nodes and the numbers of fresh slots. The last node writes `result` to `out`.
    pub(super) fn finish(mut self, result: In, out: Out) -> (Vec<Node>, u32, u32) {
        let mut renamed = false;
        if let Some(last) = self.nodes.last_mut() {
            last.walk_mut(&mut |role, slot| match slot {
                SlotRef::Tensor(tid) if role == Role::Write && *tid == result.0 => {
                    *tid = out.0;
                    renamed = true;
                }
                _ => {}
            });
        }
        if !renamed {
            self.nodes.push(IdCopy { x: result, out }.into());
        }
        (self.nodes, self.temps, self.values)
    }

    /// Contents of a slot.
    pub(super) fn spec(&self, x: In) -> Result<Spec> {
        self.env.spec(x.0)
    }

    /// Adds a node that writes one tensor.
    pub(super) fn emit<N: Into<Node>>(&mut self, make: impl FnOnce(Out) -> N) -> Result<In> {
        let tid = Tid(self.first_temp.checked_add(self.temps).ok_or_else(too_many)?);
        self.temps += 1;
        let node = make(Out(tid)).into();
        node.infer(&mut self.env)?;
        self.nodes.push(node);
        Ok(In(tid))
    }

    /// Adds a node that writes one integer.
    pub(super) fn emit_int<N: Into<Node>>(&mut self, make: impl FnOnce(OutVid) -> N) -> Result<Int> {
        let vid = Vid(self.first_value.checked_add(self.values).ok_or_else(too_many)?);
        self.values += 1;
        let node = make(OutVid(vid)).into();
        node.infer(&mut self.env)?;
        self.nodes.push(node);
        Ok(Int::Vid(vid))
    }

    /// The size of an axis: a literal if known, else a value read at run time.
    pub(super) fn size(&mut self, x: In, axis: usize) -> Result<Int> {
        match self.spec(x)?.dims.get(axis) {
            Some(Expr::Int(n)) => Ok(Int::Lit(*n)),
            _ => self.emit_int(|out| SymSize { a: x, dim: axis as i32, out }),
        }
    }

    /// Combines two integers by a node, or by `fold` if both are literals.
    pub(super) fn integer<N: Into<Node>>(
        &mut self,
        a: Int,
        b: Int,
        fold: impl FnOnce(i64, i64) -> Option<i64>,
        make: impl FnOnce(Int, Int, OutVid) -> N,
    ) -> Result<Int> {
        if let (Int::Lit(x), Int::Lit(y)) = (a, b)
            && let Some(folded) = fold(x, y)
        {
            return Ok(Int::Lit(folded));
        }
        self.emit_int(|out| make(a, b, out))
    }

    /// `x` in another type.
    pub(super) fn cast(&mut self, x: In, dtype: DType) -> Result<In> {
        if self.spec(x)?.dtype == dtype {
            return Ok(x);
        }
        self.emit(|out| AsType { x, out, scalar_type: dtype })
    }

    /// `x` in f32.
    pub(super) fn f32(&mut self, x: In) -> Result<In> {
        self.cast(x, DType::F32)
    }

    /// A scalar constant of rank 0.
    pub(super) fn scalar(&mut self, v: f32, dtype: DType) -> Result<In> {
        self.emit(|out| Full { out, shape: Vec::new(), v: Float::Lit(v.into()), scalar_type: dtype })
    }

    pub(super) fn add(&mut self, a: In, b: In) -> Result<In> {
        self.emit(|out| Add { a, b, out })
    }

    pub(super) fn sub(&mut self, a: In, b: In) -> Result<In> {
        self.emit(|out| Subtract { a, b, out })
    }

    pub(super) fn mul(&mut self, a: In, b: In) -> Result<In> {
        self.emit(|out| Multiply { a, b, out })
    }

    pub(super) fn expand(&mut self, x: In, axis: i32) -> Result<In> {
        self.emit(|out| ExpandDims { x, out, axis })
    }
}

fn too_many() -> InferError {
    InferError::Shape("no slot numbers are left".to_owned())
}
