//! Deformable convolutions: offsets move each place that the weights read.

use flambeau_tensor::Tensor;

use super::{Picture, Results, floats};
use crate::{Call, Error};

/// Sizes of a convolution, each pair down and across.
#[derive(Debug)]
struct Shape {
    batch: usize,
    channels: usize,
    size: [usize; 2],
    out_channels: usize,
    kernel: [usize; 2],
    out: [usize; 2],
    stride: [i64; 2],
    pad: [i64; 2],
    dilation: [i64; 2],
    groups: usize,
    offset_groups: usize,
}

impl Shape {
    fn of(call: &Call<'_>) -> Result<Shape, Error> {
        let (x, weight, offset) = (call.tensor("input")?, call.tensor("weight")?, call.tensor("offset")?);
        let [batch, channels, height, width] = *x.shape() else { return Err(Error::Matrix(x.shape().to_vec())) };
        let [out_channels, per_group, k0, k1] = *weight.shape() else { return Err(Error::Matrix(weight.shape().to_vec())) };
        let [_, offsets, rows, cols] = *offset.shape() else { return Err(Error::Matrix(offset.shape().to_vec())) };
        let pair = |a, b| Ok::<_, Error>([call.number(a)? as i64, call.number(b)? as i64]);
        let count = |name| call.number(name).map(|n| (n as usize).max(1));
        let (groups, offset_groups) = (count("groups")?, count("offset_groups")?);
        if per_group * groups != channels || !out_channels.is_multiple_of(groups) || !channels.is_multiple_of(offset_groups) {
            return Err(Error::Sizes(per_group * groups, channels));
        }
        if offsets != 2 * offset_groups * k0 * k1 {
            return Err(Error::Sizes(offsets, 2 * offset_groups * k0 * k1));
        }
        Ok(Shape {
            batch,
            channels,
            size: [height, width],
            out_channels,
            kernel: [k0, k1],
            out: [rows, cols],
            stride: pair("stride_h", "stride_w")?,
            pad: pair("pad_h", "pad_w")?,
            dilation: pair("dilation_h", "dilation_w")?,
            groups,
            offset_groups,
        })
    }

    /// The elements of one picture that the weights multiply, `[channels · kernel, out]`, moved by
    /// offsets and scaled by masks.
    fn columns(&self, picture: &Picture<'_>, offset: &[f32], mask: Option<&[f32]>) -> Vec<f32> {
        let (taps, places) = (self.kernel[0] * self.kernel[1], self.out[0] * self.out[1]);
        let mut columns = Vec::with_capacity(self.channels * taps * places);
        for channel in 0..self.channels {
            let group = channel / (self.channels / self.offset_groups);
            for tap in 0..taps {
                let at = (group * taps + tap) * places;
                let shifts = &offset[2 * at..2 * (at + places)];
                let weights = mask.map(|mask| &mask[at..at + places]);
                for place in 0..places {
                    let grid = [place / self.out[1], place % self.out[1]];
                    let taps = [tap / self.kernel[1], tap % self.kernel[1]];
                    let base = |i: usize| grid[i] as i64 * self.stride[i] - self.pad[i] + taps[i] as i64 * self.dilation[i];
                    let y = base(0) as f32 + shifts[place];
                    let x = base(1) as f32 + shifts[places + place];
                    columns.push(weights.map_or(1.0, |w| w[place]) * picture.between(channel, y, x));
                }
            }
        }
        columns
    }
}

pub(super) fn convolution(call: &Call<'_>) -> Results {
    let shape = Shape::of(call)?;
    let (x, weight, offset) = (floats(call.tensor("input")?)?, floats(call.tensor("weight")?)?, floats(call.tensor("offset")?)?);
    let mask = if call.flag("use_mask") { Some(floats(call.tensor("mask")?)?) } else { None };
    let bias = floats(call.tensor("bias")?)?;
    let (taps, places) = (shape.kernel[0] * shape.kernel[1], shape.out[0] * shape.out[1]);
    let (rows, deep) = (shape.out_channels / shape.groups, shape.channels / shape.groups * taps);
    let size = shape.channels * shape.size[0] * shape.size[1];
    let steps = shape.offset_groups * taps * places;
    if mask.as_ref().is_some_and(|m| m.len() != shape.batch * steps) || bias.len() != shape.out_channels {
        return Err(Error::Sizes(bias.len(), shape.out_channels));
    }
    let mut made = Vec::with_capacity(shape.batch * shape.out_channels * places);
    for n in 0..shape.batch {
        let picture = Picture { values: &x[n * size..(n + 1) * size], height: shape.size[0], width: shape.size[1] };
        let own_mask = mask.as_ref().map(|m| &m[n * steps..(n + 1) * steps]);
        let columns = shape.columns(&picture, &offset[2 * n * steps..2 * (n + 1) * steps], own_mask);
        for row in 0..shape.out_channels {
            let group = &columns[row / rows * deep * places..];
            let mut sums = vec![bias[row]; places];
            for (k, w) in weight[row * deep..(row + 1) * deep].iter().enumerate() {
                sums.iter_mut().zip(&group[k * places..(k + 1) * places]).for_each(|(sum, v)| *sum += w * v);
            }
            made.extend(sums);
        }
    }
    Ok(vec![Tensor::from_slice(&made, &[shape.batch, shape.out_channels, shape.out[0], shape.out[1]])?])
}
