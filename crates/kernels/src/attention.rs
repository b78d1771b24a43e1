//! Scaled dot product attention with an online softmax: scores are never held as a whole.

mod coded;
mod single_query;
mod state;
mod tile;

use std::ops::Range;

use flambeau_tensor::{Bool, DType, Element, Shape};

use crate::{
    Error, Float, FloatView, Pool, View, ViewMut,
    convert::{FloatPtr, float_view},
    error::same,
    pool::{Parts, Team},
    simd::Cpu,
};
pub use coded::{Coded, attention_over_codes};
use single_query::{HeadRows, SingleQuery};
use state::{Join, State};
use tile::{Tile, WriteState, scratch_words};

/// Which keys a query sees.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Mask<'a> {
    /// All.
    None,
    /// Key `j` for query `i` where `j ≤ i + (Tk − Tq)`.
    Causal,
    /// As [`Mask::Causal`], but only the last keys up to this number.
    Window(usize),
    /// Keys `first ≤ j < end` for the pair `[first, end]` of a query: one pair for each query, or
    /// one for all. Bounds beyond the keys are cut.
    Spans(&'a [[i64; 2]]),
    /// Keys with `true` are visible; broadcasts to `[B, Hq, Tq, Tk]`.
    Bool(View<'a, Bool>),
    /// All, with a number added to the score; broadcasts to `[B, Hq, Tq, Tk]`.
    Add(FloatView<'a>),
}

/// How products of queries and keys become scores and shares.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scoring<'a> {
    /// The factor of each product.
    pub scale: f32,
    /// Bounds scores: a score `x` becomes `cap · tanh(x / cap)` before the mask.
    pub cap: Option<f32>,
    /// `[Hq]`: a further score of each head, which takes a share and has no value.
    pub sinks: Option<&'a [f32]>,
}

impl From<f32> for Scoring<'_> {
    fn from(scale: f32) -> Self {
        Scoring { scale, ..Scoring::default() }
    }
}

/// Query rows (time by heads of a group) of a tile.
const ROWS: usize = 48;

/// Keys of a task where there are few query rows.
const SPLIT: usize = 256;

/// `out[B, Hq, Tq, Dv] = softmax(scale · q·kᵀ + mask) · v` for q `[B, Hq, Tq, D]`, k
/// `[B, Hkv, Tk, D]`, v `[B, Hkv, Tk, Dv]`. Instead of a scale, a [`Scoring`] may be given.
///
/// Query head `h` uses key head `h / (Hq / Hkv)`. All strides are free. Scores and sums are `f32`.
/// The result is zero for a query without visible keys or with only scores of −∞.
///
/// # Errors
/// [`Error::Size`] if ranks or sizes do not fit, [`Error::Broadcast`] if the mask does not.
pub fn attention<'a, T: Float, S: Float>(
    pool: &Pool,
    q: &View<T>,
    (k, v): (&View<S>, &View<S>),
    out: &mut ViewMut<T>,
    scoring: impl Into<Scoring<'a>>,
    mask: &Mask,
) -> Result<(), Error> {
    let target = Target::of(out)?;
    attend(pool, &float_view(q), (float_view(k), float_view(v)), target, scoring.into(), mask)
}

/// [`attention`], compiled once, in this crate, for all types. Keys and values have the same type.
fn attend(
    pool: &Pool,
    q: &FloatView,
    (k, v): (FloatView, FloatView),
    target: Target,
    scoring: Scoring<'_>,
    mask: &Mask,
) -> Result<(), Error> {
    match (k, v) {
        (FloatView::F32(k), FloatView::F32(v)) => Problem::new(q, &k, &v, target, scoring, mask)?.run(pool),
        (FloatView::F16(k), FloatView::F16(v)) => Problem::new(q, &k, &v, target, scoring, mask)?.run(pool),
        (FloatView::BF16(k), FloatView::BF16(v)) => Problem::new(q, &k, &v, target, scoring, mask)?.run(pool),
        _ => unreachable!("keys and values have one type"),
    }
    Ok(())
}

/// Destination of attention results.
struct Target {
    shape: Shape,
    strides: [isize; 4],
    origin: FloatPtr,
}

impl Target {
    fn of<T: Float>(out: &mut ViewMut<T>) -> Result<Target, Error> {
        same("rank of attention's output", 4, out.shape().len())?;
        let s = out.strides();
        Ok(Target { shape: out.shape().into(), strides: [s[0], s[1], s[2], s[3]], origin: FloatPtr::of(out.origin()) })
    }
}

