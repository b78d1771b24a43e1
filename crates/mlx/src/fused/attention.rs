//! Attention of one position over a cache: norms and rotary embedding of query and key, the cache's
//! new row, and the softmax.
//!
//! The kernel writes the new row into the cache in place. No other reader can observe the write. A
//! buffer's array has one handle, and its next reader runs later in the same stream or depends on
//! this attention's result.

mod reader;
mod rows;
mod window;

use std::sync::OnceLock;

use flambeau_ir::{Node, Tid, Vid, VidOrTid};
use flambeau_tensor::{DType, Tensor};

pub(super) use reader::find;

use super::{
    StepState,
    launch::Builder,
    layers::Snapshot,
    linear::{content, norm_type},
};
use crate::{
    cuda,
    cx::{Cx, Machine},
    error::{OpError, Result},
    ffi::Array,
    open::Origin,
    values::{Slot, integers},
};

/// Maximum number of position ranges distributed over blocks.
pub(super) const SPLITS: usize = 16;
/// Minimum number of positions for two ranges. Below it, merging costs more than reading.
pub(super) const SPLIT_ROWS: usize = 128;
/// Limits for wide heads, where a warp reads one position at a time.
const WIDE_SPLITS: usize = 32;
const WIDE_SPLIT_ROWS: usize = 32;
/// Number of key heads with counters.
pub(super) const MAX_HEADS: usize = 64;

/// Elements of the query heads that a block reads together, at most.
const MAX_SUMS: usize = 1024;

/// A query, key or value on its way from a product to its use.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Heads {
    pub(crate) source: Tid,
    pub(super) count: usize,
    pub(super) dim: usize,
    /// Elements from one head to the next, and before the first.
    step: usize,
    offset: usize,
    pub(super) norm: Option<(Option<Tid>, f32)>,
    /// The type that normalised heads are converted to, if a node does so.
    narrows: Option<DType>,
    pub(super) rope: Option<Rotation>,
}

/// A rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rotation {
    offset: VidOrTid,
    pub(super) periods: Option<Tid>,
    pub(super) base: f32,
    /// Elements of a head that turn.
    dims: usize,
}

/// The position's key and value, which the step writes into the caches. Absent if an earlier step
/// wrote them.
#[derive(Debug)]
pub(super) struct Fresh {
    pub(super) k: Heads,
    pub(super) v: Heads,
}

/// A fused attention step.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(super) q: Heads,
    pub(super) fresh: Option<Fresh>,
    pub(super) key_heads: usize,
    /// Positions that are seen; all without a bound.
    window: Option<Window>,
    width: OnceLock<i64>,
    pub(super) caches: [Tid; 2],
    pub(super) capacity: usize,
    pub(super) scale: f32,
    /// The step's position, and the rows of the caches that attention reads.
    start: Vid,
    extent: Extent,
    /// Whether the values behind each query head gate its result through a sigmoid.
    gated: bool,
    /// Nodes among the others that compute integers.
    pub(crate) kept: Vec<Node>,
    /// Later nodes that read cache slices taken by the step's nodes. The step does not produce
    /// these slices.
    pub(super) readers: Vec<usize>,
    pub(crate) out: Tid,
}

/// A mask with two bounds: its constants, and the source of its position, the last visible one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Window {
    /// Exclusive bounds on the distance back: zero (future positions are hidden), and the window's
    /// width.
    bounds: [Tid; 2],
    positions: Tid,
}

/// The rows of the caches that attention reads, before a window restricts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// The first rows, in order of their positions. The value is their number.
    First(Vid),
    /// All rows: position `p` is in row `p` modulo their number.
    Ring(Ring),
}

/// Constants of a ring's mask: the number of its rows, and their indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ring {
    length: Tid,
    rows: Tid,
}

/// Names of an attention's position-independent operands, and its numbers.
struct Constants {
    norms: String,
    norm_type: &'static str,
    eps: f32,
    periods: String,
    log2_base: f32,
}

