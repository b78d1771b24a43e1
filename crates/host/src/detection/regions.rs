//! Pooling of regions of interest: RoI align and RoI pool, plain and position-sensitive.
//!
//! Feature maps are `[N, C, H, W]`. A row of the regions `[K, 5]` is a picture's index and two
//! corners. Each region is divided into a grid of cells.

use flambeau_tensor::Tensor;

use super::{Picture, Results, floats};
use crate::{Call, Error};

/// A feature map, regions and the grid.
#[derive(Debug)]
struct Regions {
    values: Vec<f32>,
    channels: usize,
    height: usize,
    width: usize,
    rois: Vec<f32>,
    count: usize,
    scale: f32,
    rows: usize,
    cols: usize,
}

impl Regions {
    fn of(call: &Call<'_>) -> Result<Regions, Error> {
        let (x, rois) = (call.tensor("input")?, call.tensor("rois")?);
        let [pictures, channels, height, width] = *x.shape() else { return Err(Error::Matrix(x.shape().to_vec())) };
        let [count, 5] = *rois.shape() else { return Err(Error::Matrix(rois.shape().to_vec())) };
        let (values, rois) = (floats(x)?, floats(rois)?);
        if let Some(roi) = rois.chunks_exact(5).find(|roi| !(0.0..pictures as f32).contains(&roi[0])) {
            return Err(Error::Axis { axis: roi[0] as i64, rank: pictures });
        }
        let size = |name| call.number(name).map(|n| n as usize);
        let (rows, cols) = (size("pooled_height")?, size("pooled_width")?);
        Ok(Regions { values, channels, height, width, rois, count, scale: call.number("spatial_scale")? as f32, rows, cols })
    }

    /// The picture of a region, and its corners as x, y, x, y.
    fn region(&self, k: usize) -> (Picture<'_>, [f32; 4]) {
        let roi = &self.rois[5 * k..5 * k + 5];
        let size = self.channels * self.height * self.width;
        let values = &self.values[roi[0] as usize * size..][..size];
        (Picture { values, height: self.height, width: self.width }, [roi[1], roi[2], roi[3], roi[4]])
    }

    /// Each cell of each region: `cell(picture, corners, channel, row, column)`, `channels` of
    /// them.
    fn map<T>(&self, channels: usize, cell: impl Fn(&Picture<'_>, [f32; 4], usize, usize, usize) -> T) -> Vec<T> {
        let mut made = Vec::with_capacity(self.count * channels * self.rows * self.cols);
        for k in 0..self.count {
            let (picture, corners) = self.region(k);
            for channel in 0..channels {
                for row in 0..self.rows {
                    made.extend((0..self.cols).map(|col| cell(&picture, corners, channel, row, col)));
                }
            }
        }
        made
    }

    fn shape(&self, channels: usize) -> [usize; 4] {
        [self.count, channels, self.rows, self.cols]
    }

    /// The mean of samples between the elements of a cell.
    fn mean(&self, picture: &Picture<'_>, grid: &Grid, channel: usize, row: usize, col: usize) -> f32 {
        let mut sum = 0.0;
        for i in 0..grid.samples[0] {
            let y = grid.place(0, row, i);
            for j in 0..grid.samples[1] {
                sum += picture.inside(channel, y, grid.place(1, col, j));
            }
        }
        sum / (grid.samples[0] * grid.samples[1]).max(1) as f32
    }

    /// The cells of a region; `ratio` samples a side, or as many as a cell has elements.
    fn grid(&self, [x1, y1, x2, y2]: [f32; 4], offset: f32, least: f32, ratio: i64) -> Grid {
        let start = [y1 * self.scale - offset, x1 * self.scale - offset];
        let size = [y2 * self.scale - offset - start[0], x2 * self.scale - offset - start[1]].map(|s| s.max(least));
        let cell = [size[0] / self.rows as f32, size[1] / self.cols as f32];
        let samples = cell.map(|c| usize::try_from(ratio).ok().filter(|r| *r > 0).unwrap_or(c.ceil().max(0.0) as usize));
        Grid { start, cell, samples }
    }

    /// Number of channels of a region's cells, if each cell has its own.
    fn own_channels(&self) -> Result<usize, Error> {
        let cells = self.rows * self.cols;
        if cells == 0 || !self.channels.is_multiple_of(cells) {
            Err(Error::Sizes(self.channels, cells))
        } else {
            Ok(self.channels / cells)
        }
    }

    /// Which channel of the feature map a cell reads.
    fn channel(&self, channel: usize, row: usize, col: usize) -> usize {
        (channel * self.rows + row) * self.cols + col
    }

    /// For each cell, the channel that it reads.
    fn channel_map(&self, channels: usize) -> Result<Tensor, Error> {
        let read = self.map(channels, |_, _, channel, row, col| self.channel(channel, row, col) as i32);
        Ok(Tensor::from_slice(&read, &self.shape(channels))?)
    }
}

/// The cells of a region, down and across.
struct Grid {
    start: [f32; 2],
    cell: [f32; 2],
    samples: [usize; 2],
}

impl Grid {
    fn place(&self, side: usize, cell: usize, sample: usize) -> f32 {
        let within = (sample as f32 + 0.5) * self.cell[side] / self.samples[side] as f32;
        self.start[side] + cell as f32 * self.cell[side] + within
    }
}

pub(super) fn align(call: &Call<'_>) -> Results {
    let regions = Regions::of(call)?;
    let (ratio, aligned) = (call.number("sampling_ratio")? as i64, call.flag("aligned"));
    let (offset, least) = if aligned { (0.5, f32::NEG_INFINITY) } else { (0.0, 1.0) };
    let cell = |picture: &Picture<'_>, corners, channel, row, col| {
        regions.mean(picture, &regions.grid(corners, offset, least, ratio), channel, row, col)
    };
    Ok(vec![Tensor::from_slice(&regions.map(regions.channels, cell), &regions.shape(regions.channels))?])
}

