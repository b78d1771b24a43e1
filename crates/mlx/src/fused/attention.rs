//! Attention of one position over a cache: norms and rotary embedding of query and key, the cache's new row, and the softmax.
//!
//! The kernel writes the new row where the cache lies. Nothing else sees that memory: a buffer's array has one handle, and its
//! next reader runs in a later step of the same stream, or behind this attention's result.

use std::collections::BTreeMap;

use flambeau_ir::{Int, Node, Reshape, Role, Slice, SliceUpdate, Slot as GraphSlot, Tid, Vid, VidOrTid};
use flambeau_tensor::{DType, Tensor};

use super::{
    Kind, Shared, Step,
    find::Scope,
    launch::Builder,
    layers::Before,
    linear::{content, norm_type},
    uses,
};
use crate::{
    cuda,
    cx::{Cx, Machine, Slot},
    error::{OpError, Result},
    ffi::Array,
    ops::index::integers,
    trace::Origin,
};

/// Ranges of positions that blocks share out, at most.
pub(super) const SPLITS: usize = 16;
/// Positions from which there are two ranges: to merge ranges costs more than to read so few.
pub(super) const SPLIT_ROWS: usize = 128;
/// The same where heads are wide: a warp then reads one position at a time.
const WIDE_SPLITS: usize = 32;
const WIDE_SPLIT_ROWS: usize = 32;
/// Key heads that there are counters for.
pub(super) const MAX_HEADS: usize = 64;

/// Elements of the query heads that a block reads together, at most.
const MAX_SUMS: usize = 1024;

/// A query, key or value on its way from a product to its use.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Heads {
    pub(super) source: Tid,
    pub(super) count: usize,
    pub(super) dim: usize,
    /// Elements from one head to the next, and before the first.
    step: usize,
    offset: usize,
    pub(super) norm: Option<(Tid, f32)>,
    /// The type that normalised heads are converted to, if a node does so.
    narrows: Option<DType>,
    pub(super) rope: Option<Rotation>,
}

/// A rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rotation {
    offset: VidOrTid,
    pub(super) periods: Option<Tid>,
    pub(super) base: f32,
    /// Elements of a head that turn.
    dims: usize,
}

/// What a slot holds inside the run of nodes.
#[derive(Clone, Debug, PartialEq)]
enum Term {
    Heads(Heads),
    Cache(Tid),
    Attended,
    /// What lies between query heads, in one row, and its sigmoid.
    Gate(Heads),
    Open(Heads),
}

/// A fused attention step.
#[derive(Debug)]
pub(crate) struct Attention {
    pub(super) q: Heads,
    pub(super) k: Heads,
    pub(super) v: Heads,
    pub(super) caches: [Tid; 2],
    pub(super) capacity: usize,
    pub(super) scale: f32,
    /// First and last position that the step writes, and how many positions attention sees.
    start: Vid,
    visible: Vid,
    /// Whether the sigmoid of what lies behind a query head gates its result.
    gated: bool,
    /// Nodes among the others that compute integers.
    pub(super) kept: Vec<Node>,
    pub(super) out: Tid,
}

/// Where a step's token stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    value: i32,
    /// Present in a trace that leaves it open.
    open: Option<Origin>,
}

/// The only element of what the host has of a slot.
fn only(slot: &Slot) -> Option<i64> {
    match integers(slot.host.as_ref()?).ok()?[..] {
        [only] => Some(only),
        _ => None,
    }
}

/// What is known while nodes are read.
struct Reader<'s, 'a> {
    scope: &'s Scope<'a>,
    terms: BTreeMap<Tid, Term>,
    written: Vec<(Tid, Heads)>,
    start: Option<Vid>,
    visible: Option<Vid>,
    attended: Option<(Heads, [Tid; 2], f32)>,
    gate: Option<Heads>,
    kept: Vec<Node>,
    /// Slots that nodes of the run wrote, and those that kept nodes wrote.
    made: Vec<Tid>,
    foreign: Vec<Tid>,
}

