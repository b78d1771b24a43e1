//! Linear layers on a row of each of several sequences.

use std::fmt::Write as _;

use flambeau_tensor::{DType, Shape};

use super::{
    attention::CacheNames,
    launch::{Text, WARPS},
    linear::{Activation, Format, Linear, norm_type, rows_of},
};
use crate::{
    cuda,
    cx::{Machine, Slot},
    error::{OpError, Result},
    ffi::Array,
};

/// Sequences that a launch serves at most.
pub(crate) const MAX_ROWS: usize = 32;
/// Rows of a tile of tensor cores, and columns of a step of a warp.
const TILE: usize = 16;
const STEP: usize = 128;
/// Rows of all matrices from which a block computes four tiles instead of two.
const MANY_ROWS: usize = 16384;

/// What the launches of one run share.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    pub(super) positions: Option<(Vec<i32>, Array)>,
    pub(super) tickets: Option<Array>,
    pub(super) caches: Option<CacheNames>,
}

/// What the kernels are made for.
struct Shapes {
    dtype: DType,
    norm: DType,
    group: usize,
    k: usize,
    rows: Vec<usize>,
    /// Tiles of a block.
    tiles: usize,
    /// Columns of sums, in eights: few or all that there are, so that a change of their number rarely needs another kernel.
    eights: usize,
}

impl Linear {
    /// The results `[sequences, .., rows]` of rows `x` `[sequences, .., k]`, with the residual `[sequences, ..]` if the step has one; `None` if
    /// the step is none of the kernel's.
    ///
    /// # Errors
    /// If MLX refuses the kernel.
    pub(crate) fn over_rows(&self, m: &mut Machine, x: &Slot, residual: Option<&Slot>) -> Result<Option<Vec<Slot>>> {
        let Some(shapes) = self.shapes(m, x, residual) else { return Ok(None) };
        let (arranged, columns) = (self.arrange(m, x, &shapes)?, shapes.eights * 8);
        let Shapes { dtype, group, k, tiles, eights, .. } = shapes;
        let ty = cuda::type_name(dtype).unwrap_or_default();
        let mut kernel = Text::new(String::new());
        kernel.new_input("x", &x.array)?;
        kernel.new_input("arranged", &arranged)?;
        let mut residual_name = "nullptr";
        if let Some(residual) = residual {
            residual_name = "residual";
            kernel.new_input(residual_name, &residual.array)?;
        }
        let outs = if self.gated { &shapes.rows[..1] } else { &shapes.rows[..] };
        // Writing to a string cannot fail.
        let _ = write!(kernel.body, "Matrix<{ty}> all[]={{");
        for (i, (weights, rows)) in self.weights.iter().zip(&shapes.rows).enumerate() {
            // By their places, so that layers share a kernel.
            let mut names = Vec::with_capacity(weights.slots.len());
            for (j, &tid) in weights.slots.iter().enumerate() {
                let name = format!("c{i}_{j}");
                kernel.new_input(name.clone(), &m.slot(tid)?.array)?;
                names.push(name);
            }
            let y = if i < outs.len() { format!("y{i}") } else { "nullptr".to_owned() };
            let _ = write!(kernel.body, "{{{},{y},{rows}}},", names.join(","));
        }
        let gate = match (self.gated, self.activation) {
            (false, _) => "kNone",
            (true, Activation::Silu) => "kSilu",
            (true, Activation::Gelu) => "kGelu",
        };
        let _ = write!(
            kernel.body,
            "}};row_products<{ty},{group},{tiles},{eights},Gate::{gate}>(reinterpret_cast<char*>(dynamic),\
             reinterpret_cast<const uint4*>(arranged),{residual_name},{k},static_cast<int>(x_shape[0]),all);"
        );
        let lead = &x.shape[..x.shape.len() - 1];
        let shape_of = |rows: usize| -> Shape { lead.iter().copied().chain([rows]).collect() };
        outs.iter().enumerate().for_each(|(i, &rows)| kernel.output(format!("y{i}"), dtype, shape_of(rows)));
        let lines = if self.gated { tiles / 2 } else { tiles } * TILE;
        let blocks = outs.iter().sum::<usize>() / lines;
        let memory = WARPS * columns * (tiles * TILE + 4) * 4;
        let made = kernel.launch(m, cuda::rows(), memory, [blocks, 1], WARPS)?;
        Ok(Some(made.into_iter().zip(outs).map(|(array, &rows)| Slot::new(array, dtype, shape_of(rows))).collect()))
    }

