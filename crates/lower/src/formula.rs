//! Constants that are computed from others while a program is written.

use flambeau_tensor::{DType, Shape, Tensor, cast};

use crate::{Gguf, QuantPart};

/// What is computed, in f32, from a constant's operands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Formula {
    /// `[variance, weight?]` → `weight / sqrt(variance + eps)`.
    NormScale { eps: f32 },
    /// `[mean, scale, bias?]` → `bias - mean * scale`.
    NormShift,
    /// `[v, g]` → `v * g / |v|`, the length taken over every axis but `dim`, over all if there is none; g has ones elsewhere.
    WeightNorm { dim: Option<usize> },
    /// `[scale, bias]` → `bias - 2^(bits-1) * scale`: the bias of codes that were signed and are stored as unsigned.
    ShiftedBias { bits: u8 },
    /// `[scale, zero_point]` → `-scale * zero_point`.
    NegatedProduct,
    /// `[blocks]` u8 `[N, bytes]` → one part of the packed weight.
    Gguf { format: Gguf, part: QuantPart },
}

impl Formula {
    /// The result of type `dtype` and shape `shape`.
    ///
    /// # Errors
    /// What does not fit: the number, types or sizes of the operands.
    pub fn evaluate(&self, operands: &[Tensor], dtype: DType, shape: &[usize]) -> Result<Tensor, String> {
        if let Formula::Gguf { format, part } = self {
            let [blocks] = operands else { return Err("blocks are missing".to_owned()) };
            let made = format.part(blocks.bytes(), *part, shape)?;
            return cast(&made, dtype).map_err(|e| e.to_string());
        }
        let wide = operands.iter().map(floats).collect::<Result<Vec<_>, _>>()?;
        let n = shape.iter().product::<usize>();
        let optional = |i: usize, or: f32| wide.get(i).cloned().unwrap_or_else(|| vec![or; n]);
        let (Some(first), second) = (wide.first(), wide.get(1)) else { return Err("operands are missing".to_owned()) };
        let values = match self {
            Formula::NormScale { eps } => zip(first, &optional(1, 1.0), |v, w| w / (v + eps).sqrt())?,
            Formula::NormShift => {
                let moved = zip(first, second.ok_or("the scale is missing")?, |m, s| m * s)?;
                zip(&moved, &optional(2, 0.0), |m, b| b - m)?
            }
            Formula::WeightNorm { dim } => weight_norm(first, second.ok_or("g is missing")?, shape, *dim)?,
            Formula::ShiftedBias { bits } => {
                let half = (1_u32 << (bits - 1)) as f32;
                zip(first, second.ok_or("the bias is missing")?, |s, b| b - half * s)?
            }
            Formula::NegatedProduct => zip(first, second.ok_or("the zero point is missing")?, |s, z| -s * z)?,
            Formula::Gguf { .. } => Vec::new(),
        };
        let made = Tensor::from_slice(&values, shape).map_err(|e| e.to_string())?;
        cast(&made, dtype).map_err(|e| e.to_string())
    }
}

fn floats(t: &Tensor) -> Result<Vec<f32>, String> {
    let wide = cast(t, DType::F32).map_err(|e| e.to_string())?;
    wide.as_slice::<f32>().map(<[f32]>::to_vec).map_err(|e| e.to_string())
}

fn zip(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> Result<Vec<f32>, String> {
    if a.len() != b.len() {
        return Err(format!("{} elements against {}", a.len(), b.len()));
    }
    Ok(a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect())
}

fn weight_norm(v: &[f32], g: &[f32], shape: &[usize], dim: Option<usize>) -> Result<Vec<f32>, String> {
    let n = dim.map_or(1, |d| shape.get(d).copied().unwrap_or(0));
    let inner: usize = dim.map_or(v.len(), |d| shape.iter().skip(d + 1).product());
    if g.len() != n || n == 0 || inner == 0 {
        return Err(format!("{} lengths for {n} slices", g.len()));
    }
    let slice = |i: usize| (i / inner) % n;
    let mut squares = vec![0.0_f64; n];
    for (i, &x) in v.iter().enumerate() {
        squares[slice(i)] += f64::from(x) * f64::from(x);
    }
    Ok(v.iter().enumerate().map(|(i, &x)| x * g[slice(i)] / squares[slice(i)].sqrt() as f32).collect())
}

/// Shape of a constant with another last size.
pub(crate) fn with_last(shape: &Shape, last: usize) -> Shape {
    let mut out = shape.clone();
    if let Some(size) = out.last_mut() {
        *size = last;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(formula: Formula, operands: &[(&[f32], &[usize])], shape: &[usize], want: &[f32]) {
        let operands: Vec<Tensor> = operands.iter().map(|(v, s)| Tensor::from_slice(v, s).unwrap()).collect();
        let made = formula.evaluate(&operands, DType::F32, shape).unwrap();
        for (a, b) in made.as_slice::<f32>().unwrap().iter().zip(want) {
            assert!((a - b).abs() < 1e-6, "{formula:?}: {a} instead of {b}");
        }
        assert_eq!(made.shape(), shape);
    }

    #[test]
    fn formulas_compute_what_they_say() {
        check(Formula::NormScale { eps: 1.0 }, &[(&[3.0, 0.0], &[2]), (&[4.0, 5.0], &[2])], &[2], &[2.0, 5.0]);
        check(Formula::NormShift, &[(&[2.0], &[1]), (&[3.0], &[1])], &[1], &[-6.0]);
        check(Formula::NormShift, &[(&[2.0], &[1]), (&[3.0], &[1]), (&[1.0], &[1])], &[1], &[-5.0]);
        let v: &[f32] = &[3.0, 4.0, 6.0, 8.0];
        check(Formula::WeightNorm { dim: Some(0) }, &[(v, &[2, 2]), (&[5.0, 1.0], &[2, 1])], &[2, 2], &[3.0, 4.0, 0.6, 0.8]);
        check(
            Formula::WeightNorm { dim: Some(1) },
            &[(&[3.0, 0.0, 4.0, 2.0], &[2, 2]), (&[5.0, 1.0], &[1, 2])],
            &[2, 2],
            &[3.0, 0.0, 4.0, 1.0],
        );
        check(Formula::ShiftedBias { bits: 4 }, &[(&[0.5], &[1]), (&[1.0], &[1])], &[1], &[-3.0]);
        check(Formula::NegatedProduct, &[(&[0.5], &[1]), (&[3.0], &[1])], &[1], &[-1.5]);
    }

    #[test]
    fn operands_of_other_sizes_are_refused() {
        let short = [Tensor::from_slice(&[1.0f32], &[1]).unwrap(), Tensor::from_slice(&[1.0f32, 2.0], &[2]).unwrap()];
        assert!(Formula::NegatedProduct.evaluate(&short, DType::F32, &[1]).is_err());
        assert!(Formula::NormShift.evaluate(&short[..1], DType::F32, &[1]).is_err());
    }
}