/// Finds an attention that begins at a node.
pub(super) fn find(scope: &Scope<'_>, at: usize) -> Option<Step> {
    let Node::Reshape(_) = scope.nodes.get(at)? else { return None };
    let mut reader = Reader {
        scope,
        terms: BTreeMap::new(),
        written: Vec::new(),
        start: None,
        visible: None,
        attended: None,
        gate: None,
        kept: Vec::new(),
        made: Vec::new(),
        foreign: Vec::new(),
    };
    for (i, node) in scope.nodes.iter().enumerate().skip(at).take(48) {
        if let Some(out) = reader.read(node)? {
            let dead = reader.made.iter().all(|&t| t == out || scope.is_dead(t, i + 1));
            let attention = reader.finish(out).filter(|_| dead)?;
            return Some(Step { end: i + 1, kind: Kind::Attention(Box::new(attention)) });
        }
    }
    None
}

fn literal(int: Int) -> Option<usize> {
    match int {
        Int::Lit(v) => usize::try_from(v).ok(),
        Int::Vid(_) => None,
    }
}

fn variable(int: Int) -> Option<Vid> {
    match int {
        Int::Vid(v) => Some(v),
        Int::Lit(_) => None,
    }
}

impl Reader<'_, '_> {
    fn heads(&self, tid: Tid) -> Option<Heads> {
        match self.terms.get(&tid)? {
            Term::Heads(heads) => Some(heads.clone()),
            _ => None,
        }
    }

    /// Reads a node; `None` if the run ends here, the result if it is complete.
    fn read(&mut self, node: &Node) -> Option<Option<Tid>> {
        match node {
            Node::Reshape(n) if self.terms.get(&n.x.0) == Some(&Term::Attended) => {
                if self.gate.is_none() {
                    return Some(Some(n.out.0));
                }
                self.make(n.out.0, Term::Attended);
            }
            Node::Reshape(n) if self.terms.contains_key(&n.x.0) => self.read_reshape(n)?,
            Node::Reshape(n) if !self.terms.contains_key(&n.x.0) && !self.foreign.contains(&n.x.0) => {
                let heads = split(n.x.0, &n.shape)?;
                self.make(n.out.0, Term::Heads(heads));
            }
            Node::Transpose(n) if self.terms.contains_key(&n.x.0) => {
                // With one position, every order that leaves heads before dimensions is the same.
                let term = self.terms.get(&n.x.0).cloned()?;
                if n.perm.len() != 4 || n.perm[3] != 3 {
                    return None;
                }
                self.make(n.out.0, term);
            }
            Node::RMSNorm(n) => {
                let mut heads = self.heads(n.x.0).filter(|h| h.norm.is_none() && h.rope.is_none())?;
                heads.norm = Some((n.weight.filter(|w| self.scope.is_constant(w.0))?.0, n.eps));
                self.make(n.out.0, Term::Heads(heads));
            }
            Node::Rope(n) => {
                let mut heads = self.heads(n.x.0).filter(|h| h.rope.is_none())?;
                let dims = usize::try_from(n.dims).ok()?;
                let fits = dims <= heads.dim && dims.is_multiple_of(2) && !n.traditional && n.scale == 1.0;
                heads.rope = Some(Rotation { offset: n.offset, periods: n.freqs.map(|f| f.0), base: n.base, dims });
                self.make(n.out.0, Term::Heads(fits.then_some(heads)?));
            }
            Node::AsType(n) => {
                let mut heads = self.heads(n.x.0).filter(|h| h.norm.is_some() && h.narrows.is_none() && h.rope.is_none())?;
                heads.narrows = Some(n.scalar_type);
                self.make(n.out.0, Term::Heads(heads));
            }
            Node::Sigmoid(n) => {
                let Term::Gate(gate) = self.terms.get(&n.x.0)?.clone() else { return None };
                self.make(n.out.0, Term::Open(gate));
            }
            Node::Multiply(n) => {
                let terms = [n.a, n.b].map(|t| self.terms.get(&t.0));
                let ([Some(Term::Attended), Some(Term::Open(_))] | [Some(Term::Open(_)), Some(Term::Attended)]) = terms else {
                    return None;
                };
                return Some(Some(n.out.0));
            }
            Node::SliceUpdate(n) => self.read_update(n)?,
            Node::Slice(n) if self.terms.contains_key(&n.x.0) => self.read_part(n)?,
            Node::Slice(n) if self.written.iter().any(|(t, _)| *t == n.x.0) => self.read_slice(n)?,
            Node::Sdpa(n) if self.attended.is_none() && n.mask.is_none() && n.causal => {
                let (Some(Term::Cache(k)), Some(Term::Cache(v))) = (self.terms.get(&n.k.0), self.terms.get(&n.v.0)) else {
                    return None;
                };
                self.attended = Some((self.heads(n.q.0)?, [*k, *v], n.scale));
                self.make(n.out.0, Term::Attended);
            }
            Node::SymSize(_) | Node::AddInt(_) | Node::ItemInt(_) | Node::Take(_) | Node::ExpandDims(_) => self.keep(node)?,
            _ => return None,
        }
        Some(None)
    }

