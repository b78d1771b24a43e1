//! Convolutions over one to three spatial axes, channels last.
//!
//! Both directions gather: a table says which input position each tap of each output position
//! reads, if any. Inputs are read in place, without copying patches.

mod depthwise;
mod product;

use flambeau_tensor::{Expr, WindowAxis};

use crate::{Error, Float, Pool, error::same};

/// The input position read by tap `tap` of output `o`, if it is inside the `input` positions.
fn source(axis: WindowAxis, o: usize, tap: usize, input: usize, transposed: bool) -> Option<usize> {
    let (o, tap) = (o as i64, tap as i64);
    let position = if transposed {
        let shifted = o + axis.padding - tap * axis.dilation;
        if shifted % axis.stride != 0 {
            return None;
        }
        shifted / axis.stride
    } else {
        o * axis.stride + tap * axis.dilation - axis.padding
    };
    usize::try_from(position).ok().filter(|&position| position < input)
}

/// A convolution: `x` is `[N, spatial…, C_in]`, `w` is `[C_out, taps…, C_in / groups]` (for both
/// directions), `out` is `[N, spatial…, C_out]`. Output channels of a group use the input channels
/// of the same group.
#[derive(Clone, Debug)]
pub struct Conv<'a> {
    /// One entry a spatial axis: one to three.
    pub axes: &'a [WindowAxis],
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
    /// Strides of a transposed convolution; 1 otherwise.
    strides: [usize; 3],
    /// `[axis][output position][tap]`: input position, or `usize::MAX`.
    sources: [Vec<usize>; 3],
}

impl Conv<'_> {
    /// Number of outputs along spatial axis `i`, of `input` positions, for a kernel of `taps`.
    ///
    /// # Errors
    /// [`Error::Parameter`] if there are none, or the axis has a stride or a dilation below 1.
    ///
    /// # Panics
    /// If there is no axis `i`.
    pub fn outputs(&self, i: usize, input: usize, taps: usize) -> Result<usize, Error> {
        let axis = self.axes[i];
        let least = axis.stride.min(axis.dilation);
        if least < 1 {
            return Err(Error::Parameter { what: "stride or dilation of a convolution", found: least });
        }
        let [size, kernel] = [input, taps].map(|n| Expr::Int(n as i64));
        let outputs = if self.transposed { axis.transposed(&size, &kernel) } else { axis.windows(&size, &kernel) };
        let found = outputs.as_int().unwrap_or(-1);
        let is_empty = taps == 0 || if self.transposed { input == 0 } else { found == 0 };
        let outputs = usize::try_from(found).ok().filter(|_| !is_empty);
        outputs.ok_or(Error::Parameter { what: "size of a convolution's output", found })
    }

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
            let at = 3 - n + i;
            g.strides[at] = if self.transposed { axis.stride as usize } else { 1 };
            (g.input[at], g.taps[at]) = (x[i + 1], w[i + 1]);
            g.output[at] = self.outputs(i, x[i + 1], w[i + 1])?;
            same("a spatial size of the output", g.output[at], out[i + 1])?;
            let source = |o, t| source(*axis, o, t, x[i + 1], self.transposed).unwrap_or(usize::MAX);
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
