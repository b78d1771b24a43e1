//! Scaled dot product attention with an online softmax: scores are never held as a whole.

mod tile;

use flambeau_tensor::{Bool, Shape};

use crate::{
    Error, Float, FloatView, Pool, View, ViewMut,
    convert::{FloatPtr, float_view},
    error::same,
    pool::Parts,
    simd::{Isa, Kernel},
};
use tile::{State, Tile};

/// Which keys a query sees.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Mask<'a> {
    /// All.
    None,
    /// Key `j` for query `i` where `j ≤ i + (Tk − Tq)`.
    Causal,
    /// Those that are true; broadcasts to `[B, Hq, Tq, Tk]`.
    Bool(View<'a, Bool>),
    /// All, with a number added to the score; broadcasts to `[B, Hq, Tq, Tk]`.
    Add(FloatView<'a>),
}

/// Query rows (time by heads of a group) of a tile; a multiple of the register tile's rows of every instruction set.
const ROWS: usize = 48;

/// Up to this many query rows, keys are read as they lie instead of being packed.
const FEW: usize = 8;

/// Keys of a task where there are few query rows.
const SPLIT: usize = 512;

/// `out[B, Hq, Tq, Dv] = softmax(scale · q·kᵀ + mask) · v` for q `[B, Hq, Tq, D]`, k `[B, Hkv, Tk, D]`, v `[B, Hkv, Tk, Dv]`.
///
/// Query head `h` uses key head `h / (Hq / Hkv)`. All strides are free. Scores and sums are `f32`. A query that sees no key, or
/// only scores of −∞, gets zeros.
///
/// # Errors
/// [`Error::Size`] if ranks or sizes do not fit, [`Error::Broadcast`] if the mask does not.
pub fn attention<T: Float, S: Float>(
    pool: &Pool,
    q: &View<T>,
    (k, v): (&View<S>, &View<S>),
    out: &mut ViewMut<T>,
    scale: f32,
    mask: &Mask,
) -> Result<(), Error> {
    same("rank of attention's output", 4, out.shape().len())?;
    let s = out.strides();
    let target = Target { shape: out.shape().into(), strides: [s[0], s[1], s[2], s[3]], origin: FloatPtr::of(out.origin()) };
    let q = float_view(q);
    match (float_view(k), float_view(v)) {
        (FloatView::F32(k), FloatView::F32(v)) => Problem::new(&q, &k, &v, target, scale, mask)?.run(pool),
        (FloatView::F16(k), FloatView::F16(v)) => Problem::new(&q, &k, &v, target, scale, mask)?.run(pool),
        (FloatView::BF16(k), FloatView::BF16(v)) => Problem::new(&q, &k, &v, target, scale, mask)?.run(pool),
        // Both have the type `S`.
        _ => {}
    }
    Ok(())
}

/// Where attention goes.
struct Target {
    shape: Shape,
    strides: [isize; 4],
    origin: FloatPtr,
}

/// Everything that the tiles share.
struct Problem<'a, S> {
    q: &'a FloatView<'a>,
    k: &'a View<'a, S>,
    v: &'a View<'a, S>,
    out: Target,
    scale: f32,
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
}

impl<'a, S: Float> Problem<'a, S> {
    fn new(
        q: &'a FloatView<'a>,
        k: &'a View<'a, S>,
        v: &'a View<'a, S>,
        out: Target,
        scale: f32,
        mask: &Mask<'a>,
    ) -> Result<Problem<'a, S>, Error> {
        for rank in [q.shape().len(), k.rank(), v.rank()] {
            same("rank of an attention operand", 4, rank)?;
        }
        let [batch, heads, queries, depth] = [q.shape()[0], q.shape()[1], q.shape()[2], q.shape()[3]];
        let [kv_heads, keys, width] = [k.shape()[1], k.shape()[2], v.shape()[3]];
        for (what, expected, found) in [
            ("batch of k", batch, k.shape()[0]),
            ("batch of v", batch, v.shape()[0]),
            ("heads of v", kv_heads, v.shape()[1]),
            ("length of v", keys, v.shape()[2]),
            ("depth of k", depth, k.shape()[3]),
            ("query heads left over by key heads", 0, heads.checked_rem(kv_heads).unwrap_or(heads)),
        ] {
            same(what, expected, found)?;
        }
        for (axis, &size) in [batch, heads, queries, width].iter().enumerate() {
            same("a size of the attention's output", size, out.shape[axis])?;
        }
        let full = [batch, heads, queries, keys];
        let mask = match mask {
            Mask::Bool(view) => Mask::Bool(view.broadcast_to(&full)?),
            Mask::Add(view) => Mask::Add(view.broadcast_to(&full)?),
            other => other.clone(),
        };
        let group = heads.checked_div(kv_heads).unwrap_or(0);
        Ok(Problem { q, k, v, out, scale, mask, batch, kv_heads, group, queries, keys, depth, width })
    }

    /// Query rows of one key head, time-major.
    fn rows(&self) -> usize {
        self.queries * self.group
    }

    fn run(&self, pool: &Pool) {
        if self.out.shape.contains(&0) {
            return;
        }
        let cpu = pool.cpu();
        let tiles = self.rows().div_ceil(ROWS);
        let few = self.rows() <= FEW;
        let splits = if few { self.keys.div_ceil(SPLIT).max(1) } else { 1 };
        let tasks = self.batch * self.kv_heads * tiles * splits;
        let width = State::width(self.width);
        let rows = ROWS.min(self.rows());
        let mut states = vec![0.0; if splits > 1 { tasks * rows * width } else { 0 }];
        let parts = Parts::new(&mut states);
        pool.run(tasks, |task| {
            let (part, tile) = (task % splits, task / splits % tiles);
            let head = task / splits / tiles;
            let tile = Tile {
                problem: self,
                cpu,
                batch: head / self.kv_heads,
                kv_head: head % self.kv_heads,
                rows: tile * ROWS..self.rows().min((tile + 1) * ROWS),
                keys: part * SPLIT..if splits > 1 { self.keys.min((part + 1) * SPLIT) } else { self.keys },
                few,
            };
            let state = cpu.dispatch(&tile);
            if splits == 1 {
                tile.finish(&state.numbers);
            } else {
                // SAFETY: each task has its own range.
                let to = unsafe { parts.slice(task * rows * width..(task + 1) * rows * width) };
                to.copy_from_slice(&state.numbers);
            }
        });
        if splits > 1 {
            self.merge(pool, &states, splits);
        }
    }

    /// Joins the parts of the keys, in order.
    fn merge(&self, pool: &Pool, states: &[f32], splits: usize) {
        let width = State::width(self.width);
        pool.run(self.batch * self.kv_heads, |head| {
            let size = self.rows() * width;
            let parts = &states[head * splits * size..(head + 1) * splits * size];
            let mut whole = parts[..size].to_vec();
            for part in parts[size..].chunks_exact(size) {
                State::join(&mut whole, part, self.width);
            }
            let (batch, kv_head) = (head / self.kv_heads, head % self.kv_heads);
            let tile = Tile { problem: self, cpu: pool.cpu(), batch, kv_head, rows: 0..self.rows(), keys: 0..0, few: true };
            tile.finish(&whole);
        });
    }
}

impl<S: Float> Kernel for &Tile<'_, S> {
    type Out = State;
    #[inline(always)]
    fn run<I: Isa>(self, isa: I) -> State {
        self.compute(isa)
    }
}

#[cfg(test)]
mod tests;
