//! Linear layers of one row: `[residual +] act(norm(x) W)` for some matrices.

mod matching;

pub(super) use self::matching::find;

use std::{cmp::Reverse, fmt::Write as _};

use flambeau_ir::{Int, Node, Slice, Tid};
use flambeau_tensor::{DType, Shape};

use super::{
    launch::Builder,
    low_rank::{self, Low, LowRank},
};
use crate::{cuda, cx::Machine, error::Result, values::Slot};

/// Minimum total number of matrix rows for which a warp takes four rows at a time instead of two.
const MANY_ROWS: usize = 16384;

/// Elements of a row that the threads of a block hold in registers.
const MAX_JOINED: usize = 8192;
/// Matrices of one step at most, and formats of these.
const MOST: usize = 4;
const MOST_FORMATS: usize = 2;

/// Storage format of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// The element type itself.
    Float,
    /// Affine codes.
    Coded { bits: usize, group: usize },
}

impl Format {
    /// Bits of an element, and elements of a group as kernels state them.
    pub(super) fn bits_and_group(self) -> (usize, usize) {
        match self {
            Format::Float => (16, 64),
            Format::Coded { bits, group } => (bits, group),
        }
    }
}

/// A matrix: its values or codes, then scales and biases of codes. `bias` is a row that the product
/// is added to, if there is one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Weights {
    pub(super) format: Format,
    pub(super) slots: Vec<Tid>,
    pub(super) bias: Option<Tid>,
}

/// The activation of a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Silu,
    /// By the hyperbolic tangent.
    Gelu,
}

/// The sum `(row + norm(product)) * scale`, an additional result of the step. `scale` is optional.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Joined {
    row: Tid,
    norm: (Tid, f32),
    /// The type that the normalised product is converted to, if a node does so.
    narrows: Option<DType>,
    scale: Option<Tid>,
    pub(super) out: Tid,
}

/// A fused linear step.
#[derive(Debug)]
pub(crate) struct Linear {
    pub(crate) x: Tid,
    pub(super) norm: Option<(Tid, f32)>,
    /// The type that the normalised row is converted to, if a node does so.
    pub(super) narrows: Option<DType>,
    pub(crate) residual: Option<Tid>,
    pub(super) gated: bool,
    pub(super) activation: Activation,
    /// The part of a row that multiplies the activated product, for a step with one product.
    pub(super) gated_input: Option<Slice>,
    /// The sum that `x` enters before the norm.
    pub(super) joined: Option<Joined>,
    pub(super) weights: Vec<Weights>,
    /// Low-rank updates of all products, in the same order, or none.
    pub(crate) updates: Vec<LowRank>,
    pub(crate) outs: Vec<Tid>,
}

/// Compile-time parameters of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LinearSizes {
    pub(super) dtype: DType,
    pub(super) k: usize,
    pub(super) rows: Vec<usize>,
    /// The type of the norm's weights.
    pub(super) norm: DType,
}

/// Elements of a part of a row `[1, 1, n]`; `None` if it is of something else.
fn elements(m: &Machine, part: &Slice, dtype: DType) -> Option<usize> {
    let row = m.env.tensors.get(part.x.0.0 as usize)?.as_ref()?;
    let (Int::Lit(start), Int::Lit(stop)) = (part.start, part.stop) else { return None };
    let &[1, 1, n] = &row.shape[..] else { return None };
    let (start, stop) = (usize::try_from(start).ok()?, usize::try_from(stop).ok()?);
    (row.dtype == dtype && part.axis == Int::Lit(2) && start < stop && stop <= n).then(|| stop - start)
}

/// A slot's content, if it has a type and a number of elements.
pub(super) fn content(m: &Machine, tid: Tid, dtype: DType, count: usize) -> Option<&Slot> {
    let slot = m.env.tensors.get(tid.0 as usize)?.as_ref()?;
    (slot.dtype == dtype && slot.shape.iter().product::<usize>() == count).then_some(slot)
}

impl Linear {
    /// Products of a row as it is.
    pub(super) fn plain(x: Tid, weights: Vec<Weights>, outs: Vec<Tid>) -> Linear {
        let (norm, narrows, residual, gated_input, joined) = (None, None, None, None, None);
        let (activation, updates) = (Activation::Silu, Vec::new());
        Linear { x, norm, narrows, residual, gated: false, activation, gated_input, joined, weights, updates, outs }
    }

