//! Torchvision's operators on boxes and on the regions that they cut out of feature maps.

use flambeau_tensor::{DType, Tensor, cast};

use crate::{Call, Error, Kernel};

mod deform;
mod regions;

pub(crate) const KERNELS: &[Kernel] = &[
    Kernel::new("torchvision::deform_conv2d", deform::convolution),
    Kernel::new("torchvision::nms", nms),
    Kernel::new("torchvision::ps_roi_align", regions::position_sensitive_align),
    Kernel::new("torchvision::ps_roi_pool", regions::position_sensitive_pool),
    Kernel::new("torchvision::roi_align", regions::align),
    Kernel::new("torchvision::roi_pool", regions::pool),
];

type Results = Result<Vec<Tensor>, Error>;

/// The elements in 32-bit floats, in which torchvision computes.
fn floats(x: &Tensor) -> Result<Vec<f32>, Error> {
    Ok(cast(x, DType::F32)?.as_slice::<f32>()?.to_vec())
}

/// Boxes `[N, 4]` of two corners and scores `[N]` → indices of the boxes that are kept, best first.
/// A box is dropped if its overlap with a better one is above a share.
fn nms(call: &Call<'_>) -> Results {
    let (boxes, scores) = (call.tensor("dets")?, floats(call.tensor("scores")?)?);
    let [count, 4] = *boxes.shape() else { return Err(Error::Matrix(boxes.shape().to_vec())) };
    if scores.len() != count {
        return Err(Error::Sizes(count, scores.len()));
    }
    let (values, most) = (floats(boxes)?, call.number("iou_threshold")?);
    let boxes: Vec<&[f32]> = values.chunks_exact(4).collect();
    let area = |b: &[f32]| (b[2] - b[0]) * (b[3] - b[1]);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    let mut kept: Vec<i64> = Vec::new();
    let mut dropped = vec![false; count];
    for (rank, &i) in order.iter().enumerate() {
        if dropped[i] {
            continue;
        }
        kept.push(i as i64);
        for &j in &order[rank + 1..] {
            let (a, b) = (boxes[i], boxes[j]);
            let width = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
            let height = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
            let shared = width * height;
            dropped[j] |= f64::from(shared / (area(a) + area(b) - shared)) > most;
        }
    }
    Ok(vec![Tensor::from_slice(&kept, &[kept.len()])?])
}

/// One picture of several channels `[C, H, W]`.
#[derive(Clone, Copy, Debug)]
struct Picture<'p> {
    values: &'p [f32],
    height: usize,
    width: usize,
}

impl Picture<'_> {
    fn at(&self, channel: usize, y: usize, x: usize) -> f32 {
        self.values[(channel * self.height + y) * self.width + x]
    }

    /// The bilinear value at a place. Neighbours outside count as zero.
    fn between(&self, channel: usize, y: f32, x: f32) -> f32 {
        if y <= -1.0 || x <= -1.0 || y >= self.height as f32 || x >= self.width as f32 {
            return 0.0;
        }
        let (top, left) = (y.floor(), x.floor());
        let (down, right) = (y - top, x - left);
        let own = |y: f32, x: f32| match y < 0.0 || x < 0.0 || y >= self.height as f32 || x >= self.width as f32 {
            true => 0.0,
            false => self.at(channel, y as usize, x as usize),
        };
        (1.0 - down) * (1.0 - right) * own(top, left)
            + (1.0 - down) * right * own(top, left + 1.0)
            + down * (1.0 - right) * own(top + 1.0, left)
            + down * right * own(top + 1.0, left + 1.0)
    }

    /// The same, with the border continued by half a step.
    fn inside(&self, channel: usize, y: f32, x: f32) -> f32 {
        if y < -1.0 || y > self.height as f32 || x < -1.0 || x > self.width as f32 {
            return 0.0;
        }
        let place = |v: f32, size: usize| {
            let v = v.max(0.0);
            let low = v as usize;
            if low + 1 >= size { (size - 1, size - 1, 0.0) } else { (low, low + 1, v - low as f32) }
        };
        let ((top, bottom, down), (left, right, along)) = (place(y, self.height), place(x, self.width));
        (1.0 - down) * (1.0 - along) * self.at(channel, top, left)
            + (1.0 - down) * along * self.at(channel, top, right)
            + down * (1.0 - along) * self.at(channel, bottom, left)
            + down * along * self.at(channel, bottom, right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Argument, call::testing::run};

    #[test]
    fn boxes_that_better_ones_cover_are_dropped() {
        let boxes = Tensor::from_slice(&[0.0f32, 0.0, 2.0, 2.0, 0.0, 0.0, 2.0, 2.2, 5.0, 5.0, 6.0, 6.0], &[3, 4]).unwrap();
        let scores = Tensor::from_slice(&[0.5f32, 0.9, 0.7], &[3]).unwrap();
        let kept = |most| {
            let args = [Argument::Tensor(boxes.clone()), Argument::Tensor(scores.clone()), Argument::Float(most)];
            run("torchvision.nms.default", &args, &[DType::I64]).unwrap()[0].as_slice::<i64>().unwrap().to_vec()
        };
        assert_eq!(kept(0.5), [1, 2]);
        assert_eq!(kept(0.95), [1, 2, 0]);
    }

    #[test]
    fn a_region_of_one_value_gives_that_value() {
        let picture = Tensor::from_slice(&[3.0f32; 2 * 6 * 6], &[1, 2, 6, 6]).unwrap();
        let rois = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 4.0, 4.0], &[1, 5]).unwrap();
        let (int, scale) = (Argument::Int, Argument::Float(1.0));
        let mut args = vec![Argument::Tensor(picture), Argument::Tensor(rois), scale, int(2), int(2)];
        let pooled = run("torchvision.roi_pool.default", &args, &[DType::F32, DType::I32]).unwrap();
        assert_eq!((pooled[0].shape(), pooled[0].as_slice::<f32>().unwrap()), (&[1, 2, 2, 2][..], &[3.0; 8][..]));
        assert_eq!(pooled[1].as_slice::<i32>().unwrap()[..4], [7, 9, 19, 21]);
        args.extend([int(2), Argument::Bool(true)]);
        let found = run("torchvision.roi_align.default", &args, &[DType::F32]).unwrap();
        assert_eq!(found[0].as_slice::<f32>().unwrap(), [3.0; 8]);
    }

    #[test]
    fn a_convolution_without_offsets_is_a_plain_one() {
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], &[1, 1, 3, 3]).unwrap();
        let weight = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], &[1, 1, 2, 2]).unwrap();
        let (offset, mask) = (Tensor::zeros(DType::F32, &[1, 8, 2, 2]).unwrap(), Tensor::zeros(DType::F32, &[1, 1]).unwrap());
        let bias = Tensor::from_slice(&[0.5f32], &[1]).unwrap();
        let tensors = [x, weight, offset, mask, bias].map(Argument::Tensor);
        let mut args = tensors.to_vec();
        args.extend([1, 1, 0, 0, 1, 1, 1, 1].map(Argument::Int));
        args.push(Argument::Bool(false));
        let found = run("torchvision.deform_conv2d.default", &args, &[DType::F32]).unwrap();
        assert_eq!(found[0].as_slice::<f32>().unwrap(), [6.5, 8.5, 12.5, 14.5]);
    }
}
