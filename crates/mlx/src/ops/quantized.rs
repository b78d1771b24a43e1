//! Nodes over packed weights.

use flambeau_ir as ir;
use flambeau_tensor::{DType, Shape};

use super::grouped::Grouped;
use super::linalg::{batch_of, gathered, is_sorted, matrix_indices, product_type};
use crate::{
    cx::Cx,
    error::{OpError, Result},
    eval::Eval,
    ffi::{Array, Binary, QuantLayout, QuantizedMatrix},
    rows::{One, Rows},
};

/// The nvfp4 global scale counts in units of the largest product of a code and a scale.
const NVFP4_RANGE: f64 = 448.0 * 6.0;

/// Minimum number of rows for which MLX's CUDA backend multiplies unpacked weights faster than
/// packed ones.
const ROWS_TO_UNPACK: usize = 32;

/// Packed weights with scales and biases.
struct Packed {
    layout: QuantLayout,
    w: Array,
    scales: Array,
    biases: Option<Array>,
    /// Whether MLX multiplies such weights without unpacking them.
    multiplies: bool,
}

/// The shortest group of affine codes that MLX multiplies. MLX unpacks shorter groups on its CPU
/// only: on CUDA the result stays unwritten.
const SHORTEST_GROUP: i32 = 32;

impl Packed {
    /// Scales and biases stored as plain numbers are converted to `dtype`.
    fn new(
        cx: &Cx<'_>,
        [w, scales]: [ir::In; 2],
        biases: Option<ir::In>,
        (mode, group_size, bits): (ir::QuantMode, i32, i32),
        dtype: DType,
    ) -> Result<Packed> {
        let layout = QuantLayout { group_size, bits, mode: mode.name() };
        // MLX 0.32 on CUDA multiplies several rows by rows of a single group wrongly.
        let is_one_group = cx.is_cuda() && cx.peek(scales.0)?.shape.last() == Some(&1);
        let scales = if mode == ir::QuantMode::Affine { cx.get_as(scales, dtype)? } else { cx.get(scales)?.array };
        let multiplies = match mode {
            ir::QuantMode::Affine => group_size >= SHORTEST_GROUP && !is_one_group,
            _ => cx.m.support.multiplies_float_codes,
        };
        Ok(Packed { layout, w: cx.get(w)?.array, scales, biases: cx.get_opt_as(biases, dtype)?, multiplies })
    }

    fn matrix(&self) -> QuantizedMatrix<'_> {
        QuantizedMatrix { w: &self.w, scales: &self.scales, biases: self.biases.as_ref(), layout: self.layout }
    }

    fn unpack(&self) -> Result<Array> {
        match &self.biases {
            Some(biases) if self.layout.group_size < SHORTEST_GROUP => self.unpack_short_groups(biases),
            _ => Ok(Array::dequantize(self.w.api(), self.matrix())?),
        }
    }

    /// Codes as floats first, by scales of 1 and biases of 0, then each group by its own.
    fn unpack_short_groups(&self, biases: &Array) -> Result<Array> {
        let (dtype, shape) = self.scales.spec()?;
        let (group, ratio) = (self.layout.group_size as usize, (SHORTEST_GROUP / self.layout.group_size) as usize);
        let (groups, lead) = shape.split_last().ok_or_else(|| OpError::value("packed weights without an axis"))?;
        if !groups.is_multiple_of(ratio) {
            let what = format!("rows of {groups} groups of {group} codes cannot be unpacked: MLX takes groups of {SHORTEST_GROUP}");
            return Err(OpError::value(what));
        }
        let with = |last: &[usize]| -> Shape { lead.iter().chain(last).copied().collect() };
        let all = |value| Array::full(self.w.api(), &with(&[groups / ratio]), value, DType::F32);
        let layout = QuantLayout { group_size: SHORTEST_GROUP, ..self.layout };
        let plain = QuantizedMatrix { w: &self.w, scales: &all(1.0)?, biases: Some(&all(0.0)?), layout };
        let codes = Array::dequantize(self.w.api(), plain)?.reshape(&with(&[*groups, group]))?;
        let own = |part: &Array| part.cast(DType::F32)?.expand_dims(&[-1]);
        let values = codes.binary(Binary::Multiply, &own(&self.scales)?)?.binary(Binary::Add, &own(biases)?)?;
        Ok(values.reshape(&with(&[groups * group]))?.cast(dtype)?)
    }
}