/// Storage of keys and values, `[B, Hkv, Tk, D]`.
trait Stored: Sync + Sized {
    /// Rounds weights to this type before the product with values.
    type Weight: Float;
    /// The row access for single queries.
    type Rows: HeadRows;
    /// # Errors
    /// If there are not four of them.
    fn sizes(&self) -> Result<[usize; 4], Error>;
    /// Whether single queries can read the rows.
    fn has_rows(&self) -> bool;
    /// Number of scratch floats for the rows of `keys` keys.
    fn row_floats(&self, keys: usize) -> usize;
    /// The rows of a head. Rows `keys` are readable while `scratch` stays unmodified.
    fn head_rows(&self, cpu: Cpu, at: [usize; 2], keys: Range<usize>, scratch: &mut [f32]) -> Self::Rows;
    /// Computes a tile of any number of queries; `pairs` of bf16 are multiplied at once.
    fn compute(tile: Tile<Self>, pairs: bool);
}

/// Everything that the tiles share.
struct Problem<'a, K> {
    q: &'a FloatView<'a>,
    k: &'a K,
    v: &'a K,
    out: Target,
    scoring: Scoring<'a>,
    mask: Mask<'a>,
    batch: usize,
    kv_heads: usize,
    /// Query heads of a key head.
    group: usize,
    queries: usize,
    keys: usize,
    /// Width of keys, and of values.
    depth: usize,
    width: usize,
    /// Whether all operands are bf16.
    is_bf16: bool,
}

