//! Nodes and constants that rules add to the graph.

use flambeau_ir::{
    AsType, ChainId, ExpandDims, Float, Full, IdCopy, If, In, InferError, Int, ItemInt, Node, Out, Reshape, Slot, Tid, Transpose,
    Vid,
};
use flambeau_tensor::{AlignedBytes, DType, Expr, Shape, Tensor};

use crate::{
    Arg, Call, ConstExpr, Constant, Lower, Refuse,
    call::unsupported,
    lower::{NEW, NEW_VALUE},
    simplify::simplify,
};

impl Lower {
    /// Adds a node with results written as [`NEW`]; returns its first tensor result.
    pub(crate) fn emit(&mut self, node: impl Into<Node>) -> Result<Tid, Refuse> {
        let node = node.into();
        if let Some(t) = simplify(self, &node)? {
            return Ok(t);
        }
        match self.emit_all(node)?.first() {
            Some(Slot::Tensor(t)) => Ok(*t),
            _ => unsupported("the node has no tensor result"),
        }
    }

    /// Adds a node with an integer result written as [`NEW_VALUE`].
    pub(crate) fn emit_value(&mut self, node: impl Into<Node>) -> Result<Vid, Refuse> {
        match self.emit_all(node.into())?.first() {
            Some(Slot::Value(v)) => Ok(*v),
            _ => unsupported("the node has no integer result"),
        }
    }

    /// Copies `from` into `to`, a slot made by [`Lower::slot`].
    ///
    /// # Errors
    /// Fails if `from` has no value.
    pub fn copy(&mut self, from: Tid, to: Tid) -> Result<(), Refuse> {
        self.emit_all(Node::IdCopy(IdCopy { x: In(from), out: Out(to) })).map(drop)
    }

    /// Runs chain `then` if `condition`, a tensor of one boolean or integer, is not zero, else
    /// chain `otherwise`.
    ///
    /// # Errors
    /// Fails if the condition has another type or more elements.
    pub fn branch(&mut self, condition: Tid, then: u32, otherwise: u32) -> Result<(), Refuse> {
        let condition = Int::Vid(self.emit_value(ItemInt { x: In(condition), out: NEW_VALUE })?);
        let (then_chain_idx, else_chain_idx) = (ChainId(then), ChainId(otherwise));
        self.emit_all(Node::If(If { cond: condition, then_chain_idx, else_chain_idx })).map(drop)
    }

    /// Adds a rank-0 constant.
    pub(crate) fn number(&mut self, value: f64, dtype: DType) -> Result<Tid, Refuse> {
        self.filled(value, dtype, &[])
    }

    /// Adds a constant with all elements equal.
    pub(crate) fn filled(&mut self, value: f64, dtype: DType, shape: &[usize]) -> Result<Tid, Refuse> {
        let values = vec![value; shape.iter().product()];
        self.numbers(&format!("_scalar_{value}_{dtype}"), &values, dtype, shape)
    }

    /// Adds a rank-0 integer constant; bits beyond the type are dropped.
    pub(crate) fn integer(&mut self, value: i64, dtype: DType) -> Result<Tid, Refuse> {
        let wide = Tensor::from_slice(&[value], &[]).map_err(|e| Refuse::Unsupported(e.to_string()))?;
        let narrow = flambeau_tensor::cast(&wide, dtype).map_err(|_| Refuse::DType(dtype))?;
        Ok(self.literal(&format!("_scalar_{value}_{dtype}"), narrow))
    }

    /// Adds a vector of integers as a constant.
    pub(crate) fn integers(&mut self, name: &str, values: &[i64], dtype: DType) -> Result<Tid, Refuse> {
        let wide = Tensor::from_slice(values, &[values.len()]).map_err(|e| Refuse::Unsupported(e.to_string()))?;
        let narrow = flambeau_tensor::cast(&wide, dtype).map_err(|_| Refuse::DType(dtype))?;
        Ok(self.literal(name, narrow))
    }