    /// The rows, normalised if they are to be, in the order in which the kernel takes them.
    fn arrange(&self, m: &mut Machine, x: &Slot, shapes: &Shapes) -> Result<Array> {
        let &Shapes { dtype, norm, k, eights, .. } = shapes;
        let (ty, norm_type) = (cuda::type_name(dtype).unwrap_or_default(), cuda::value_type(norm).unwrap_or_default());
        let mut kernel = Text::new(String::new());
        kernel.new_input("x", &x.array)?;
        let (mut weight, mut eps) = (format!("static_cast<const {norm_type}*>(nullptr)"), 0.0);
        if let Some((tid, own)) = self.norm {
            (weight, eps) = ("norm".to_owned(), own);
            kernel.new_input(weight.clone(), &m.slot(tid)?.array)?;
        }
        let _ = write!(
            kernel.body,
            "arrange_rows<{ty},{norm_type}>(x,{weight},{eps:e}f,{k},static_cast<int>(x_shape[0]),reinterpret_cast<uint4*>(y));"
        );
        kernel.output("y".to_owned(), dtype, Shape::from_slice(&[eights * 8, k]));
        let made = kernel.launch(m, cuda::rows(), 0, [eights * 8, 1], WARPS)?.pop();
        made.ok_or_else(|| OpError::value("a kernel gave no result"))
    }

    fn shapes(&self, m: &Machine, x: &Slot, residual: Option<&Slot>) -> Option<Shapes> {
        // Every field is named, so that none of a step's parts is passed over.
        let &Linear { x: _, norm, narrows, residual: own, gated, activation: _, beside: None, joined: None, ref weights, outs: _ } =
            self
        else {
            return None;
        };
        let (dtype, count, k) = (x.dtype, *x.shape.first()?, *x.shape.last()?);
        cuda::type_name(dtype)?;
        let is_one_each = x.shape.len() > 1 && x.shape.iter().product::<usize>() == count * k;
        (is_one_each && (2..=MAX_ROWS).contains(&count)).then_some(())?;
        let Format::Coded { bits: 4, group: group @ (32 | 64 | 128) } = weights.first()?.format else { return None };
        let norm = norm.map_or(Some(dtype), |(weight, _)| norm_type(m, weight, dtype, narrows, k))?;
        let rows = weights.iter().map(|w| rows_of(m, w, dtype, k)).collect::<Option<Vec<_>>>()?;
        let total = rows.iter().sum::<usize>();
        let lines = |tiles: usize| if gated { tiles / 2 } else { tiles } * TILE;
        let fits = |&tiles: &usize| rows.iter().all(|rows| rows.is_multiple_of(lines(tiles)));
        let tiles = [if total >= MANY_ROWS { 4 } else { 2 }, 2].into_iter().find(fits)?;
        let same = !gated || rows.windows(2).all(|w| w[0] == w[1]);
        let added = residual
            .map_or(own.is_none(), |r| r.dtype == dtype && rows.len() == 1 && r.shape.iter().product::<usize>() == count * rows[0]);
        let eights = if count <= 8 { 1 } else { MAX_ROWS / 8 };
        (k.is_multiple_of(STEP) && same && added).then_some(Shapes { dtype, norm, group, k, rows, tiles, eights })
    }
}