    /// Its first result.
    pub(super) fn out(&self) -> Tid {
        self.outs[0]
    }

    /// Adds the step's part; `false` if the kernel does not support its sizes.
    ///
    /// # Errors
    /// If MLX fails.
    pub(super) fn build(&self, m: &mut Machine, b: &mut Builder) -> Result<bool> {
        let Some(sizes) = self.sizes(m, b.max_shared()) else { return Ok(false) };
        if self.gated_input.as_ref().is_some_and(|part| b.computes(part.x.0)) {
            return Ok(false);
        }
        let lead = m.env.tensors[self.x.0 as usize].as_ref().map(|s| s.shape.clone()).unwrap_or_default();
        let Some(lows) = low_rank::build(self, m, b, &sizes)? else { return Ok(false) };
        let (mut text, call) = self.operands(m, b, &sizes, &lows)?;
        let shape_of = |rows: usize| -> Shape { lead[..lead.len() - 1].iter().copied().chain([rows]).collect() };
        let outs = self.outs.iter().zip(&sizes.rows);
        let outs = outs.map(|(&tid, &rows)| b.result(m, tid, sizes.dtype, shape_of(rows))).collect::<Result<Vec<_>>>()?;
        if let Some(joined) = &self.joined {
            let out = b.result(m, joined.out, sizes.dtype, lead.clone())?;
            text.0 = text.0.replace("@sum", &out);
        }
        text.finish(&outs, &call);
        self.end(b, &sizes, text.0);
        Ok(true)
    }

    /// Ends the part.
    pub(super) fn end(&self, b: &mut Builder, sizes: &LinearSizes, text: String) {
        let blocks = self.formats().into_iter().map(|format| {
            let rows = self.rows_in(sizes, format);
            let results = self.tile(&rows, b.all_warps()) / if self.gated { 2 } else { 1 };
            let count = if self.gated { rows[0] } else { rows.iter().sum() };
            count.div_ceil(results * b.warps())
        });
        let blocks = blocks.max().unwrap_or(0);
        b.part(text, self.shared_memory(sizes), blocks);
    }

    /// The text up to the results, and the call.
    /// `lows` names the results of [`low_rank::build`].
    pub(super) fn operands(
        &self,
        m: &mut Machine,
        b: &mut Builder,
        sizes: &LinearSizes,
        lows: &[Low],
    ) -> Result<(Matrices, String)> {
        let ty = cuda::type_name(sizes.dtype).unwrap_or_default();
        let norm_type = cuda::value_type(sizes.norm).unwrap_or_default();
        let x = b.slot(m, self.x)?;
        let none = |ty: &str| format!("static_cast<const {ty}*>(nullptr)");
        let norm = self.norm.map_or(Ok(none(norm_type)), |(norm, _)| b.slot(m, norm))?;
        let mut other = self.residual.map_or(Ok(none(ty)), |residual| b.slot(m, residual))?;
        let (mut text, mut join) = (String::new(), format!("static_cast<const Join<{ty},{norm_type}>*>(nullptr)"));
        if let Some(Joined { row, norm: (norm, eps), scale, .. }) = self.joined.clone() {
            let (row, norm) = (b.slot(m, row)?, b.slot(m, norm)?);
            let scale = scale.map_or(Ok("nullptr".to_owned()), |scale| b.slot(m, scale))?;
            // Writing to a string cannot fail.
            let _ = write!(text, "Join<{ty},{norm_type}> join{{{row},{norm},{eps:e}f,{scale},@sum}};");
            join = "&join".to_owned();
        }
        let formats = self.formats();
        for (number, format) in formats.iter().enumerate() {
            let _ = write!(text, "Matrix<{ty}> all{number}[]={{");
            for (i, (weights, rows)) in self.weights.iter().zip(&sizes.rows).enumerate().filter(|(_, (w, _))| w.format == *format) {
                let names = weights.slots.iter().map(|&t| b.slot(m, t)).collect::<Result<Vec<_>>>()?;
                let scales = if let [_, s, b] = &names[..] { format!("{s},{b}") } else { "nullptr,nullptr".to_owned() };
                let bias = weights.bias.map_or(Ok("nullptr".to_owned()), |bias| b.slot(m, bias))?;
                let update = match (self.updates.get(i), lows.get(i)) {
                    (Some(update), Some(low)) => update.operand(m, b, low)?,
                    _ => "{}".to_owned(),
                };
                let _ = write!(text, "{{{},{scales},@{i},{rows},{bias},{update}}},", names[0]);
            }
            text.push_str("};");
        }
        // The step reads this slot's old contents above, so the slot is bound only now.
        if let Some(part) = &self.gated_input {
            b.keep(m, &Node::Slice(part.clone()))?;
            other = b.slot(m, part.out.0)?;
        }
        let eps = self.norm.map_or(0.0, |n| n.1);
        let gate = match (self.gated || self.gated_input.is_some(), self.activation) {
            (false, _) => "kNone",
            (true, Activation::Silu) => "kSilu",
            (true, Activation::Gelu) => "kGelu",
        };
        let mut calls = String::new();
        for (number, &format) in formats.iter().enumerate() {
            let ((bits, group), rows) = (format.bits_and_group(), self.rows_in(sizes, format));
            let (tile, k) = (self.tile(&rows, b.all_warps()), sizes.k);
            let is_updated = !lows.is_empty();
            let call = format!(
                "factor=linear<{ty},{bits},{group},{tile},kW,Gate::{gate},{norm_type},{is_updated}>\
                 (shared,{x},{join},{norm},{eps:e}f,{other},{k},all{number},wait);"
            );
            // Blocks without a row of a few leave the row to be staged for the others.
            let _ = match number + 1 == formats.len() {
                true => write!(calls, "{call}"),
                false => write!(calls, "if(blockIdx.x*{tile}<{}){{{call}__syncthreads();}}", rows.iter().sum::<usize>()),
            };
        }
        Ok((Matrices(text), calls))
    }