    /// Adds a constant of these floats in row-major order.
    pub(crate) fn floats(&mut self, name: &str, values: &[f32], shape: &[usize]) -> Result<Tid, Refuse> {
        let tensor = Tensor::from_slice(values, shape).map_err(|e| Refuse::Unsupported(e.to_string()))?;
        Ok(self.literal(name, tensor))
    }

    /// Adds a constant of these numbers in row-major order.
    pub(crate) fn numbers(&mut self, name: &str, values: &[f64], dtype: DType, shape: &[usize]) -> Result<Tid, Refuse> {
        let wide = Tensor::from_slice(values, shape).map_err(|e| Refuse::Unsupported(e.to_string()))?;
        let narrow = flambeau_tensor::cast(&wide, dtype).map_err(|_| Refuse::DType(dtype))?;
        Ok(self.literal(name, narrow))
    }

    fn literal(&mut self, name: &str, tensor: Tensor) -> Tid {
        let bytes = AlignedBytes::copy_of(tensor.bytes()).into_bytes();
        let shape = Shape::from_slice(tensor.shape());
        self.constant(Constant { name: name.to_owned(), dtype: tensor.dtype(), shape, expr: ConstExpr::Literal(bytes) })
    }

    /// Reads an argument as a tensor of element type `dtype`. Casts a tensor, makes a number a
    /// rank-0 constant, and fills a tensor with a symbolic integer.
    pub(crate) fn operand(&mut self, call: &Call, param: &str, dtype: DType) -> Result<Tid, Refuse> {
        match call.arg(param) {
            Some(Arg::Tensor(t)) => self.cast(*t, dtype),
            Some(Arg::Int(e)) if e.as_int().is_none() => {
                let v = Float::Vid(self.vid(e)?);
                self.emit(Full { out: NEW, shape: Vec::new(), v, scalar_type: dtype })
            }
            // A float cannot represent every 64-bit integer.
            Some(Arg::Int(Expr::Int(v))) if !dtype.is_float() => self.integer(*v, dtype),
            Some(_) => {
                let value = call.float_or(param, 0.0)?;
                self.number(value, dtype)
            }
            None => Err(Refuse::Missing(param.to_owned())),
        }
    }

    /// Casts `t` to an element type.
    pub(crate) fn cast(&mut self, t: Tid, dtype: DType) -> Result<Tid, Refuse> {
        self.emit(AsType { x: In(t), out: NEW, scalar_type: dtype })
    }

    /// Reshapes `t` to these sizes.
    pub(crate) fn reshape(&mut self, t: Tid, dims: &[Expr]) -> Result<Tid, Refuse> {
        if *self.spec(t).dims == *dims {
            return Ok(t);
        }
        // The engine infers a single unknown size, so no node computes it.
        let unknown: Vec<usize> = (0..dims.len()).filter(|&i| dims[i].as_int().is_none()).collect();
        let inferred = match unknown[..] {
            [only] if dims.iter().all(|d| d.as_int() != Some(0)) => Some(only),
            _ => None,
        };
        let size = |(i, d): (usize, &Expr)| if inferred == Some(i) { Ok(Int::Lit(-1)) } else { self.int(d) };
        let shape = dims.iter().enumerate().map(size).collect::<Result<_, _>>()?;
        let out = self.emit(Reshape { x: In(t), out: NEW, shape })?;
        Ok(out)
    }

    /// Permutes the axes of `t`.
    pub(crate) fn permute(&mut self, t: Tid, perm: &[usize]) -> Result<Tid, Refuse> {
        self.emit(Transpose { x: In(t), out: NEW, perm: perm.iter().map(|&p| p as i32).collect() })
    }

    /// Inserts an axis of size 1 into `t`.
    pub(crate) fn unsqueeze(&mut self, t: Tid, axis: usize) -> Result<Tid, Refuse> {
        self.emit(ExpandDims { x: In(t), out: NEW, axis: axis as i32 })
    }

    /// The axis that an argument selects, counted from the front.
    pub(crate) fn axis(&self, call: &Call, param: &str, default: i64, rank: usize) -> Result<usize, Refuse> {
        let axis = call.int_or(param, default)?;
        flambeau_tensor::normalize_axis(axis, rank).ok_or(Refuse::Infer(InferError::Axis { axis, rank }))
    }
}