impl<'a, K: Stored> Problem<'a, K> {
    fn new(
        q: &'a FloatView<'a>,
        k: &'a K,
        v: &'a K,
        out: Target,
        scoring: Scoring<'a>,
        mask: &Mask<'a>,
    ) -> Result<Problem<'a, K>, Error> {
        let [batch, heads, queries, depth] = four(q.shape())?;
        let ([k_batch, kv_heads, keys, k_depth], [v_batch, v_heads, v_keys, width]) = (k.sizes()?, v.sizes()?);
        for (what, expected, found) in [
            ("batch of k", batch, k_batch),
            ("batch of v", batch, v_batch),
            ("heads of v", kv_heads, v_heads),
            ("length of v", keys, v_keys),
            ("depth of k", depth, k_depth),
            ("query heads left over by key heads", 0, heads.checked_rem(kv_heads).unwrap_or(heads)),
        ] {
            same(what, expected, found)?;
        }
        for (axis, &size) in [batch, heads, queries, width].iter().enumerate() {
            same("a size of the attention's output", size, out.shape[axis])?;
        }
        if let Some(sinks) = scoring.sinks {
            same("number of sinks", heads, sinks.len())?;
        }
        let full = [batch, heads, queries, keys];
        let mask = match mask {
            Mask::Bool(view) => Mask::Bool(view.broadcast_to(&full)?),
            Mask::Add(view) => Mask::Add(view.broadcast_to(&full)?),
            other => other.clone(),
        };
        if let Mask::Window(0) = mask {
            return Err(Error::Parameter { what: "size of an attention window", found: 0 });
        }
        if let Mask::Spans(spans) = mask
            && spans.len() != 1
        {
            same("number of spans of an attention mask", queries, spans.len())?;
        }
        let group = heads.checked_div(kv_heads).unwrap_or(0);
        let is_bf16 = matches!(q, FloatView::BF16(_)) && K::Weight::DTYPE == DType::BF16;
        Ok(Problem { q, k, v, out, scoring, mask, batch, kv_heads, group, queries, keys, depth, width, is_bf16 })
    }

    /// Query rows of one key head, time-major.
    fn rows(&self) -> usize {
        self.queries * self.group
    }

    /// The factor of products, and the bound of scores, if they have one. With a bound, the factor
    /// gives the argument of the hyperbolic tangent.
    fn factors(&self) -> (f32, Option<f32>) {
        let Scoring { scale, cap, .. } = self.scoring;
        (cap.map_or(scale, |cap| scale / cap), cap)
    }

    /// The share of a query head's sink, relative to a weight of 1 for the score `top`. Without
    /// visible keys, `top` is −∞.
    fn sink(&self, head: usize, top: f32) -> f32 {
        let base = if top < f32::MIN { 0.0 } else { top };
        self.scoring.sinks.map_or(0.0, |sinks| (sinks[head] - base).exp())
    }

    /// Keys that a query can see at most.
    fn visible(&self, query: usize) -> Range<usize> {
        let end = (query + 1 + self.keys).saturating_sub(self.queries).min(self.keys);
        match self.mask {
            Mask::Causal => 0..end,
            Mask::Window(size) => end.saturating_sub(size)..end,
            Mask::Spans(spans) => {
                let [first, end] = spans[query.min(spans.len() - 1)].map(|key| key.clamp(0, self.keys as i64) as usize);
                first..end.max(first)
            }
            _ => 0..self.keys,
        }
    }

    /// The range that holds every key visible to any query.
    fn visible_to_any(&self) -> Range<usize> {
        let own = (0..self.queries).map(|query| self.visible(query)).filter(|own| !own.is_empty());
        own.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    fn run(&self, pool: &Pool) {
        if self.out.shape.contains(&0) {
            return;
        }
        let mut team = pool.team();
        let cpu = team.cpu();
        let tiles = self.rows().div_ceil(ROWS);
        let seen = if tiles == 1 { self.visible_to_any() } else { 0..self.keys };
        let first = seen.start / SPLIT;
        let splits = if tiles == 1 { (seen.end.div_ceil(SPLIT) - first).max(1) } else { 1 };
        let heads = self.batch * self.kv_heads;
        let rows = ROWS.min(self.rows()).next_multiple_of(cpu.lanes());
        let size = State::len(self.width, rows);
        let most = SPLIT.min(self.keys);
        let is_single = self.has_single_queries();
        let words = if is_single {
            let rows = [self.k, self.v].map(|stored| stored.row_floats(most));
            single_query::scratch_words([self.group, self.depth, self.width, most], rows)
        } else {
            0
        };
        let words = words.max(scratch_words(cpu, rows, self.depth, self.width));
        let pairs = self.is_bf16 && cpu.has_dot();
        let mut states = team.take(if splits > 1 { heads * splits * size } else { 0 });
        let parts = Parts::new(states.words());
        team.run(heads * tiles * splits, words, |task, scratch| {
            // Late tiles see the most keys: they go first.
            let (part, tile, head) = (task % splits, tiles - 1 - task / splits % tiles, task / splits / tiles);
            let keys = if splits > 1 { (first + part) * SPLIT..self.keys.min((first + part + 1) * SPLIT) } else { 0..self.keys };
            // SAFETY: each task has its own range.
            let state = (splits > 1).then(|| bytemuck::cast_slice_mut(unsafe { parts.slice(task * size..(task + 1) * size) }));
            let rows = tile * ROWS..self.rows().min((tile + 1) * ROWS);
            let tile = self.tile(cpu, head, rows, keys, scratch, state);
            match (is_single, pairs) {
                (true, true) if single_query::fits_pairs(self.depth) => cpu.dispatch_dot(SingleQuery { tile, most }),
                (true, _) => cpu.dispatch(SingleQuery { tile, most }),
                (false, pairs) => K::compute(tile, pairs),
            }
        });
        if splits > 1 {
            self.merge(&mut team, states.words(), [splits, size, rows], words);
        }
        team.give_back(states);
    }

    /// Whether [`SingleQuery`] supports the problem: it has one query per head, few heads per group
    /// and a readable layout of keys and values.
    fn has_single_queries(&self) -> bool {
        self.queries == 1 && self.group <= single_query::MOST_HEADS && self.k.has_rows() && self.v.has_rows()
    }

    /// Whether the mask gives an added score for each key.
    fn is_masked(&self) -> bool {
        matches!(self.mask, Mask::Bool(_) | Mask::Add(_))
    }

    fn tile<'t>(
        &'t self,
        cpu: Cpu,
        head: usize,
        rows: Range<usize>,
        keys: Range<usize>,
        scratch: &'t mut [u32],
        state: Option<&'t mut [f32]>,
    ) -> Tile<'t, K> {
        let (batch, kv_head) = (head / self.kv_heads, head % self.kv_heads);
        Tile { problem: self, cpu, batch, kv_head, rows, keys, scratch, state }
    }

    /// Joins the parts of the keys, in order.
    fn merge(&self, team: &mut Team, states: &mut [u32], [splits, size, rows]: [usize; 3], words: usize) {
        let cpu = team.cpu();
        let parts = Parts::new(states);
        team.run(self.batch * self.kv_heads, words, |head, scratch| {
            // SAFETY: each head has its own range.
            let states = unsafe { parts.slice(head * splits * size..(head + 1) * splits * size) };
            let (whole, rest) = bytemuck::cast_slice_mut::<u32, f32>(states).split_at_mut(size);
            for part in rest.chunks_exact(size) {
                cpu.dispatch(Join { whole, part, width: self.width, rows });
            }
            let tile = self.tile(cpu, head, 0..self.rows(), 0..0, scratch, None);
            cpu.dispatch(WriteState { tile, joined: whole, rows });
        });
    }
}

/// The sizes of an operand.
fn four(shape: &[usize]) -> Result<[usize; 4], Error> {
    same("rank of an attention operand", 4, shape.len())?;
    Ok([shape[0], shape[1], shape[2], shape[3]])
}

#[cfg(test)]
mod tests;
