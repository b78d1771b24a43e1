//! Operations on arrays. They only extend MLX's graph; what they refuse, they refuse at once.

use std::ffi::CString;

use flambeau_tensor::DType;

use super::{
    Api, Array, Failure, Raw, Result, call,
    codes::{ArgReduce, Binary, Indexing, Join, Norm, Order, Reduce, Reform, Triangle, Unary},
    table,
};

/// A list of sizes or axes as the shim takes it.
pub(crate) type Axes = smallvec::SmallVec<[i64; 8]>;

/// Layout of quantized weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QuantLayout {
    pub(crate) group_size: i32,
    pub(crate) bits: i32,
    /// MLX's name of the format.
    pub(crate) mode: &'static str,
}

/// One axis of a convolution.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConvAxis {
    pub(crate) stride: i64,
    pub(crate) pad_low: i64,
    pub(crate) pad_high: i64,
    pub(crate) kernel_dilation: i64,
    pub(crate) input_dilation: i64,
}

fn list(values: &[usize]) -> Axes {
    values.iter().map(|&v| v as i64).collect()
}

fn raw_or_null(x: Option<&Array>) -> Raw {
    x.map_or(std::ptr::null_mut(), Array::raw)
}

fn name(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Failure("a name holds a zero byte".into()))
}

macro_rules! op {
    ($self:ident, $entry:ident($($arg:expr),*)) => {
        $self.api().make(|out| call!($self.api(), $entry($($arg,)* out)))
    };
}

/// Creation.
impl Array {
    pub(crate) fn full(api: Api, shape: &[usize], value: f64, dtype: DType) -> Result<Array> {
        let shape = list(shape);
        api.make(|out| call!(api, fl_full(shape[..].into(), value, dtype.code().into(), out)))
    }

    /// `start, start + step, ..` below `stop`.
    pub(crate) fn arange(api: Api, start: f64, stop: f64, step: f64, dtype: DType) -> Result<Array> {
        api.make(|out| call!(api, fl_arange(start, stop, step, dtype.code().into(), out)))
    }

    /// Threefry bits of `width` bytes under a key `[2]` of u32.
    pub(crate) fn random_bits(&self, shape: &[usize], width: i32) -> Result<Array> {
        let shape = list(shape);
        op!(self, fl_random_bits(shape[..].into(), width, self.raw()))
    }
}

/// Element by element, reductions, orders.
impl Array {
    pub(crate) fn unary(&self, op: Unary) -> Result<Array> {
        op!(self, fl_unary(op, self.raw()))
    }

    pub(crate) fn binary(&self, op: Binary, b: &Array) -> Result<Array> {
        op!(self, fl_binary(op, self.raw(), b.raw()))
    }

    /// `self ? x : y`.
    pub(crate) fn choose(&self, x: &Array, y: &Array) -> Result<Array> {
        op!(self, fl_where(self.raw(), x.raw(), y.raw()))
    }

    /// To the nearest, ties to even.
    pub(crate) fn round(&self) -> Result<Array> {
        op!(self, fl_round(self.raw(), 0))
    }

    pub(crate) fn cast(&self, dtype: DType) -> Result<Array> {
        op!(self, fl_astype(self.raw(), dtype.code().into()))
    }

    /// The same bits as another type.
    pub(crate) fn view_as(&self, dtype: DType) -> Result<Array> {
        op!(self, fl_view(self.raw(), dtype.code().into()))
    }

    pub(crate) fn reduce(&self, op: Reduce, axes: &[i64], keepdims: bool, ddof: i32) -> Result<Array> {
        op!(self, fl_reduce(op, self.raw(), axes.into(), keepdims.into(), ddof))
    }

    pub(crate) fn arg_reduce(&self, op: ArgReduce, axis: i32, keepdims: bool) -> Result<Array> {
        op!(self, fl_arg_reduce(op, self.raw(), axis, keepdims.into()))
    }

    pub(crate) fn order(&self, op: Order, axis: i32) -> Result<Array> {
        op!(self, fl_order(op, self.raw(), axis))
    }

    pub(crate) fn cumsum(&self, axis: i32, reverse: bool, inclusive: bool) -> Result<Array> {
        op!(self, fl_cumsum(self.raw(), axis, reverse.into(), inclusive.into()))
    }

    pub(crate) fn softmax(&self, axis: i32, precise: bool) -> Result<Array> {
        op!(self, fl_softmax(self.raw(), axis, precise.into()))
    }
}

/// Views and joins.
impl Array {
    pub(crate) fn reshape(&self, shape: &[usize]) -> Result<Array> {
        let shape = list(shape);
        op!(self, fl_reform(Reform::Reshape, self.raw(), shape[..].into()))
    }

    pub(crate) fn transpose(&self, perm: &[i64]) -> Result<Array> {
        op!(self, fl_reform(Reform::Transpose, self.raw(), perm.into()))
    }

    pub(crate) fn broadcast(&self, shape: &[usize]) -> Result<Array> {
        let shape = list(shape);
        op!(self, fl_reform(Reform::BroadcastTo, self.raw(), shape[..].into()))
    }