    /// The sizes, if the slots hold one row and matrices that the kernel takes.
    pub(super) fn sizes(&self, m: &Machine, max_shared: usize) -> Option<LinearSizes> {
        let x = m.env.tensors.get(self.x.0 as usize)?.as_ref()?;
        let (dtype, k) = (x.dtype, *x.shape.last()?);
        cuda::type_name(dtype)?;
        content(m, self.x, dtype, k)?;
        let norm = match (self.norm, &self.joined) {
            (Some((norm, _)), _) => norm_type(m, norm, dtype, self.narrows, k)?,
            (None, Some(joined)) => norm_type(m, joined.norm.0, dtype, joined.narrows, k)?,
            (None, None) => dtype,
        };
        let rows = self.weights.iter().map(|w| rows_of(m, w, dtype, k)).collect::<Option<Vec<_>>>()?;
        let sizes = LinearSizes { dtype, k, rows, norm };
        if let Some(residual) = self.residual {
            content(m, residual, dtype, *sizes.rows.first()?)?;
        }
        if let Some(part) = &self.gated_input {
            (elements(m, part, dtype) == sizes.rows.first().copied()).then_some(())?;
        }
        if let Some(joined) = &self.joined {
            content(m, joined.row, dtype, k)?;
            (norm_type(m, joined.norm.0, dtype, joined.narrows, k)? == norm).then_some(())?;
            joined.scale.map_or(Some(()), |scale| content(m, scale, dtype, 1).map(drop))?;
            (k <= MAX_JOINED).then_some(())?;
        }
        let fits = k % 32 == 0 && self.shared_memory(&sizes) <= max_shared;
        let same = !self.gated || sizes.rows.windows(2).all(|w| w[0] == w[1]);
        (fits && same).then_some(sizes)
    }

    /// The formats of the matrices, most bits first: shared memory holds the row in the layout of
    /// the last one.
    pub(super) fn formats(&self) -> Vec<Format> {
        let mut formats: Vec<Format> = Vec::new();
        for weights in &self.weights {
            if !formats.contains(&weights.format) {
                formats.push(weights.format);
            }
        }
        formats.sort_by_key(|format| Reverse(format.bits_and_group()));
        formats
    }

    /// Whether one kernel takes matrices of these formats: a gate and its factor must have the same
    /// format.
    pub(super) fn has_known_formats(&self) -> bool {
        self.formats().len() <= if self.gated { 1 } else { MOST_FORMATS }
    }