pub(super) fn position_sensitive_align(call: &Call<'_>) -> Results {
    let regions = Regions::of(call)?;
    let (ratio, channels) = (call.number("sampling_ratio")? as i64, regions.own_channels()?);
    let cell = |picture: &Picture<'_>, corners, channel, row, col| {
        let grid = regions.grid(corners, 0.5, f32::NEG_INFINITY, ratio);
        regions.mean(picture, &grid, regions.channel(channel, row, col), row, col)
    };
    let made = Tensor::from_slice(&regions.map(channels, cell), &regions.shape(channels))?;
    Ok(vec![made, regions.channel_map(channels)?])
}

/// First and last element of cell `i` of a region that begins at `start`, within `size` elements.
fn elements(start: i64, cell: f32, i: usize, size: usize) -> std::ops::Range<usize> {
    let place = |v: f32| (v as i64 + start).clamp(0, size as i64) as usize;
    place((i as f32 * cell).floor())..place(((i + 1) as f32 * cell).ceil())
}

/// The largest element of each cell, and its index in the picture.
pub(super) fn pool(call: &Call<'_>) -> Results {
    let regions = Regions::of(call)?;
    let cell = |picture: &Picture<'_>, corners: [f32; 4], channel, row, col| {
        let [x1, y1, x2, y2] = corners.map(|v| round(v * regions.scale));
        let side = |from: i64, to: i64, cells: usize| (to - from + 1).max(1) as f32 / cells as f32;
        let down = elements(y1, side(y1, y2, regions.rows), row, regions.height);
        let across = elements(x1, side(x1, x2, regions.cols), col, regions.width);
        let places = down.flat_map(|y| across.clone().map(move |x| (y, x)));
        let larger = |best: (f32, i32), (y, x): (usize, usize)| {
            let value = picture.at(channel, y, x);
            if value > best.0 { (value, (y * regions.width + x) as i32) } else { best }
        };
        let mut places = places.peekable();
        if places.peek().is_none() {
            return (0.0, -1);
        }
        places.fold((f32::MIN, -1), larger)
    };
    let (values, places): (Vec<f32>, Vec<i32>) = regions.map(regions.channels, cell).into_iter().unzip();
    let shape = regions.shape(regions.channels);
    Ok(vec![Tensor::from_slice(&values, &shape)?, Tensor::from_slice(&places, &shape)?])
}

/// Rounds halves away from zero.
fn round(v: f32) -> i64 {
    v.round() as i64
}

/// The mean of each cell; each cell has its own channel.
pub(super) fn position_sensitive_pool(call: &Call<'_>) -> Results {
    let regions = Regions::of(call)?;
    let channels = regions.own_channels()?;
    let cell = |picture: &Picture<'_>, corners: [f32; 4], channel, row, col| {
        let [x1, y1, x2, y2] = corners.map(|v| round(v * regions.scale));
        let side = |from: i64, to: i64, cells: usize| (to - from).max(1) as f32 / cells as f32;
        let down = elements(y1, side(y1, y2, regions.rows), row, regions.height);
        let across = elements(x1, side(x1, x2, regions.cols), col, regions.width);
        let count = down.len() * across.len();
        let own = regions.channel(channel, row, col);
        let sum: f32 = down.flat_map(|y| across.clone().map(move |x| (y, x))).map(|(y, x)| picture.at(own, y, x)).sum();
        if count == 0 { 0.0 } else { sum / count as f32 }
    };
    let made = Tensor::from_slice(&regions.map(channels, cell), &regions.shape(channels))?;
    Ok(vec![made, regions.channel_map(channels)?])
}