    pub(crate) fn expand_dims(&self, axis: i64) -> Result<Array> {
        op!(self, fl_reform(Reform::ExpandDims, self.raw(), (&[axis][..]).into()))
    }

    pub(crate) fn squeeze(&self, axes: &[i64]) -> Result<Array> {
        op!(self, fl_reform(Reform::Squeeze, self.raw(), axes.into()))
    }

    pub(crate) fn tile(&self, reps: &[i64]) -> Result<Array> {
        op!(self, fl_reform(Reform::Tile, self.raw(), reps.into()))
    }

    /// Elements of the row-major array at `offset + sum(i * strides)`; the caller has proved that they exist.
    pub(crate) fn as_strided(&self, shape: &[usize], strides: &[i64], offset: u64) -> Result<Array> {
        let shape = list(shape);
        op!(self, fl_as_strided(self.raw(), shape[..].into(), strides.into(), offset))
    }

    pub(crate) fn slice(&self, start: &[i64], stop: &[i64], step: &[i64]) -> Result<Array> {
        op!(self, fl_slice(self.raw(), start.into(), stop.into(), step.into()))
    }

    pub(crate) fn slice_update(&self, update: &Array, start: &[i64], stop: &[i64], step: &[i64]) -> Result<Array> {
        op!(self, fl_slice_update(self.raw(), update.raw(), start.into(), stop.into(), step.into()))
    }

    pub(crate) fn concatenate(api: Api, parts: &[Array], axis: i32) -> Result<Array> {
        let parts: Vec<Raw> = parts.iter().map(Array::raw).collect();
        api.make(|out| call!(api, fl_join(Join::Concatenate, parts[..].into(), axis, out)))
    }

    pub(crate) fn stack(api: Api, parts: &[Array], axis: i32) -> Result<Array> {
        let parts: Vec<Raw> = parts.iter().map(Array::raw).collect();
        api.make(|out| call!(api, fl_join(Join::Stack, parts[..].into(), axis, out)))
    }

    /// Mode `constant` fills with `value`, `edge` repeats the border.
    pub(crate) fn pad(&self, low: &[i64], high: &[i64], value: &Array, mode: &str) -> Result<Array> {
        let mode = name(mode)?;
        op!(self, fl_pad(self.raw(), low.into(), high.into(), value.raw(), mode.as_ptr()))
    }

    pub(crate) fn repeat(&self, repeats: i32, axis: i32) -> Result<Array> {
        op!(self, fl_repeat(self.raw(), repeats, axis))
    }

    /// `j <= i + k` of the last two axes.
    pub(crate) fn tril(&self, k: i32) -> Result<Array> {
        op!(self, fl_triangle(Triangle::Tril, self.raw(), k))
    }

    /// `j >= i + k` of the last two axes.
    pub(crate) fn triu(&self, k: i32) -> Result<Array> {
        op!(self, fl_triangle(Triangle::Triu, self.raw(), k))
    }

    pub(crate) fn roll(&self, shift: i32, axis: i32) -> Result<Array> {
        op!(self, fl_roll(self.raw(), shift, axis))
    }
}

/// Indexing. MLX checks no index: callers prove or clamp them.
impl Array {
    pub(crate) fn take(&self, indices: &Array, axis: i32) -> Result<Array> {
        op!(self, fl_along_axis(Indexing::Take, self.raw(), indices.raw(), std::ptr::null_mut(), axis))
    }

    pub(crate) fn take_along_axis(&self, indices: &Array, axis: i32) -> Result<Array> {
        op!(self, fl_along_axis(Indexing::TakeAlongAxis, self.raw(), indices.raw(), std::ptr::null_mut(), axis))
    }

    pub(crate) fn scatter_add(&self, indices: &Array, updates: &Array, axis: i32) -> Result<Array> {
        op!(self, fl_along_axis(Indexing::ScatterAdd, self.raw(), indices.raw(), updates.raw(), axis))
    }

    pub(crate) fn gather(&self, indices: &[Array], axes: &[i64], sizes: &[i64]) -> Result<Array> {
        let indices: Vec<Raw> = indices.iter().map(Array::raw).collect();
        op!(self, fl_gather(self.raw(), indices[..].into(), axes.into(), sizes.into()))
    }

    /// `updates` has the indices' shape followed by that of the slices, which have size 1 on `axes`.
    pub(crate) fn scatter(&self, indices: &[Array], updates: &Array, axes: &[i64]) -> Result<Array> {
        let indices: Vec<Raw> = indices.iter().map(Array::raw).collect();
        op!(self, fl_scatter(self.raw(), indices[..].into(), updates.raw(), axes.into()))
    }

    /// The region of `sizes` whose place on `axes` is `start`, an array that need not be known yet.
    pub(crate) fn slice_at(&self, start: &Array, axes: &[i64], sizes: &[usize]) -> Result<Array> {
        let sizes = list(sizes);
        op!(self, fl_slice_at(self.raw(), start.raw(), axes.into(), sizes[..].into()))
    }