    /// Rows of the matrices of a format.
    pub(super) fn rows_in(&self, sizes: &LinearSizes, format: Format) -> Vec<usize> {
        let of_all = self.weights.iter().zip(&sizes.rows);
        of_all.filter(|(weights, _)| weights.format == format).map(|(_, &rows)| rows).collect()
    }

    /// Rows that each of `warps` warps reads together, chosen for the least estimated time. Rows of
    /// one round share the cost of reading the vector.
    fn tile(&self, rows: &[usize], warps: Option<usize>) -> usize {
        let total = rows.iter().sum::<usize>();
        let results = |tile: usize| if self.gated { tile / 2 } else { tile };
        let fits = |&tile: &usize| results(tile) > 0 && rows.iter().all(|rows| rows.is_multiple_of(results(tile)));
        let usual = if self.gated || total >= MANY_ROWS { 4 } else { 2 };
        let cost = |&tile: &usize| match warps {
            Some(warps) => (total.div_ceil(tile).div_ceil(warps) * tile * [6, 4, 3][tile.ilog2() as usize], tile),
            None => (tile.abs_diff(usual), 0),
        };
        [4, 2, 1].into_iter().filter(fits).min_by_key(cost).unwrap_or(1)
    }

    /// Bytes that the row takes in shared memory, as the kernel lays it out.
    fn shared_memory(&self, sizes: &LinearSizes) -> usize {
        let bytes = self.formats().into_iter().map(|format| staged_bytes(format.bits_and_group().0, sizes.k));
        bytes.max().unwrap_or(0)
    }
}

/// The text of a step's matrices, with `@` and a number where a result belongs.
pub(super) struct Matrices(pub(super) String);

impl Matrices {
    /// Puts the names of results in, of the first only if there is but one, and the call behind.
    pub(super) fn finish(&mut self, outs: &[String], call: &str) {
        for i in 0..MOST {
            self.0 = self.0.replace(&format!("@{i}"), outs.get(i).map_or("nullptr", String::as_str));
        }
        self.0.push_str(call);
    }
}

/// The type of a norm's weights; `None` if they do not fit such a row. Weights in f32 make a row in
/// f32, which has to become the model's type.
pub(super) fn norm_type(m: &Machine, norm: Tid, dtype: DType, narrows: Option<DType>, count: usize) -> Option<DType> {
    let own = m.env.tensors.get(norm.0 as usize)?.as_ref()?.dtype;
    content(m, norm, own, count)?;
    fits_norm(own, dtype, narrows).then_some(own)
}

/// Whether a norm's weights of a type make rows of the model's.
pub(super) fn fits_norm(own: DType, dtype: DType, narrows: Option<DType>) -> bool {
    narrows.is_none_or(|to| to == dtype) && (own == dtype || own == DType::F32 && narrows.is_some())
}

/// Bytes of shared memory that a row of `k` elements takes as the kernels stage it.
pub(super) fn staged_bytes(bits: usize, k: usize) -> usize {
    let codes = 128 / bits;
    let passes = (k / codes).div_ceil(32);
    passes * 32 * codes * 4 + if bits == 16 { 0 } else { passes * 32 * 8 }
}

/// Number of rows of a matrix with `k` columns; a single row may be stored as a column. `None` if
/// the slots or a bias hold another shape.
pub(super) fn rows_of(m: &Machine, weights: &Weights, dtype: DType, k: usize) -> Option<usize> {
    let rows = matrix_rows(m, weights, dtype, k)?;
    weights.bias.is_none_or(|bias| content(m, bias, dtype, rows).is_some()).then_some(rows)
}

fn matrix_rows(m: &Machine, weights: &Weights, dtype: DType, k: usize) -> Option<usize> {
    let slot = |i: usize| m.env.tensors.get(weights.slots.get(i)?.0 as usize)?.as_ref();
    let w = slot(0)?;
    let &[rows, columns] = &w.shape[..] else { return None };
    match weights.format {
        Format::Float if w.dtype != dtype => None,
        Format::Float if (rows, columns) == (k, 1) => Some(1),
        Format::Float => (columns == k).then_some(rows),
        Format::Coded { bits, group } => {
            let holds = |s: &Slot| s.dtype == dtype && s.shape[..] == [rows, k / group];
            let fits = w.dtype == DType::U32 && columns * 32 == k * bits && k.is_multiple_of(group);
            (fits && holds(slot(1)?) && holds(slot(2)?)).then_some(rows)
        }
    }
}