    /// The same heads in another order of axes, or what lies between heads in one row.
    fn read_reshape(&mut self, n: &Reshape) -> Option<()> {
        let heads = self.heads(n.x.0)?;
        let width = n.shape.last().copied().and_then(literal)?;
        if heads.offset > 0 && heads.norm.is_none() && n.shape.len() == 3 && width == heads.count * heads.dim {
            self.make(n.out.0, Term::Gate(heads.clone()));
            self.gate = Some(heads);
            return Some(());
        }
        let same = split(heads.source, &n.shape)?;
        ((same.count, same.dim) == (heads.count, heads.dim)).then(|| self.make(n.out.0, Term::Heads(heads)))
    }

    /// A part of every head.
    fn read_part(&mut self, n: &Slice) -> Option<()> {
        let mut heads = self.heads(n.x.0).filter(|h| h.step == h.dim && h.norm.is_none() && h.rope.is_none())?;
        let (start, stop) = (literal(n.start)?, literal(n.stop)?);
        let fits = literal(n.axis) == Some(3) && n.step == 1 && start < stop && stop <= heads.step;
        (heads.offset, heads.dim) = (start, stop.checked_sub(start)?);
        fits.then(|| self.make(n.out.0, Term::Heads(heads)))
    }

    /// The cache's new row.
    fn read_update(&mut self, n: &SliceUpdate) -> Option<()> {
        let heads = self.heads(n.update.0)?;
        let start = variable(n.start)?;
        let same = self.start.is_none_or(|s| s == start) && n.dst.0 == n.out.0 && self.scope.is_buffer(n.dst.0);
        (same && literal(n.axis) == Some(2) && n.step == 1 && self.written.len() < 2).then_some(())?;
        self.start = Some(start);
        self.written.push((n.dst.0, heads));
        Some(())
    }

    /// What attention sees of a cache.
    fn read_slice(&mut self, n: &Slice) -> Option<()> {
        let stop = variable(n.stop)?;
        let same = self.visible.is_none_or(|s| s == stop) && literal(n.start) == Some(0);
        (same && literal(n.axis) == Some(2) && n.step == 1).then_some(())?;
        self.visible = Some(stop);
        self.make(n.out.0, Term::Cache(n.x.0));
        Some(())
    }

    fn make(&mut self, tid: Tid, term: Term) {
        self.terms.insert(tid, term);
        self.made.push(tid);
    }

    /// A node of another matter: it must not read what the others make.
    fn keep(&mut self, node: &Node) -> Option<()> {
        let free = self.terms.keys().all(|&t| !uses(node, t).0);
        node.walk(&mut |role, slot| match slot {
            GraphSlot::Tensor(t) if role != Role::Read => self.foreign.push(t),
            _ => {}
        });
        self.terms.retain(|t, _| !self.foreign.contains(t));
        self.kept.push(node.clone());
        free.then_some(())
    }

