//! Constants computed from other constants while a program is written.

use flambeau_tensor::{AlignedBytes, DType, Shape, Tensor, cast, gguf::Block, pack_codes};

use crate::QuantPart;

/// A mismatch between a formula and its operands.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormulaError {
    /// The named operand is missing.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// Two elementwise operands differ in length.
    #[error("{left} elements against {right}")]
    Lengths { left: usize, right: usize },
    /// The count of lengths differs from the count of normalized slices.
    #[error("{lengths} lengths for {slices} slices")]
    Slices { lengths: usize, slices: usize },
    /// The operand ends within a block.
    #[error("{bytes} bytes are no whole number of {}-byte blocks", .block.bytes())]
    Blocks { bytes: usize, block: Block },
    /// An operand or the result has the wrong type or size for the formula.
    #[error(transparent)]
    Tensor(#[from] flambeau_tensor::Error),
}

/// A formula over constant operands, computed in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Formula {
    /// `[variance, weight?]` → `weight / sqrt(variance + eps)`.
    NormScale { eps: f32 },
    /// `[mean, scale, bias?]` → `bias - mean * scale`.
    NormShift,
    /// `[v, g]` → `v * g / |v|`. The length is taken over every axis except `dim`, or over all axes
    /// without `dim`. `g` has size 1 on the reduced axes.
    WeightNorm { dim: Option<usize> },
    /// `[scale, bias]` → `bias - 2^(bits-1) * scale`: the bias for signed codes stored as unsigned
    /// codes.
    ShiftedBias { bits: u8 },
    /// `[scale, zero_point]` → `-scale * zero_point`.
    NegatedProduct,
    /// `[a, b]` → `a * b`, both broadcast to the result.
    Product,
    /// `[scales]` of one byte each → the bytes `[rows, columns]`. The operand consists of tiles of
    /// 128 rows by 4 columns. In a tile, rows `i`, `i + 32`, `i + 64` and `i + 96` are adjacent.
    Untiled,
    /// `[blocks]` u8 `[N, bytes]` → one part of the packed weight.
    Gguf { block: Block, part: QuantPart },
}

impl Formula {
    /// Computes the result with element type `dtype` and shape `shape`.
    ///
    /// # Errors
    /// Returns a [`FormulaError`] if the number, types or sizes of the operands do not fit.
    pub fn evaluate(&self, operands: &[Tensor], dtype: DType, shape: &[usize]) -> Result<Tensor, FormulaError> {
        if let Formula::Gguf { block, part } = self {
            let blocks = operands.first().ok_or(FormulaError::Missing("the weight"))?;
            return Ok(cast(&gguf_part(*block, blocks.bytes(), *part, shape)?, dtype)?);
        }
        if let Formula::Untiled = self {
            let tiles = operands.first().ok_or(FormulaError::Missing("the scales"))?;
            return Ok(Tensor::new(dtype, shape, untiled(tiles.bytes(), shape)?.into())?);
        }
        if let (Formula::Product, [a, b]) = (self, operands) {
            return Ok(cast(&product(a, b, shape)?, dtype)?);
        }
        let wide = operands.iter().map(floats).collect::<Result<Vec<_>, _>>()?;
        let n = shape.iter().product::<usize>();
        let operand = |i: usize, name| wide.get(i).map(Vec::as_slice).ok_or(FormulaError::Missing(name));
        let optional = |i: usize, or: f32| wide.get(i).cloned().unwrap_or_else(|| vec![or; n]);
        let values = match self {
            Formula::NormScale { eps } => zip(operand(0, "the variance")?, &optional(1, 1.0), |v, w| w / (v + eps).sqrt())?,
            Formula::NormShift => {
                let moved = zip(operand(0, "the mean")?, operand(1, "the scale")?, |m, s| m * s)?;
                zip(&moved, &optional(2, 0.0), |m, b| b - m)?
            }
            Formula::WeightNorm { dim } => weight_norm(operand(0, "v")?, operand(1, "g")?, shape, *dim)?,
            Formula::ShiftedBias { bits } => {
                let half = (1_u32 << (bits - 1)) as f32;
                zip(operand(0, "the scale")?, operand(1, "the bias")?, |s, b| b - half * s)?
            }
            Formula::NegatedProduct => zip(operand(0, "the scale")?, operand(1, "the zero point")?, |s, z| -s * z)?,
            Formula::Gguf { .. } | Formula::Untiled | Formula::Product => Vec::new(),
        };
        Ok(cast(&Tensor::from_slice(&values, shape)?, dtype)?)
    }
}

/// The product of two tensors that broadcast to `shape`.
fn product(a: &Tensor, b: &Tensor, shape: &[usize]) -> Result<Tensor, FormulaError> {
    let (x, y) = (floats(a)?, floats(b)?);
    let strides = |own: &[usize]| {
        let (mut strides, mut unit) = (vec![0; shape.len()], 1);
        for (stride, &size) in strides.iter_mut().rev().zip(own.iter().rev()) {
            *stride = if size == 1 { 0 } else { unit };
            unit *= size;
        }
        strides
    };
    let (by_a, by_b) = (strides(a.shape()), strides(b.shape()));
    let mut values = Vec::with_capacity(shape.iter().product());
    let (mut index, mut at) = (vec![0; shape.len()], (0, 0));
    for _ in 0..shape.iter().product::<usize>() {
        let (Some(a), Some(b)) = (x.get(at.0), y.get(at.1)) else {
            return Err(FormulaError::Lengths { left: x.len(), right: y.len() });
        };
        values.push(a * b);
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            at = (at.0 + by_a[axis], at.1 + by_b[axis]);
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
            at = (at.0 - shape[axis] * by_a[axis], at.1 - shape[axis] * by_b[axis]);
        }
    }
    Ok(Tensor::from_slice(&values, shape)?)
}

