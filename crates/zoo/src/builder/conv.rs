//! Convolutions.

use flambeau_pt2::Argument;
use flambeau_tensor::WindowAxis;

use super::{
    Builder, Val,
    ops::{arg, int, tensor},
};

/// Parameters of a convolution, equal for all axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConvParams {
    pub(crate) stride: usize,
    /// Zeros on both sides.
    pub(crate) padding: usize,
    /// Number of channel groups.
    pub(crate) groups: usize,
}

impl ConvParams {
    /// A depthwise convolution with stride 1 and no padding.
    pub(crate) fn depthwise(channels: usize) -> ConvParams {
        ConvParams { stride: 1, padding: 0, groups: channels }
    }

    fn axis(self) -> WindowAxis {
        WindowAxis { stride: self.stride as i64, padding: self.padding as i64, ..WindowAxis::default() }
    }
}

impl Builder {
    /// Convolves `x` [1, in, n..] with `weight` [out, in / groups, k..] over one axis or two.
    /// Returns [1, out, (n + 2 · padding - k) / stride + 1, ..].
    pub(crate) fn conv(&mut self, [x, weight]: [&Val; 2], bias: Option<&Val>, walk: ConvParams) -> Val {
        let taps = &weight.dims[2..];
        let places = x.dims[2..].iter().zip(taps).map(|(n, k)| walk.axis().windows(n, k));
        let dims = [x.dims[0].clone(), weight.dims[0].clone()].into_iter().chain(places).collect();
        let list = |name: &str, value: usize| arg(name, Argument::Ints(vec![value as i64; taps.len()]));
        let inputs = vec![
            tensor("input", x),
            tensor("weight", weight),
            bias.map_or(arg("bias", Argument::None), |b| tensor("bias", b)),
            list("stride", walk.stride),
            list("padding", walk.padding),
            list("dilation", 1),
            int("groups", walk.groups as i64),
        ];
        self.call(&format!("aten.conv{}d.default", taps.len()), inputs, x.dtype, dims)
    }
}
