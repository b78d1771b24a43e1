//! Evaluation of constant expressions.

use std::sync::Arc;

use flambeau_lower::{ConstExpr, Constant};
use flambeau_tensor::{AlignedBytes, Bytes, DType, Shape, Tensor, cast, row_major_strides};
use sha2::{Digest, Sha256};

use crate::{Error, error::ConstantError, pack, quantize::Parts, weights::Weights};

/// Computes the elements of a constant. Each operand is read, used and dropped. Only the parts of
/// the weight that was quantized last are kept.
pub(crate) fn evaluate(constant: &Constant, weights: &Weights<'_>) -> Result<Tensor, Error> {
    let of = |operand: &Arc<Constant>| evaluate(operand, weights);
    let fail = |reason: ConstantError| Error::Weight { name: constant.name.clone(), reason };
    let tensor = match &constant.expr {
        ConstExpr::Stored(number) => Ok(weights.read(*number)?),
        ConstExpr::Literal(bytes) => wrap(constant, bytes.clone()),
        ConstExpr::Cast(x) => cast(&of(x)?, constant.dtype).map_err(Into::into),
        ConstExpr::Reshape(x) | ConstExpr::Reinterpret(x) => wrap(constant, of(x)?.bytes().clone()),
        ConstExpr::Permute(x, perm) => permute(&of(x)?, perm).map_err(Into::into),
        ConstExpr::Concat(parts, axis) => {
            let parts = parts.iter().map(of).collect::<Result<Vec<_>, _>>()?;
            wrap(constant, concat(&parts, *axis))
        }
        ConstExpr::Reciprocal(x) => map_floats(&of(x)?, reciprocal).map_err(Into::into),
        ConstExpr::Repeat(x, factor) => wrap(constant, repeat(&of(x)?, *factor)),
        ConstExpr::PackSigned { codes, bits } => pack::pack_signed(&of(codes)?, *bits).and_then(|bytes| wrap(constant, bytes)),
        ConstExpr::AffineBias { scale, zero_point, bits } => {
            let zero_point = zero_point.as_ref().map(of).transpose()?;
            pack::affine_bias(&of(scale)?, zero_point.as_ref(), *bits)
        }
        ConstExpr::Formula(formula, operands) => {
            let operands = operands.iter().map(of).collect::<Result<Vec<_>, _>>()?;
            formula.evaluate(&operands, constant.dtype, &constant.shape).map_err(Into::into)
        }
        ConstExpr::Quantize { weight, scheme, part } => {
            let parts = weights.quantized(weight, *scheme, |inputs, threads| {
                Parts::new(&of(weight)?, *scheme, inputs, threads).map_err(|error| fail(error.into()))
            })?;
            parts.get(*part).cloned().ok_or(ConstantError::Part)
        }
    };
    let tensor = tensor.map_err(fail)?;
    if tensor.dtype() != constant.dtype || tensor.shape() != &constant.shape[..] {
        let found = (tensor.dtype(), Shape::from_slice(tensor.shape()));
        return Err(fail(ConstantError::Type {
            found: found.into(),
            expected: Box::new((constant.dtype, constant.shape.clone())),
        }));
    }
    Ok(tensor)
}

/// A text that identifies a constant's contents: equal texts mean equal bytes.
pub(crate) fn identity(constant: &Constant, weights: &Weights<'_>) -> String {
    let of = |operand: &Arc<Constant>| identity(operand, weights);
    let (dtype, shape) = (constant.dtype, &constant.shape);
    match &constant.expr {
        ConstExpr::Stored(number) => weights.identity(*number),
        ConstExpr::Literal(bytes) => format!("literal {dtype} {shape:?} {:?}", Sha256::digest(bytes)),
        ConstExpr::Cast(x) => format!("cast {dtype} ({})", of(x)),
        ConstExpr::Reshape(x) | ConstExpr::Reinterpret(x) => of(x),
        ConstExpr::Permute(x, perm) => format!("permute {perm:?} ({})", of(x)),
        ConstExpr::Concat(parts, axis) => format!("concat {axis} {:?}", parts.iter().map(of).collect::<Vec<_>>()),
        ConstExpr::Reciprocal(x) => format!("reciprocal ({})", of(x)),
        ConstExpr::Repeat(x, factor) => format!("repeat {factor} ({})", of(x)),
        ConstExpr::PackSigned { codes, bits } => format!("pack {bits} ({})", of(codes)),
        ConstExpr::AffineBias { scale, zero_point, bits } => {
            format!("bias {bits} ({}) {:?}", of(scale), zero_point.as_ref().map(of))
        }
        ConstExpr::Formula(formula, operands) => {
            format!("{formula:?} {dtype} {:?}", operands.iter().map(of).collect::<Vec<_>>())
        }
        ConstExpr::Quantize { weight, scheme, part } => {
            // Weights with equal bytes get other codes for other inputs.
            let inputs = weights.inputs_of(&weight.name).map(|_| &weight.name);
            format!("quantize {scheme:?} {part:?} {inputs:?} ({})", of(weight))
        }
    }
}

