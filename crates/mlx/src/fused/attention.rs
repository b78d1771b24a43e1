//! Attention of one position over a cache: norms and rotary embedding of query and key, the cache's new row, and the softmax.
//!
//! The kernel writes the new row where the cache lies. Nothing else sees that memory: a buffer's array has one handle, and its
//! next reader runs in a later step of the same stream, or behind this attention's result.

use std::collections::BTreeMap;

use flambeau_ir::{Int, Node, Role, Slice, SliceUpdate, Slot as GraphSlot, Tid, Vid, VidOrTid};
use flambeau_tensor::{DType, Shape, Tensor};

use super::{Kind, Made, Shared, Step, find::Scope, linear::content, uses};
use crate::{
    cuda,
    cx::{Cx, Machine, Slot},
    error::{OpError, Result},
    eval,
    ffi::{Array, Kernel, KernelText, Launch},
    ops::index::integers,
    trace::Origin,
};

/// Warps of a block.
const WARPS: usize = 8;
/// Ranges of positions that blocks share out, at most.
pub(super) const SPLITS: usize = 16;
/// Positions from which there are two ranges: to merge ranges costs more than to read so few.
pub(super) const SPLIT_ROWS: usize = 128;
/// Key heads that there are counters for.
pub(super) const MAX_HEADS: usize = 64;

/// A query, key or value on its way from a product to its use.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Heads {
    pub(super) source: Tid,
    pub(super) count: usize,
    pub(super) dim: usize,
    pub(super) norm: Option<(Tid, f32)>,
    pub(super) rope: Option<Rotation>,
}

/// A rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rotation {
    offset: VidOrTid,
    pub(super) periods: Option<Tid>,
    pub(super) base: f32,
}

/// What a slot holds inside the run of nodes.
#[derive(Clone, Debug, PartialEq)]
enum Term {
    Heads(Heads),
    Cache(Tid),
    Attended,
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
    /// Nodes among the others that compute integers.
    pub(super) kept: Vec<Node>,
    pub(super) out: Tid,
    made: Made<DType>,
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
            Node::Reshape(n) if self.terms.get(&n.x.0) == Some(&Term::Attended) => return Some(Some(n.out.0)),
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
                let whole = usize::try_from(n.dims).ok()? == heads.dim && !n.traditional && n.scale == 1.0;
                heads.rope = Some(Rotation { offset: n.offset, periods: n.freqs.map(|f| f.0), base: n.base });
                self.make(n.out.0, Term::Heads(whole.then_some(heads)?));
            }
            Node::SliceUpdate(n) => self.read_update(n)?,
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
        let sizes = matches!(q.dim, 64 | 128) && k.count <= MAX_HEADS && q.count / k.count <= 8;
        let norms = q.norm.map(|n| n.1) == k.norm.map(|n| n.1) && v.norm.is_none();
        let one_rope = turned(&q) && turned(&k) && v.rope.is_none() && same_rotation(self.scope, &q, &k);
        let shape = self.scope.graph.meta.get(k_cache.0 as usize)?.static_shape()?;
        let other = self.scope.graph.meta.get(v_cache.0 as usize)?.static_shape()?;
        let (&[1, heads, capacity, dim], true) = (&shape[..], shape == other) else { return None };
        let own = [k_cache, v_cache].iter().all(|&t| self.scope.nodes.iter().filter(|n| uses(n, t) != (false, false)).count() == 2);
        let fits = alike && sizes && norms && one_rope && own && k_cache != v_cache && (heads, dim) == (k.count, k.dim);
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
            kept: self.kept,
            out,
            made: None,
        })
    }
}