/// Reorders tiles of bytes into rows.
fn untiled(tiles: &[u8], shape: &[usize]) -> Result<Vec<u8>, FormulaError> {
    let [rows, columns] = *shape else { return Err(FormulaError::Missing("an axis of the scales")) };
    let wide = columns.div_ceil(4);
    let needed = rows.div_ceil(128) * wide * 512;
    if tiles.len() != needed {
        return Err(FormulaError::Lengths { left: tiles.len(), right: needed });
    }
    let at = |r: usize, c: usize| (r / 128 * wide + c / 4) * 512 + r % 32 * 16 + r % 128 / 32 * 4 + c % 4;
    Ok((0..rows).flat_map(|r| (0..columns).map(move |c| tiles[at(r, c)])).collect())
}

/// Extracts one part of all blocks in order: codes as u32 words, scales or biases as f32.
fn gguf_part(block: Block, bytes: &[u8], part: QuantPart, shape: &[usize]) -> Result<Tensor, FormulaError> {
    if !bytes.len().is_multiple_of(block.bytes()) {
        return Err(FormulaError::Blocks { bytes: bytes.len(), block });
    }
    let blocks = bytes.chunks_exact(block.bytes());
    if part == QuantPart::Codes {
        let width = block.elements() * block.bits() / 8;
        let mut words = AlignedBytes::zeroed(blocks.len() * width);
        let mut codes = vec![0; block.elements()];
        for (bytes, out) in blocks.zip(words.as_mut_slice().chunks_exact_mut(width)) {
            block.codes(bytes, &mut codes);
            pack_codes(&codes, block.bits(), out);
        }
        return Ok(Tensor::new(DType::U32, shape, words.into_bytes())?);
    }
    let mut groups = vec![(0.0, 0.0); block.groups()];
    let mut values = Vec::with_capacity(blocks.len() * groups.len());
    for bytes in blocks {
        block.affine(bytes, &mut groups);
        values.extend(groups.iter().map(|&(scale, bias)| if part == QuantPart::Scales { scale } else { bias }));
    }
    Ok(Tensor::from_slice(&values, shape)?)
}

fn floats(t: &Tensor) -> Result<Vec<f32>, FormulaError> {
    Ok(cast(t, DType::F32)?.as_slice::<f32>()?.to_vec())
}

fn zip(a: &[f32], b: &[f32], f: impl Fn(f32, f32) -> f32) -> Result<Vec<f32>, FormulaError> {
    if a.len() != b.len() {
        return Err(FormulaError::Lengths { left: a.len(), right: b.len() });
    }
    Ok(a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect())
}

fn weight_norm(v: &[f32], g: &[f32], shape: &[usize], dim: Option<usize>) -> Result<Vec<f32>, FormulaError> {
    let n = dim.map_or(1, |d| shape.get(d).copied().unwrap_or(0));
    let inner: usize = dim.map_or(v.len(), |d| shape.iter().skip(d + 1).product());
    if g.len() != n || n == 0 || inner == 0 {
        return Err(FormulaError::Slices { lengths: g.len(), slices: n });
    }
    let slice = |i: usize| (i / inner) % n;
    let mut squares = vec![0.0_f64; n];
    for (i, &x) in v.iter().enumerate() {
        squares[slice(i)] += f64::from(x) * f64::from(x);
    }
    Ok(v.iter().enumerate().map(|(i, &x)| x * g[slice(i)] / squares[slice(i)].sqrt() as f32).collect())
}

/// The shape with its last size replaced.
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
        let lengths = FormulaError::Lengths { left: 1, right: 2 };
        assert_eq!(Formula::NegatedProduct.evaluate(&short, DType::F32, &[1]).unwrap_err(), lengths);
        assert_eq!(Formula::NormShift.evaluate(&short[..1], DType::F32, &[1]).unwrap_err(), FormulaError::Missing("the scale"));
    }

    #[test]
    fn blocks_become_words_scales_and_biases() {
        // d = 1; codes 0..16 in low nibbles (elements 0..16) and 15 in high nibbles (elements
        // 16..32).
        let mut block = vec![0x00, 0x3c];
        block.extend((0..16).map(|code| code | 0xf0));
        let n = block.len();
        let blocks = [Tensor::new(DType::U8, &[1, n], block.into()).unwrap()];
        let make =
            |part, dtype, shape: &[usize]| Formula::Gguf { block: Block::Q4_0, part }.evaluate(&blocks, dtype, shape).unwrap();
        let words = make(QuantPart::Codes, DType::U32, &[1, 4]);
        assert_eq!(words.as_slice::<u32>().unwrap(), [0x7654_3210, 0xfedc_ba98, u32::MAX, u32::MAX]);
        assert_eq!(make(QuantPart::Scales, DType::F32, &[1, 1]).as_slice::<f32>().unwrap(), [1.0]);
        assert_eq!(make(QuantPart::Biases, DType::F32, &[1, 1]).as_slice::<f32>().unwrap(), [-8.0]);
        let short = [Tensor::new(DType::U8, &[17], vec![0; 17].into()).unwrap()];
        let part = Formula::Gguf { block: Block::Q4_0, part: QuantPart::Codes };
        let fault = FormulaError::Blocks { bytes: 17, block: Block::Q4_0 };
        assert_eq!(part.evaluate(&short, DType::U32, &[1, 4]).unwrap_err(), fault);
    }
}
