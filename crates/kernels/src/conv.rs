//! Convolutions over one to three spatial axes, channels last.
//!
//! Both directions gather: a table says which input position each tap of each output position reads, if any. Inputs are
//! multiplied where they lie; no patches are laid out.

mod depthwise;
mod product;

use crate::{Error, Float, Pool, error::same};

/// One spatial axis of a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    /// Steps between outputs (of a transposed convolution: between inputs).
    pub stride: usize,
    /// Zeros on both sides (of a transposed convolution: outputs cut off).
    pub padding: usize,
    /// Steps between taps.
    pub dilation: usize,
    /// Transposed convolution only: outputs added at the end.
    pub output_padding: usize,
}

impl Default for Axis {
    fn default() -> Axis {
        Axis { stride: 1, padding: 0, dilation: 1, output_padding: 0 }
    }
}

impl Axis {
    /// Size of the output for `input` positions and `taps` taps, or `None` if it would be negative or overflow.
    pub fn output(self, input: usize, taps: usize, transposed: bool) -> Option<usize> {
        let reach = taps.checked_sub(1)?.checked_mul(self.dilation)?;
        let pads = self.padding.checked_mul(2)?;
        if transposed {
            let spread = input.checked_sub(1)?.checked_mul(self.stride)?;
            return spread.checked_add(reach)?.checked_add(self.output_padding)?.checked_add(1)?.checked_sub(pads);
        }
        let room = input.checked_add(pads)?.checked_sub(reach.checked_add(1)?)?;
        Some(room.checked_div(self.stride)? + 1)
    }

    /// The input position that tap `tap` of output `o` reads.
    fn source(self, o: usize, tap: usize, input: usize, transposed: bool) -> Option<usize> {
        let position = if transposed {
            let shifted = (o + self.padding).checked_sub(tap * self.dilation)?;
            if !shifted.is_multiple_of(self.stride) {
                return None;
            }
            shifted / self.stride
        } else {
            (o * self.stride + tap * self.dilation).checked_sub(self.padding)?
        };
        (position < input).then_some(position)
    }
}

/// A convolution: `x` is `[N, spatial…, C_in]`, `w` is `[C_out, taps…, C_in / groups]` (for both directions), `out` is
/// `[N, spatial…, C_out]`. Output channels of a group use the input channels of the same group.
#[derive(Clone, Debug)]
pub struct Conv<'a> {
    /// One entry a spatial axis: one to three.
    pub axes: &'a [Axis],
    /// Divides both channel counts.
    pub groups: usize,
    /// Whether `x` is spread by the strides instead of sampled.
    pub transposed: bool,
}

/// Sizes, padded to three spatial axes.
struct Geometry {
    batch: usize,
    input: [usize; 3],
    output: [usize; 3],
    taps: [usize; 3],
    in_channels: usize,
    out_channels: usize,
    groups: usize,
    /// Of a transposed convolution; 1 otherwise.
    strides: [usize; 3],
    /// `[axis][output position][tap]`: input position, or `usize::MAX`.
    sources: [Vec<usize>; 3],
}

impl Conv<'_> {
    fn geometry(&self, x: &[usize], w: &[usize], out: &[usize]) -> Result<Geometry, Error> {
        let n = self.axes.len();
        if !(1..=3).contains(&n) {
            return Err(Error::Parameter { what: "number of spatial axes", found: n as i64 });
        }
        for rank in [x.len(), w.len(), out.len()] {
            same("rank of a convolution's operand", n + 2, rank)?;
        }
        let mut g = Geometry {
            batch: x[0],
            input: [1; 3],
            output: [1; 3],
            taps: [1; 3],
            in_channels: x[n + 1],
            out_channels: w[0],
            groups: self.groups,
            strides: [1; 3],
            sources: [vec![0], vec![0], vec![0]],
        };
        let left_over = |c: usize| c.checked_rem(self.groups).unwrap_or(usize::MAX);
        same("input channels left over by groups", 0, left_over(g.in_channels))?;
        same("output channels left over by groups", 0, left_over(g.out_channels))?;
        same("input channels of a filter", g.in_channels / self.groups, w[n + 1])?;
        same("batch of the output", x[0], out[0])?;
        same("channels of the output", w[0], out[n + 1])?;
        for (i, axis) in self.axes.iter().enumerate() {
            if axis.stride == 0 || axis.dilation == 0 {
                return Err(Error::Parameter { what: "stride or dilation of a convolution", found: 0 });
            }
            let at = 3 - n + i;
            g.strides[at] = if self.transposed { axis.stride } else { 1 };
            (g.input[at], g.taps[at]) = (x[i + 1], w[i + 1]);
            let size = axis.output(x[i + 1], w[i + 1], self.transposed);
            g.output[at] = size.ok_or(Error::Parameter { what: "size of a convolution's output", found: -1 })?;
            same("a spatial size of the output", g.output[at], out[i + 1])?;
            let source = |o, t| axis.source(o, t, x[i + 1], self.transposed).unwrap_or(usize::MAX);
            g.sources[at] = (0..g.output[at]).flat_map(|o| (0..w[i + 1]).map(move |t| (o, t))).map(|(o, t)| source(o, t)).collect();
        }
        Ok(g)
    }
}

/// Computes a convolution of row-major operands with the given shapes.
///
/// # Errors
/// [`Error::Size`], [`Error::Parameter`] or [`Error::View`] if the sizes do not fit.
pub fn conv<T: Float>(
    pool: &Pool,
    (x, x_shape): (&[T], &[usize]),
    (w, w_shape): (&[T], &[usize]),
    conv: &Conv,
    (out, out_shape): (&mut [T], &[usize]),
) -> Result<(), Error> {
    let g = conv.geometry(x_shape, w_shape, out_shape)?;
    for (len, shape) in [(x.len(), x_shape), (w.len(), w_shape), (out.len(), out_shape)] {
        same("elements of a convolution's operand", flambeau_tensor::numel(shape).unwrap_or(usize::MAX), len)?;
    }
    if out.is_empty() {
        return Ok(());
    }
    if g.in_channels == g.groups && g.out_channels == g.groups {
        depthwise::depthwise(pool, x, w, &g, out);
    } else {
        product::products(pool, x, w, &g, out);
    }
    Ok(())
}

impl Geometry {
    /// Output positions of one image, and taps of a filter.
    fn positions(&self) -> usize {
        self.output.iter().product()
    }

    fn tap_count(&self) -> usize {
        self.taps.iter().product()
    }
}

#[cfg(test)]
mod tests;