    /// With the region at `start` on `axes` replaced by `update`.
    pub(crate) fn slice_update_at(&self, update: &Array, start: &Array, axes: &[i64]) -> Result<Array> {
        op!(self, fl_slice_update_at(self.raw(), update.raw(), start.raw(), axes.into()))
    }
}

/// Products, convolutions and fused operations.
impl Array {
    /// `alpha * (a @ b) + beta * self`.
    pub(crate) fn addmm(&self, a: &Array, b: &Array, alpha: f32, beta: f32) -> Result<Array> {
        op!(self, fl_addmm(self.raw(), a.raw(), b.raw(), alpha, beta))
    }

    pub(crate) fn gather_mm(&self, b: &Array, lhs: Option<&Array>, rhs: Option<&Array>, sorted: bool) -> Result<Array> {
        op!(self, fl_gather_mm(self.raw(), b.raw(), raw_or_null(lhs), raw_or_null(rhs), sorted.into()))
    }

    /// `self @ w`, or `self @ w^T` if `transpose`.
    pub(crate) fn quantized_matmul(
        &self,
        [w, scales]: [&Array; 2],
        biases: Option<&Array>,
        transpose: bool,
        layout: QuantLayout,
    ) -> Result<Array> {
        let mode = name(layout.mode)?;
        let quant = table::Quant { group_size: layout.group_size, bits: layout.bits, mode: mode.as_ptr() };
        op!(self, fl_quantized_matmul(self.raw(), w.raw(), scales.raw(), raw_or_null(biases), transpose.into(), quant))
    }

    /// As [`Array::quantized_matmul`], with matrices chosen by the index lists.
    pub(crate) fn gather_qmm(
        &self,
        [w, scales]: [&Array; 2],
        biases: Option<&Array>,
        [lhs, rhs]: [Option<&Array>; 2],
        (transpose, sorted): (bool, bool),
        layout: QuantLayout,
    ) -> Result<Array> {
        let mode = name(layout.mode)?;
        let quant = table::Quant { group_size: layout.group_size, bits: layout.bits, mode: mode.as_ptr() };
        let (biases, lhs, rhs) = (raw_or_null(biases), raw_or_null(lhs), raw_or_null(rhs));
        op!(self, fl_gather_qmm(self.raw(), w.raw(), scales.raw(), biases, lhs, rhs, transpose.into(), quant, sorted.into()))
    }

    /// Unpacked weights in MLX's own type for the format.
    pub(crate) fn dequantize(&self, scales: &Array, biases: Option<&Array>, layout: QuantLayout) -> Result<Array> {
        let mode = name(layout.mode)?;
        let quant = table::Quant { group_size: layout.group_size, bits: layout.bits, mode: mode.as_ptr() };
        op!(self, fl_dequantize(self.raw(), scales.raw(), raw_or_null(biases), quant))
    }

    /// Channels last: self `[N, .., Ci]`, w `[Co, .., Ci / groups]`; `flip` turns the kernel around.
    pub(crate) fn conv(&self, w: &Array, axes: &[ConvAxis], groups: i32, flip: bool) -> Result<Array> {
        let column = |f: fn(&ConvAxis) -> i64| axes.iter().map(f).collect::<Axes>();
        let (stride, low, high) = (column(|a| a.stride), column(|a| a.pad_low), column(|a| a.pad_high));
        let (kernel, input) = (column(|a| a.kernel_dilation), column(|a| a.input_dilation));
        op!(
            self,
            fl_conv(
                self.raw(),
                w.raw(),
                stride[..].into(),
                low[..].into(),
                high[..].into(),
                kernel[..].into(),
                input[..].into(),
                groups,
                flip.into()
            )
        )
    }

    pub(crate) fn rms_norm(&self, weight: Option<&Array>, eps: f32) -> Result<Array> {
        op!(self, fl_norm(Norm::Rms, self.raw(), raw_or_null(weight), std::ptr::null_mut(), eps))
    }

    pub(crate) fn layer_norm(&self, weight: Option<&Array>, bias: Option<&Array>, eps: f32) -> Result<Array> {
        op!(self, fl_norm(Norm::Layer, self.raw(), raw_or_null(weight), raw_or_null(bias), eps))
    }

    /// Rotates by an integer `offset`; `freqs` are periods and replace `base`.
    pub(crate) fn rope(
        &self,
        dims: i32,
        traditional: bool,
        [base, scale]: [f32; 2],
        offset: &Array,
        freqs: Option<&Array>,
    ) -> Result<Array> {
        op!(self, fl_rope(self.raw(), dims, traditional.into(), base, scale, offset.raw(), raw_or_null(freqs)))
    }

    /// Mode is empty, `causal` or `array` (with a mask).
    pub(crate) fn attention(&self, [k, v]: [&Array; 2], scale: f32, mode: &str, mask: Option<&Array>) -> Result<Array> {
        let mode = name(mode)?;
        op!(self, fl_attention(self.raw(), k.raw(), v.raw(), scale, mode.as_ptr(), raw_or_null(mask)))
    }
}
