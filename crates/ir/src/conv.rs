//! Shared parts of the six convolution nodes.

use flambeau_tensor::WindowAxis;
use smallvec::SmallVec;

use crate::{
    field::{In, Out},
    node::{Conv1D, Conv2D, Conv3D, ConvTranspose1D, ConvTranspose2D, ConvTranspose3D, Node},
};

/// A convolution over one to three axes, channels last. Weights are `[Co, K.., Ci / groups]`, also
/// for transposed convolutions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Convolution {
    pub x: In,
    pub w: In,
    pub out: Out,
    /// Spatial axes, outermost first.
    pub axes: SmallVec<[WindowAxis; 3]>,
    pub groups: i32,
    pub transposed: bool,
}

macro_rules! convolutions {
    ($($node:ident $transposed:literal [$(($stride:ident $padding:ident $dilation:ident $($output_padding:ident)?))*];)*) => {
        $(
            impl $node {
                /// The node without its number of axes.
                pub fn convolution(&self) -> Convolution {
                    let axes = [$(WindowAxis {
                        stride: self.$stride.into(),
                        padding: self.$padding.into(),
                        dilation: self.$dilation.into(),
                        output_padding: 0 $(+ i64::from(self.$output_padding))?,
                    }),*];
                    let axes = axes.into_iter().collect();
                    Convolution { x: self.x, w: self.w, out: self.out, axes, groups: self.groups, transposed: $transposed }
                }
            }
        )*

        impl Convolution {
            /// The node for this number of axes, if there is one and its fields can hold the
            /// numbers.
            pub fn node(&self) -> Option<Node> {
                let (x, w, out, groups) = (self.x, self.w, self.out, self.groups);
                match (self.transposed, &self.axes[..]) {
                    $(
                        ($transposed, &[$($stride),*]) => Some($node {
                            x,
                            w,
                            out,
                            groups,
                            $(
                                $padding: $stride.padding.try_into().ok()?,
                                $dilation: $stride.dilation.try_into().ok()?,
                                $($output_padding: $stride.output_padding.try_into().ok()?,)?
                                $stride: $stride.stride.try_into().ok()?,
                            )*
                        }.into()),
                    )*
                    _ => None,
                }
            }
        }
    };
}

convolutions! {
    Conv1D false [(stride padding dilation)];
    Conv2D false [(stride_h padding_h dilation_h) (stride_w padding_w dilation_w)];
    Conv3D false [(stride_d padding_d dilation_d) (stride_h padding_h dilation_h) (stride_w padding_w dilation_w)];
    ConvTranspose1D true [(stride padding dilation output_padding)];
    ConvTranspose2D true [(stride_h padding_h dilation_h output_padding_h) (stride_w padding_w dilation_w output_padding_w)];
    ConvTranspose3D true [
        (stride_d padding_d dilation_d output_padding_d)
        (stride_h padding_h dilation_h output_padding_h)
        (stride_w padding_w dilation_w output_padding_w)
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Tid;

    #[test]
    fn nodes_come_back_from_what_they_have_in_common() {
        for (n, transposed) in [(1, false), (2, false), (3, false), (1, true), (2, true), (3, true)] {
            let axis = |i| WindowAxis { stride: i, padding: i + 3, dilation: i + 6, output_padding: i * i64::from(transposed) };
            let axes = (1..=n).map(axis).collect();
            let made = Convolution { x: In(Tid(1)), w: In(Tid(2)), out: Out(Tid(3)), axes, groups: 4, transposed };
            let back = match made.node().expect("one to three axes") {
                Node::Conv1D(n) => n.convolution(),
                Node::Conv2D(n) => n.convolution(),
                Node::Conv3D(n) => n.convolution(),
                Node::ConvTranspose1D(n) => n.convolution(),
                Node::ConvTranspose2D(n) => n.convolution(),
                Node::ConvTranspose3D(n) => n.convolution(),
                other => panic!("{}", other.name()),
            };
            assert_eq!(back, made);
        }
        let none =
            Convolution { x: In(Tid(1)), w: In(Tid(2)), out: Out(Tid(3)), axes: SmallVec::new(), groups: 1, transposed: false };
        assert!(none.node().is_none());
    }
}