fn wrap(constant: &Constant, bytes: Bytes) -> Result<Tensor, ConstantError> {
    Ok(Tensor::new(constant.dtype, &constant.shape, bytes)?.aligned())
}

/// Permutes axes: axis `i` of the result is axis `perm[i]` of `x`.
fn permute(x: &Tensor, perm: &[usize]) -> Result<Tensor, flambeau_tensor::Error> {
    let shape: Shape = perm.iter().map(|&p| x.shape()[p]).collect();
    let strides = row_major_strides(x.shape());
    let strides: Vec<usize> = perm.iter().map(|&p| strides[p].unsigned_abs()).collect();
    let size = x.dtype().size();
    let mut out = AlignedBytes::zeroed(x.bytes().len());
    let mut index = vec![0usize; shape.len()];
    for element in out.as_mut_slice().chunks_exact_mut(size) {
        let at: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        element.copy_from_slice(&x.bytes()[at * size..(at + 1) * size]);
        for d in (0..shape.len()).rev() {
            index[d] += 1;
            if index[d] < shape[d] {
                break;
            }
            index[d] = 0;
        }
    }
    Tensor::new(x.dtype(), &shape, out.into_bytes())
}

/// Concatenates tensors that have equal sizes on all other axes.
fn concat(parts: &[Tensor], axis: usize) -> Bytes {
    let outer: usize = parts.first().map_or(0, |p| p.shape()[..axis].iter().product());
    let mut out = Vec::with_capacity(parts.iter().map(|p| p.bytes().len()).sum());
    for row in 0..outer {
        for part in parts {
            let len = part.bytes().len() / outer;
            out.extend_from_slice(&part.bytes()[row * len..(row + 1) * len]);
        }
    }
    out.into()
}

fn repeat(x: &Tensor, factor: usize) -> Bytes {
    let size = x.dtype().size();
    let mut out = Vec::with_capacity(x.bytes().len() * factor);
    for element in x.bytes().chunks_exact(size) {
        for _ in 0..factor {
            out.extend_from_slice(element);
        }
    }
    out.into()
}

/// The f32 reciprocal of `v`, chosen so that its own reciprocal is exactly `v` if possible. Readers
/// invert it again.
fn reciprocal(v: f32) -> f32 {
    let nearest = 1.0 / v;
    [nearest, nearest.next_up(), nearest.next_down()].into_iter().find(|r| 1.0 / r == v).unwrap_or(nearest)
}

/// Applies a function in f32 to a float tensor.
fn map_floats(x: &Tensor, f: impl Fn(f32) -> f32) -> Result<Tensor, flambeau_tensor::Error> {
    let wide = cast(x, DType::F32)?;
    let values: Vec<f32> = wide.as_slice::<f32>()?.iter().map(|&v| f(v)).collect();
    cast(&Tensor::from_slice(&values, x.shape())?, x.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutation_moves_elements() {
        let x = Tensor::from_slice(&[1i32, 2, 3, 4, 5, 6], &[2, 3]).unwrap();
        let y = permute(&x, &[1, 0]).unwrap();
        assert_eq!((y.shape(), y.as_slice::<i32>().unwrap()), (&[3, 2][..], &[1, 4, 2, 5, 3, 6][..]));
    }

    #[test]
    fn joining_interleaves_rows() {
        let part = |v: &[u8], n| Tensor::from_slice(v, &[2, n]).unwrap();
        assert_eq!(&concat(&[part(&[1, 2], 1), part(&[3, 4, 5, 6], 2)], 1)[..], [1, 3, 4, 2, 5, 6]);
    }
}