    fn finish(self, out: Tid) -> Option<Attention> {
        let (q, [k_cache, v_cache], scale) = self.attended?;
        let of = |tid: Tid| self.written.iter().find(|(t, _)| *t == tid).map(|(_, h)| h.clone());
        let (k, v) = (of(k_cache)?, of(v_cache)?);
        let turned = |h: &Heads| h.rope.is_some();
        let alike = k.count == v.count && k.dim == v.dim && q.dim == k.dim && q.count.is_multiple_of(k.count);
        let sizes = matches!(q.dim, 64 | 128 | 256) && q.count <= MAX_HEADS && q.count / k.count <= 8;
        let whole = |h: &Heads| h.offset == 0 && h.step == h.dim;
        let between = Heads { offset: q.dim, norm: None, narrows: None, rope: None, ..q.clone() };
        let gated = self.gate.is_some();
        let apart = whole(&k) && whole(&v) && if gated { q.offset == 0 && self.gate == Some(between) } else { whole(&q) };
        let norms = q.norm.map(|n| n.1) == k.norm.map(|n| n.1) && v.norm.is_none();
        let one_rope = turned(&q) && turned(&k) && v.rope.is_none() && same_rotation(self.scope, &q, &k);
        let shape = self.scope.graph.meta.get(k_cache.0 as usize)?.static_shape()?;
        let other = self.scope.graph.meta.get(v_cache.0 as usize)?.static_shape()?;
        let (&[1, heads, capacity, dim], true) = (&shape[..], shape == other) else { return None };
        let own = [k_cache, v_cache].iter().all(|&t| self.scope.nodes.iter().filter(|n| uses(n, t) != (false, false)).count() == 2);
        let fits = alike && sizes && apart && norms && one_rope && own && k_cache != v_cache && (heads, dim) == (k.count, k.dim);
        fits.then_some(())?;
        Some(Attention {
            q,
            k,
            v,
            caches: [k_cache, v_cache],
            capacity,
            scale,
            start: self.start?,
            visible: self.visible?,
            gated,
            kept: self.kept,
            out,
        })
    }
}

/// Whether query and key turn alike; periods are compared when the kernel runs.
fn same_rotation(scope: &Scope<'_>, q: &Heads, k: &Heads) -> bool {
    let (Some(a), Some(b)) = (q.rope, k.rope) else { return false };
    let constant = |r: Rotation| r.periods.is_none_or(|t| scope.is_constant(t));
    a.offset == b.offset
        && a.base == b.base
        && a.dims == b.dims
        && a.periods.is_some() == b.periods.is_some()
        && constant(a)
        && constant(b)
}