/// Names of the operands and results of one position.
struct Operands<'a> {
    /// Query, key and value.
    rows: [&'a str; 3],
    caches: [&'a str; 2],
    /// Sums of ranges, and counters.
    scratch: [&'a str; 2],
    out: &'a str,
    position: &'a str,
    /// The block's wait code. It also sets the first item if that differs from the block's index.
    wait: &'a str,
}

/// The position of a step's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    value: i32,
    /// Present in a trace that leaves it open.
    open: Option<Origin>,
}

/// The only element of a slot's host copy.
fn only(slot: &Slot) -> Option<i64> {
    match integers(slot.host.as_ref()?).ok()?[..] {
        [only] => Some(only),
        _ => None,
    }
}

/// The last element of a slot's host copy.
fn last(slot: &Slot) -> Option<i64> {
    integers(slot.host.as_ref()?).ok()?.last().copied()
}

/// Whether heads turn by the same periods: one constant, or two with the same content.
fn same_periods(m: &Machine, one: &Heads, other: &Heads) -> bool {
    let of = |h: &Heads| h.rope.and_then(|r| r.periods);
    let (Some(a), Some(b)) = (of(one), of(other)) else { return true };
    let host = |t: Tid| m.env.tensors.get(t.0 as usize).and_then(Option::as_ref).and_then(|s| s.host.as_ref());
    a == b || matches!((host(a), host(b)), (Some(x), Some(y)) if x.bytes()[..] == y.bytes()[..])
}

impl Attention {
    /// Its result.
    pub(super) fn out(&self) -> Tid {
        self.out
    }

    /// The computation in words.
    pub(super) fn form(&self) -> String {
        let parts = [
            (self.window.is_some(), "in a window"),
            (self.is_ring(), "over a ring"),
            (self.fresh.is_none(), "over an earlier cache"),
            (self.gated, "with gates"),
        ];
        std::iter::once("attention").chain(parts.into_iter().filter(|part| part.0).map(|part| part.1)).collect::<Vec<_>>().join(" ")
    }

    fn is_ring(&self) -> bool {
        matches!(self.extent, Extent::Ring(_))
    }

    /// Whether the kernels for uniform layers support it. They need rotation over the whole head of
    /// at most 128 elements, and no window, gate, norm of the value or conversion after a norm.
    pub(super) fn is_plain(&self) -> bool {
        let rotates = self.q.rope.is_some_and(|r| r.dims == self.q.dim);
        let plain_value = self.fresh.as_ref().is_some_and(|fresh| fresh.v.norm.is_none());
        plain_value && self.window.is_none() && !self.gated && rotates && self.q.dim <= 128 && self.q.narrows.is_none()
    }

    /// Adds the step's part; returns `false` and leaves every slot unchanged if the kernel does not
    /// support it.
    ///
    /// # Errors
    /// If MLX fails.
    pub(super) fn build(&self, m: &mut Machine, shared: &mut StepState, b: &mut Builder) -> Result<bool> {
        let Some(dtype) = self.dtype(m) else { return Ok(false) };
        let sources: Vec<Tid> = self.sources().map(|heads| heads.source).collect();
        let names = sources.iter().map(|&t| b.slot(m, t)).collect::<Result<Vec<_>>>()?;
        let before = Snapshot::of(m, sources.iter())?;
        let mut free = true;
        for node in &self.kept {
            free = free && b.keep(m, node)?;
        }
        let position = self.position(m).filter(|_| free);
        // A trace computes nothing, so it cannot create state that later runs share.
        let Some(position) = position.filter(|_| m.open.is_none() || shared.counters.is_some()) else {
            before.restore(m);
            return Ok(false);
        };
        self.write(m, shared, b, dtype, position, &names)?;
        Ok(true)
    }

    fn write(
        &self,
        m: &mut Machine,
        shared: &mut StepState,
        b: &mut Builder,
        dtype: DType,
        position: Position,
        sources: &[String],
    ) -> Result<()> {
        let rows = [0, 1, 2].map(|i| sources.get(i).map_or("nullptr", String::as_str));
        let position = b.array(self.position_array(m, shared, position)?);
        let tickets = b.array(shared.counters(m.api)?);
        let ty = cuda::type_name(dtype).unwrap_or_default();
        let (heads, dim) = (self.q.count, self.q.dim);
        let constants = self.constants(m, dtype, &mut |t| b.slot(m, t))?;
        let [keys, values] = self.caches.map(|t| b.slot(m, t));
        let (keys, values) = (keys?, values?);
        let (splits, split_rows) = self.splits();
        let parts = b.inner(DType::F32, heads * splits * (dim + 2));
        let out = b.result(m, self.out, dtype, [1, 1, heads * dim].as_slice().into())?;
        let operands = Operands {
            rows,
            caches: [&keys, &values],
            scratch: [&parts, &format!("const_cast<unsigned*>({tickets})")],
            out: &out,
            position: &format!("*{position}"),
            wait: "wait",
        };
        let text = self.text(m, ty, &constants, &operands, (splits, split_rows));
        let warps = b.warps();
        b.part(text, self.shared_memory(warps), self.key_heads * self.blocks_per_key_head() * splits);
        Ok(())
    }

    /// The names of the position-independent operands.
    fn constants(&self, m: &Machine, dtype: DType, name: &mut dyn FnMut(Tid) -> Result<String>) -> Result<Constants> {
        let ty = cuda::type_name(dtype).unwrap_or_default();
        let none = || "nullptr".to_owned();
        let [q_norm, k_norm] = [Some(&self.q), self.fresh.as_ref().map(|fresh| &fresh.k)].map(|heads| heads?.norm?.0);
        let mut norm = |norm: Option<Tid>| norm.map_or(Ok(none()), &mut *name);
        let norms = format!("{},{}", norm(q_norm)?, norm(k_norm)?);
        let norm_type = q_norm.and_then(|_| cuda::value_type(self.norm_type(m, dtype)?)).unwrap_or(ty);
        let eps = self.q.norm.map_or(0.0, |n| n.1);
        let (mut periods, mut log2_base) = (none(), self.q.rope.map_or(0.0, |r| r.base.log2()));
        if let Some(tid) = self.q.rope.and_then(|r| r.periods) {
            (periods, log2_base) = (name(tid)?, 0.0);
        }
        Ok(Constants { norms, norm_type, eps, periods, log2_base })
    }

    /// The kernel's text for a position whose operands have these names.
    fn text(&self, m: &Machine, ty: &str, constants: &Constants, o: &Operands<'_>, (splits, rows): (usize, usize)) -> String {
        let Constants { norms, norm_type, eps, periods, log2_base } = constants;
        let Operands { rows: [q, k, v], caches: [keys, values], scratch: [parts, tickets], out, position, wait } = o;
        let (dim, group, share) = (self.q.dim, self.heads_of_block(), self.blocks_per_key_head());
        let (step, rotated) = (self.q.step, self.q.rope.map_or(dim, |r| r.dims));
        let norm_values = self.fresh.as_ref().is_some_and(|fresh| fresh.v.norm.is_some());
        let (window, ring) = (self.width(m).unwrap_or(0), self.is_ring());
        let gate = if self.gated { format!("{q}+{dim}") } else { "nullptr".to_owned() };
        format!(
            "Attend<{ty},{norm_type}> s{{{q},{k},{v},{norms},{periods},const_cast<{ty}*>({keys}),const_cast<{ty}*>({values}),\
             {parts},{out},{tickets},{},{},{window},min({splits},1+{position}/{rows}),{position},{:e}f,\
             {log2_base:e}f,{eps:e}f,{step},{gate},{share},{norm_values},{ring}}};\
             Attention<{ty},{dim},{group},kW,{rotated},{norm_type}>(s,shared).run({wait});",
            self.key_heads, self.capacity, self.scale
        )
    }

    /// Maximum number of position ranges, and minimum number of positions for two ranges.
    fn splits(&self) -> (usize, usize) {
        if self.q.dim > 128 { (WIDE_SPLITS, WIDE_SPLIT_ROWS) } else { (SPLITS, SPLIT_ROWS) }
    }

    /// Number of blocks that compute the query heads of one key head.
    fn blocks_per_key_head(&self) -> usize {
        self.q.count / self.key_heads / self.heads_of_block()
    }

    /// Bytes of shared memory of a block with `warps` warps.
    fn shared_memory(&self, warps: usize) -> usize {
        let (dim, group) = (self.q.dim, self.heads_of_block());
        (group * dim + 2 * dim + 2 * warps * group + warps * group * dim) * 4
    }

    /// Maximum number of query heads of a block whose sums fit its registers.
    fn heads_of_block(&self) -> usize {
        let group = self.q.count / self.key_heads;
        (1..=group).rev().find(|&heads| group.is_multiple_of(heads) && heads * self.q.dim <= MAX_SUMS).unwrap_or(1)
    }

    /// The type of the norms' weights.
    fn norm_type(&self, m: &Machine, dtype: DType) -> Option<DType> {
        let of = |h: &Heads| norm_type(m, h.norm?.0?, dtype, h.narrows, h.dim);
        of(&self.q).filter(|&own| self.fresh.as_ref().is_none_or(|fresh| of(&fresh.k) == Some(own)))
    }

    /// The step's inputs: query, then key and value.
    fn sources(&self) -> impl Iterator<Item = &Heads> {
        std::iter::once(&self.q).chain(self.fresh.iter().flat_map(|fresh| [&fresh.k, &fresh.v]))
    }

    /// Maximum number of visible positions, if the host knows the bounds of the window. Bounds are
    /// constants, so they are read once.
    fn width(&self, m: &Machine) -> Option<i64> {
        match self.width.get() {
            Some(&width) => Some(width),
            None => self.read_width(m).map(|width| *self.width.get_or_init(|| width)),
        }
    }

    fn read_width(&self, m: &Machine) -> Option<i64> {
        let window = self.window?;
        let bound = |t: Tid| m.env.tensors.get(t.0 as usize)?.as_ref().and_then(only);
        if let Extent::Ring(ring) = self.extent {
            let rows = integers(m.env.tensors.get(ring.rows.0 as usize)?.as_ref()?.host.as_ref()?).ok()?;
            let capacity = self.capacity as i64;
            let is_ring =
                bound(ring.length)? == capacity && rows.iter().copied().eq(0..capacity) && bound(window.bounds[1])? <= capacity;
            is_ring.then_some(())?;
        }
        (bound(window.bounds[0])? == 0).then_some(bound(window.bounds[1])?).filter(|&width| width > 0)
    }

    /// The element type, if the slots hold one position.
    fn dtype(&self, m: &Machine) -> Option<DType> {
        let dtype = m.env.tensors.get(self.q.source.0 as usize)?.as_ref()?.dtype;
        cuda::type_name(dtype)?;
        for heads in self.sources() {
            content(m, heads.source, dtype, heads.count * heads.step)?;
        }
        self.holds_constants(m, dtype).map(|()| dtype)
    }

    /// Whether constants and caches have the type and the program's sizes.
    pub(super) fn holds_constants(&self, m: &Machine, dtype: DType) -> Option<()> {
        if self.q.norm.is_some() {
            self.norm_type(m, dtype)?;
        }
        for rope in self.sources().filter_map(|heads| heads.rope) {
            if let Some(periods) = rope.periods {
                content(m, periods, DType::F32, rope.dims / 2)?;
            }
        }
        for cache in self.caches {
            content(m, cache, dtype, self.key_heads * self.capacity * self.q.dim)?;
        }
        (self.window.is_none() || self.width(m).is_some()).then_some(())?;
        self.fresh.as_ref().is_none_or(|fresh| same_periods(m, &self.q, &fresh.k)).then_some(())
    }

    /// Whether another attention has the same sizes and numbers.
    pub(super) fn is_like(&self, other: &Attention) -> bool {
        let of = |a: &Attention| (a.q.count, a.key_heads, a.q.dim, a.capacity, a.scale, a.q.norm.map(|n| n.1));
        let turn = |a: &Attention| a.q.rope.map(|r| (r.base, r.periods.is_some()));
        of(self) == of(other) && turn(self) == turn(other)
    }

    /// Whether another attention turns by the same periods.
    pub(super) fn rotates_like(&self, other: &Attention, m: &Machine) -> bool {
        same_periods(m, &self.q, &other.q)
    }

    /// The position of the step, if all its sources agree and the cache has room for it. In a
    /// trace, their origins must agree.
    pub(super) fn position(&self, m: &Machine) -> Option<Position> {
        let value = |vid: Vid| m.env.values.get(vid.0 as usize).copied().flatten();
        let origin = |vid: Vid| m.env.origins.get(vid.0 as usize).copied().flatten();
        let start = value(self.start)?;
        let open = origin(self.start);
        let (rotated_by, rotated_from) = match self.q.rope?.offset {
            VidOrTid::Vid(vid) => (value(vid)?, origin(vid)),
            VidOrTid::Tid(tid) => {
                let slot = m.env.tensors.get(tid.0 as usize)?.as_ref()?;
                match (slot.origin, &m.open) {
                    (Some(origin), Some(open)) => (i32::try_from(open.value(origin).ok()?).ok()?, Some(origin)),
                    _ => (i32::try_from(only(slot)?).ok()?, None),
                }
            }
        };
        if let Some(window) = self.window {
            let slot = m.env.tensors.get(window.positions.0 as usize)?.as_ref()?;
            let known = if slot.origin.is_some() { slot.origin == open } else { last(slot) == Some(i64::from(start)) };
            known.then_some(())?;
        }
        if let Extent::First(visible) = self.extent {
            let same_origin = origin(visible) == open.map(|o| Origin { offset: o.offset + 1, ..o });
            (same_origin && value(visible)? == start.checked_add(1)?).then_some(())?;
        }
        let fits = rotated_from == open && rotated_by == start;
        (fits && (0..self.positions()).contains(&start)).then_some(Position { value: start, open })
    }

    /// Exclusive upper bound on positions.
    fn positions(&self) -> i32 {
        if self.is_ring() { i32::MAX } else { self.capacity as i32 }
    }

    /// The position on the device, i32 `[1]`.
    pub(super) fn position_array(&self, m: &mut Machine, shared: &mut StepState, position: Position) -> Result<Array> {
        if let Some(origin) = position.open {
            let mut cx = Cx { m };
            cx.open()?.guard(origin, 0, i64::from(self.positions()) - 1);
            return Ok(cx.open_array(origin)?.reshape(&[1])?);
        }
        if let Some((at, array)) = &shared.position
            && *at == position.value
        {
            return Ok(array.share()?);
        }
        let host = Tensor::from_slice(&[position.value], &[1]).map_err(|e| OpError::value(e.to_string()))?;
        let array = Array::from_tensor(m.api, &host)?;
        // Arrays made in a trace do not outlive it.
        if m.open.is_none() {
            shared.position = Some((position.value, array.share()?));
        }
        Ok(array)
    }
}