/// Whether query and key turn alike; periods are compared when the kernel runs.
fn same_rotation(scope: &Scope<'_>, q: &Heads, k: &Heads) -> bool {
    let (Some(a), Some(b)) = (q.rope, k.rope) else { return false };
    let constant = |r: Rotation| r.periods.is_none_or(|t| scope.is_constant(t));
    a.offset == b.offset && a.base == b.base && a.periods.is_some() == b.periods.is_some() && constant(a) && constant(b)
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
    Some(Heads { source, count, dim: literal(*dim)?, norm: None, rope: None })
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

    /// Adds the launch to MLX's graph; `false` if the step is none of the kernel's, with every slot as it was.
    pub(super) fn run(&mut self, m: &mut Machine, shared: &mut Shared) -> Result<bool> {
        let Some(dtype) = self.dtype(m) else { return Ok(false) };
        let sources = [&self.q, &self.k, &self.v].map(|h| m.env.tensors[h.source.0 as usize].as_ref().map(Slot::share));
        let [Some(q), Some(k), Some(v)] = sources else { return Ok(false) };
        let rows = [(self.q.source, q?), (self.k.source, k?), (self.v.source, v?)];
        for node in &self.kept {
            eval::eval(node, &mut Cx { m: &mut *m })?;
        }
        let position = self.position(m);
        // A trace cannot compute what it shares with later runs.
        let Some(position) = position.filter(|_| m.trace.is_none() || shared.counters.is_some()) else {
            rows.into_iter().for_each(|(tid, slot)| m.set(tid, slot));
            return Ok(false);
        };
        if self.made.as_ref().is_none_or(|(made, _)| *made != dtype) {
            self.made = Some((dtype, self.kernel(m, dtype)?));
        }
        self.launch(m, shared, dtype, position, &rows.map(|(_, slot)| slot.array))?;
        Ok(true)
    }

    fn launch(&self, m: &mut Machine, shared: &mut Shared, dtype: DType, position: Position, rows: &[Array; 3]) -> Result<()> {
        let Some((_, kernel)) = &self.made else { return Ok(()) };
        let position = self.position_array(m, shared, position)?;
        let counters = shared.counters(m.api)?;
        let mut inputs: Vec<&Array> = rows.iter().collect();
        let mut constants: Vec<Tid> = [&self.q, &self.k].iter().filter_map(|h| h.norm.map(|n| n.0)).collect();
        constants.extend(self.q.rope.and_then(|r| r.periods));
        constants.extend(self.caches);
        inputs.extend(constants.iter().filter_map(|t| m.env.tensors[t.0 as usize].as_ref()).map(|s| &s.array));
        inputs.extend([&position, &counters]);
        let (heads, dim) = (self.q.count, self.q.dim);
        let out: Shape = [1, 1, heads * dim].as_slice().into();
        let parts: Shape = [heads * SPLITS * (dim + 2)].as_slice().into();
        let outputs = [(dtype, out.clone()), (DType::F32, parts)];
        let threads = (WARPS * 32) as i32;
        let grid = [(self.k.count * SPLITS) as i32 * threads, 1, 1];
        let launch = Launch { outputs: &outputs, grid, threads: [threads, 1, 1], templates: &[], init: None };
        if let Some(array) = kernel.launch(&inputs, &launch)?.into_iter().next() {
            m.set(self.out, Slot::new(array, dtype, out));
        }
        Ok(())
    }

    /// The element type, if the slots hold one position.
    fn dtype(&self, m: &Machine) -> Option<DType> {
        let dtype = m.env.tensors.get(self.q.source.0 as usize)?.as_ref()?.dtype;
        cuda::type_name(dtype)?;
        for heads in [&self.q, &self.k, &self.v] {
            content(m, heads.source, dtype, heads.count * heads.dim)?;
        }
        self.holds_constants(m, dtype).map(|()| dtype)
    }

    /// Whether constants and caches are of the type, and of the sizes that the program tells.
    pub(super) fn holds_constants(&self, m: &Machine, dtype: DType) -> Option<()> {
        for heads in [&self.q, &self.k] {
            if let Some((norm, _)) = heads.norm {
                content(m, norm, dtype, heads.dim)?;
            }
            if let Some(periods) = heads.rope.and_then(|r| r.periods) {
                content(m, periods, DType::F32, heads.dim / 2)?;
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

    fn kernel(&self, m: &Machine, dtype: DType) -> Result<Kernel> {
        let ty = cuda::type_name(dtype).unwrap_or_default();
        let (dim, group) = (self.q.dim, self.q.count / self.k.count);
        let mut inputs: Vec<&str> = vec!["q", "k", "v"];
        let (mut norms, mut periods, mut eps) = ("nullptr,nullptr", "nullptr", 0.0);
        if let Some((_, own)) = self.q.norm {
            inputs.extend(["q_norm", "k_norm"]);
            (norms, eps) = ("q_norm,k_norm", own);
        }
        let rope = self.q.rope.map_or((0.0, false), |r| (r.base.log2(), r.periods.is_some()));
        if rope.1 {
            inputs.push("periods");
            periods = "periods";
        }
        inputs.extend(["keys", "values", "position", "tickets"]);
        let log2_base = if rope.1 { 0.0 } else { rope.0 };
        let source = format!(
            "extern __shared__ float shared[];Attend<{ty}> s{{q,k,v,{norms},{periods},const_cast<{ty}*>(keys),const_cast<{ty}*>(values),\
             parts,out,const_cast<unsigned*>(tickets),{},{},0,min({SPLITS},1+*position/{SPLIT_ROWS}),*position,{:e}f,{log2_base:e}f,{eps:e}f}};\
             Attention<{ty},{dim},{group},{WARPS}>(s,shared).run([]{{}});",
            self.k.count, self.capacity, self.scale
        );
        let shared = (group * dim + dim + 2 * WARPS * group + WARPS * group * dim) * 4;
        let kernel = KernelText {
            is_cuda: true,
            name: &format!("flambeau_attend_{ty}_{dim}_{group}_{shared}"),
            source: &source,
            header: cuda::attend(),
            inputs: &inputs.into_iter().map(str::to_owned).collect::<Vec<_>>(),
            outputs: &["out".to_owned(), "parts".to_owned()],
            row_contiguous: true,
            atomic_outputs: false,
            shared_memory: shared as i32,
        };
        Ok(Kernel::new(m.api, &kernel)?)
    }
}