impl Eval for ir::Dequantize {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        let ranks = [Some(self.w), Some(self.scales), self.biases].into_iter().flatten().map(|slot| one.rank(slot));
        Rows::of([self.w, self.scales].into_iter().chain(self.biases)).filter(|_| ranks.into_iter().all(|rank| rank > Some(1)))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let format = (self.mode, self.group_size, self.bits);
        let own = cx.peek(self.scales.0)?.dtype;
        let dtype = self.biases.map_or(Ok(own), |b| Ok::<_, crate::error::OpError>(ir::promote(own, cx.peek(b.0)?.dtype)))?;
        // A result in f32 need not be rounded to the type of its scales first.
        let through = ir::promote(dtype, spec.dtype);
        let mut y = Packed::new(cx, [self.w, self.scales], self.biases, format, through)?.unpack()?;
        if let Some(global) = cx.get_opt_as(self.global_scale, DType::F32)? {
            let scale = global.reshape(&[])?.binary(Binary::Multiply, &cx.scalar(1.0 / NVFP4_RANGE, DType::F32)?)?;
            y = y.cast(DType::F32)?.binary(Binary::Multiply, &scale)?;
        }
        debug_assert!(spec.dtype.is_float());
        cx.put(self.out, y)
    }
}

/// `x @ w` with the weights unpacked first, for layouts that MLX multiplies in no other way.
fn unpacked(x: &Array, packed: &Packed, transpose: bool, dtype: DType) -> Result<(Array, Array)> {
    let w = packed.unpack()?.cast(dtype)?;
    Ok((x.share()?, if transpose { transposed(&w)? } else { w }))
}

/// The last two axes exchanged.
fn transposed(w: &Array) -> Result<Array> {
    let rank = w.spec()?.1.len();
    let mut perm: crate::ffi::Axes = (0..rank as i64).collect();
    perm.swap(rank - 1, rank - 2);
    Ok(w.transpose(&perm)?)
}

impl Eval for ir::QuantizedMatmul {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        Rows::of([self.x]).filter(|_| one.rank(self.x) > Some(1) && one.rank(self.w) == Some(2))
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let through = product_type(cx, spec.dtype);
        let packed = Packed::new(cx, [self.w, self.scales], self.biases, (self.mode, self.group_size, self.bits), through)?;
        let x = cx.get_as(self.x, through)?;
        let x_shape = &cx.peek(self.x.0)?.shape;
        let rows: usize = x_shape[..x_shape.len().saturating_sub(1)].iter().product();
        let y = if packed.multiplies && !(cx.is_cuda() && rows >= ROWS_TO_UNPACK) {
            // A vector counts as one row, which the result lacks.
            let x = if cx.peek(self.x.0)?.rank() == 1 { x.expand_dims(&[0])? } else { x };
            let y = x.quantized_matmul(packed.matrix(), self.transpose)?;
            y.reshape(&spec.shape)?
        } else {
            let (x, w) = unpacked(&x, &packed, self.transpose, through)?;
            x.binary(Binary::Matmul, &w)?
        };
        cx.put(self.out, y)
    }
}

impl Eval for ir::GatherQmm {
    fn rows(&self, one: One<'_>) -> Option<Rows> {
        gathered([self.x, self.w], self.lhs_indices, self.rhs_indices, one)
    }

    fn eval(&self, cx: &mut Cx<'_>) -> Result<()> {
        let spec = cx.out(self.out)?;
        let through = product_type(cx, spec.dtype);
        let packed = Packed::new(cx, [self.w, self.scales], self.biases, (self.mode, self.group_size, self.bits), through)?;
        let x = cx.get_as(self.x, through)?;
        let lhs = matrix_indices(cx, self.lhs_indices, &batch_of(cx.peek(self.x.0)?))?;
        let rhs = matrix_indices(cx, self.rhs_indices, &batch_of(cx.peek(self.w.0)?))?;
        let sorted = is_sorted(cx, self.sorted_indices, self.sorted_indices_flag, self.rhs_indices)?;
        let plain = lhs.is_none() && rhs.is_none();
        let grouped = Grouped::of(cx, self, through)?.zip(rhs.as_ref());
        let y = if let Some((grouped, chosen)) = grouped.filter(|_| packed.multiplies) {
            grouped.products(cx, &x, packed.matrix(), chosen)?
        } else if plain && packed.multiplies {
            x.quantized_matmul(packed.matrix(), self.transpose)?
        } else if packed.multiplies {
            x.gather_qmm(packed.matrix(), lhs.as_ref(), rhs.as_ref(), self.transpose, sorted)?
        } else {
            let (x, w) = unpacked(&x, &packed, self.transpose, through)?;
            if plain { x.binary(Binary::Matmul, &w)? } else { x.gather_mm(&w, lhs.as_ref(), rhs.as_ref(), sorted)? }
        };
        let y = y.reshape(&spec.shape)?;
        cx.put(self.out, y)
    }
}