/// A row of heads from a reshape to `[.., heads, .., dim]` whose other sizes one position makes 1.
fn split(source: Tid, shape: &[Int]) -> Option<Heads> {
    let [lead @ .., dim] = shape else { return None };
    let ones = |i: &&Int| !matches!(i, Int::Lit(1 | -1) | Int::Vid(_));
    let mut rest = lead.iter().filter(ones);
    let count = rest.next().map_or(Some(1), |&count| literal(count))?;
    if lead.len() != 3 || rest.next().is_some() {
        return None;
    }
    let dim = literal(*dim)?;
    Some(Heads { source, count, dim, step: dim, offset: 0, norm: None, narrows: None, rope: None })
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

    /// What the kernels for like layers know: whole heads that turn as a whole, weights of norms in the model's type.
    pub(super) fn is_plain(&self) -> bool {
        let turns = self.q.rope.is_some_and(|r| r.dims == self.q.dim);
        !self.gated && turns && self.q.dim <= 128 && self.q.narrows.is_none()
    }

    /// Adds the step's part; `false` if it is none of the kernel's, with every slot as it was.
    ///
    /// # Errors
    /// If MLX fails.
    pub(super) fn build(&self, m: &mut Machine, shared: &mut Shared, b: &mut Builder) -> Result<bool> {
        let Some(dtype) = self.dtype(m) else { return Ok(false) };
        let sources = [self.q.source, self.k.source, self.v.source];
        let names = sources.map(|t| b.slot(m, t));
        let before = Before::of(m, sources.iter())?;
        let mut free = true;
        for node in &self.kept {
            free = free && b.keep(m, node)?;
        }
        let position = self.position(m).filter(|_| free);
        // A trace cannot compute what it shares with later runs.
        let Some(position) = position.filter(|_| m.trace.is_none() || shared.counters.is_some()) else {
            before.restore(m);
            return Ok(false);
        };
        let [q, k, v] = names;
        self.write(m, shared, b, dtype, position, [q?, k?, v?])?;
        Ok(true)
    }

    fn write(
        &self,
        m: &mut Machine,
        shared: &mut Shared,
        b: &mut Builder,
        dtype: DType,
        position: Position,
        [q, k, v]: [String; 3],
    ) -> Result<()> {
        let position = b.array(self.position_array(m, shared, position)?);
        let tickets = b.array(shared.counters(m.api)?);
        let ty = cuda::type_name(dtype).unwrap_or_default();
        let (heads, dim, group) = (self.q.count, self.q.dim, self.heads_of_block());
        let share = self.q.count / self.k.count / group;
        let (mut norms, mut norm_type, mut eps) = ("nullptr,nullptr".to_owned(), ty, 0.0);
        if let (Some((one, own)), Some((other, _))) = (self.q.norm, self.k.norm) {
            norms = format!("{},{}", b.slot(m, one)?, b.slot(m, other)?);
            norm_type = self.norm_type(m, dtype).and_then(cuda::value_type).unwrap_or_default();
            eps = own;
        }
        let (mut periods, mut log2_base) = ("nullptr".to_owned(), self.q.rope.map_or(0.0, |r| r.base.log2()));
        if let Some(tid) = self.q.rope.and_then(|r| r.periods) {
            (periods, log2_base) = (b.slot(m, tid)?, 0.0);
        }
        let [keys, values] = self.caches.map(|t| b.slot(m, t));
        let (keys, values) = (keys?, values?);
        let (splits, rows) = if dim > 128 { (WIDE_SPLITS, WIDE_SPLIT_ROWS) } else { (SPLITS, SPLIT_ROWS) };
        let parts = b.inner(DType::F32, heads * splits * (dim + 2));
        let out = b.result(m, self.out, dtype, [1, 1, heads * dim].as_slice().into())?;
        let (step, turned) = (self.q.step, self.q.rope.map_or(dim, |r| r.dims));
        let gate = if self.gated { format!("{q}+{dim}") } else { "nullptr".to_owned() };
        let text = format!(
            "Attend<{ty},{norm_type}> s{{{q},{k},{v},{norms},{periods},const_cast<{ty}*>({keys}),const_cast<{ty}*>({values}),\
             {parts},{out},const_cast<unsigned*>({tickets}),{},{},0,min({splits},1+*{position}/{rows}),*{position},{:e}f,\
             {log2_base:e}f,{eps:e}f,{step},{gate},{share},false}};\
             Attention<{ty},{dim},{group},kW,{turned},{norm_type}>(s,shared).run(wait);",
            self.k.count, self.capacity, self.scale
        );
        let warps = b.warps();
        let memory = (group * dim + dim + 2 * warps * group + warps * group * dim) * 4;
        b.part(text, memory, self.k.count * share * splits);
        Ok(())
    }

    /// Query heads that a block reads together: as many as its registers hold sums for.
    fn heads_of_block(&self) -> usize {
        let group = self.q.count / self.k.count;
        (1..=group).rev().find(|&heads| group.is_multiple_of(heads) && heads * self.q.dim <= MAX_SUMS).unwrap_or(1)
    }

    /// The type of the norms' weights.
    fn norm_type(&self, m: &Machine, dtype: DType) -> Option<DType> {
        let of = |h: &Heads| h.norm.and_then(|(norm, _)| norm_type(m, norm, dtype, h.narrows, h.dim));
        of(&self.q).filter(|&own| of(&self.k) == Some(own))
    }

    /// The element type, if the slots hold one position.
    fn dtype(&self, m: &Machine) -> Option<DType> {
        let dtype = m.env.tensors.get(self.q.source.0 as usize)?.as_ref()?.dtype;
        cuda::type_name(dtype)?;
        for heads in [&self.q, &self.k, &self.v] {
            content(m, heads.source, dtype, heads.count * heads.step)?;
        }
        self.holds_constants(m, dtype).map(|()| dtype)
    }

    /// Whether constants and caches are of the type, and of the sizes that the program tells.
    pub(super) fn holds_constants(&self, m: &Machine, dtype: DType) -> Option<()> {
        if self.q.norm.is_some() {
            self.norm_type(m, dtype)?;
        }
        for rope in [&self.q, &self.k].iter().filter_map(|heads| heads.rope) {
            if let Some(periods) = rope.periods {
                content(m, periods, DType::F32, rope.dims / 2)?;
            }
        }
        for cache in self.caches {
            content(m, cache, dtype, self.k.count * self.capacity * self.k.dim)?;
        }
        same_periods(m, &self.q, &self.k).then_some(())
    }

    /// Whether another attention has the same sizes and numbers.
    pub(super) fn is_like(&self, other: &Attention) -> bool {
        let of = |a: &Attention| (a.q.count, a.k.count, a.q.dim, a.capacity, a.scale, a.q.norm.map(|n| n.1));
        let turn = |a: &Attention| a.q.rope.map(|r| (r.base, r.periods.is_some()));
        of(self) == of(other) && turn(self) == turn(other)
    }

    /// Whether another attention turns by the same periods.
    pub(super) fn turns_like(&self, other: &Attention, m: &Machine) -> bool {
        same_periods(m, &self.q, &other.q)
    }

    /// The position of the step, if all that name it agree and the cache has room for it. In a trace they agree in where they come
    /// from.
    pub(super) fn position(&self, m: &Machine) -> Option<Position> {
        let value = |vid: Vid| m.env.values.get(vid.0 as usize).copied().flatten();
        let origin = |vid: Vid| m.env.origins.get(vid.0 as usize).copied().flatten();
        let start = value(self.start)?;
        let open = origin(self.start);
        let (turned_by, turned_from) = match self.q.rope?.offset {
            VidOrTid::Vid(vid) => (value(vid)?, origin(vid)),
            VidOrTid::Tid(tid) => {
                let slot = m.env.tensors.get(tid.0 as usize)?.as_ref()?;
                match (slot.origin, &m.trace) {
                    (Some(origin), Some(trace)) => (i32::try_from(trace.value(origin).ok()?).ok()?, Some(origin)),
                    _ => (i32::try_from(only(slot)?).ok()?, None),
                }
            }
        };
        let visible = origin(self.visible);
        let same_origin = turned_from == open && visible == open.map(|o| Origin { offset: o.offset + 1, ..o });
        let fits = same_origin && turned_by == start && value(self.visible)? == start.checked_add(1)?;
        (fits && (0..self.capacity as i32).contains(&start)).then_some(Position { value: start, open })
    }

    /// The position on the device, i32 `[1]`.
    pub(super) fn position_array(&self, m: &mut Machine, shared: &mut Shared, position: Position) -> Result<Array> {
        if let Some(origin) = position.open {
            let mut cx = Cx { m };
            cx.trace()?.guard(origin, 0, self.capacity as i64 - 1);
            return Ok(cx.open_array(origin)?.reshape(&[1])?);
        }
        if let Some((at, array)) = &shared.position
            && *at == position.value
        {
            return Ok(array.share()?);
        }
        let host = Tensor::from_slice(&[position.value], &[1]).map_err(|e| OpError::value(e.to_string()))?;
        let array = Array::from_tensor(m.api, &host)?;
        // What a trace makes does not outlast it.
        if m.trace.is_none() {
            shared.position = Some((position.value, array.share()?));
        }
        Ok(array)
    }
}
