//! Recognises attention in a chain by following query, key and value through its nodes.

use std::{cell::Cell, collections::BTreeMap, sync::OnceLock};

use flambeau_ir::{IndexCopy, Int, Node, Reshape, Role, Sdpa, Slice, SliceUpdate, Slot as GraphSlot, Tid, Vid, VidOrTid};

use super::{
    super::{FusedNodes, Kind, find::Scope, linear::fits_norm, refusal::Form, uses},
    Attention, Extent, Fresh, Heads, MAX_HEADS, Rotation, Window,
    window::{in_order, in_ring, ring_row},
};

/// Maximum number of nodes from the query's reshape to the result.
const MAX_NODES: usize = 48;

/// The meaning of a slot within the run of nodes.
#[derive(Clone, Debug, PartialEq)]
enum Term {
    Heads(Heads),
    Cache(Tid),
    Attended,
    /// The gate interleaved with the query heads in one row, and its sigmoid.
    Gate(Heads),
    Open(Heads),
}

/// The state of the pattern match over the nodes.
struct Matcher<'s, 'a> {
    scope: &'s Scope<'a>,
    terms: BTreeMap<Tid, Term>,
    written: Vec<(Tid, Heads)>,
    start: Option<Vid>,
    visible: Option<Vid>,
    /// The positions whose rows of a ring were written, and the ring's length.
    ring: Option<(Tid, Tid)>,
    attended: Option<Attended>,
    gate: Option<Heads>,
    kept: Vec<Node>,
    /// Slots written by nodes of the run, and slots written by kept nodes.
    made: Vec<Tid>,
    foreign: Vec<Tid>,
}

/// Query, caches and numbers of a node of attention.
struct Attended {
    q: Heads,
    caches: [Tid; 2],
    scale: f32,
    window: Option<Window>,
    extent: Extent,
}

/// Finds an attention that begins at a node.
pub(in crate::fused) fn find(scope: &Scope<'_>, at: usize) -> Option<FusedNodes> {
    let Node::Reshape(_) = scope.nodes.get(at)? else { return None };
    scope.candidate(Form::Attention, at, |place| find_from(scope, at, place))
}

fn find_from(scope: &Scope<'_>, at: usize, place: &Cell<usize>) -> Option<FusedNodes> {
    let mut reader = Matcher {
        scope,
        terms: BTreeMap::new(),
        written: Vec::new(),
        start: None,
        visible: None,
        ring: None,
        attended: None,
        gate: None,
        kept: Vec::new(),
        made: Vec::new(),
        foreign: Vec::new(),
    };
    for (i, node) in scope.nodes.iter().enumerate().skip(at).take(MAX_NODES) {
        place.set(i);
        if let Some(out) = reader.read(i, node)? {
            let mut readers = Vec::new();
            for &tid in reader.made.iter().filter(|&&t| t != out && !scope.is_dead(t, i + 1)) {
                let is_cache = matches!(reader.terms.get(&tid), Some(Term::Cache(_)));
                let attend = attentions_of(scope, tid, i + 1).filter(|_| is_cache);
                scope.require(attend.is_some(), "a later node reads a result inside")?;
                readers.extend(attend?);
            }
            for tid in reader.ring_caches() {
                readers.extend(attentions_of(scope, tid, i + 1)?);
            }
            readers.sort_unstable();
            readers.dedup();
            let attention = Attention { readers, ..reader.finish(out)? };
            let suits = |heads: &Heads| heads.suits(scope, at, attention.caches[0]);
            scope.require(attention.sources().all(suits), "a norm has another type than the cache")?;
            return Some(FusedNodes { end: i + 1, kind: Kind::Attention(Box::new(attention)) });
        }
    }
    scope.require(false, "it ends too late")?;
    None
}

fn literal(int: Int) -> Option<usize> {
    match int {
        Int::Lit(v) => usize::try_from(v).ok(),
        Int::Vid(_) => None,
    }
}

pub(super) fn variable(int: Int) -> Option<Vid> {
    match int {
        Int::Vid(v) => Some(v),
        Int::Lit(_) => None,
    }
}

impl Matcher<'_, '_> {
    fn heads(&self, tid: Tid) -> Option<Heads> {
        match self.terms.get(&tid)? {
            Term::Heads(heads) => Some(heads.clone()),
            _ => None,
        }
    }

    /// Reads a node; `None` if the run ends here, the result if it is complete.
    fn read(&mut self, at: usize, node: &Node) -> Option<Option<Tid>> {
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
                heads.norm = Some((n.weight.map(|w| w.0), n.eps));
                n.weight.is_none_or(|w| self.scope.is_constant(w.0)).then_some(())?;
                self.make(n.out.0, Term::Heads(heads));
            }
            Node::Rope(n) => {
                let mut heads = self.heads(n.x.0).filter(|h| h.rope.is_none())?;
                let dims = usize::try_from(n.dims).ok()?;
                let fits = dims <= heads.dim && dims.is_multiple_of(2) && !n.traditional && n.scale == 1.0;
                self.scope.require(fits, "heads rotate in another way than by halves, without a scale")?;
                heads.rope = Some(Rotation { offset: n.offset, periods: n.freqs.map(|f| f.0), base: n.base, dims });
                self.make(n.out.0, Term::Heads(heads));
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
            Node::Slice(n) if self.scope.is_buffer(n.x.0) => self.read_slice(n)?,
            Node::Sdpa(n) if self.attended.is_none() && n.mask.is_some() != n.causal => self.read_attention(n, at)?,
            Node::SymSize(_) | Node::AddInt(_) | Node::SubtractInt(_) | Node::ItemInt(_) => self.keep(node)?,
            Node::Take(_) | Node::ExpandDims(_) => self.keep(node)?,
            Node::ARange(_) | Node::Subtract(_) | Node::GreaterEqual(_) | Node::Less(_) | Node::LogicalAnd(_) => self.keep(node)?,
            Node::Remainder(_) | Node::LessEqual(_) => self.keep(node)?,
            Node::IndexCopy(n) => self.read_ring_update(n, at)?,
            _ => return None,
        }
        Some(None)
    }

    /// The same heads with permuted axes, or the gate interleaved with the heads in one row.
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

    /// The new row of a cache that is a ring.
    fn read_ring_update(&mut self, n: &IndexCopy, at: usize) -> Option<()> {
        let heads = self.heads(n.update.0)?;
        let row = ring_row(self.scope, n.indices.0, at)?;
        let same = self.ring.is_none_or(|known| known == row) && n.dst.0 == n.out.0 && self.scope.is_buffer(n.dst.0);
        (same && n.axis == 2 && self.written.len() < 2).then_some(())?;
        self.ring = Some(row);
        self.written.push((n.dst.0, heads));
        Some(())
    }

    /// The caches of an attention over rings that this step writes.
    fn ring_caches(&self) -> Vec<Tid> {
        let is_ring = self.attended.as_ref().is_some_and(|attended| matches!(attended.extent, Extent::Ring(_)));
        if is_ring { self.written.iter().map(|(tid, _)| *tid).collect() } else { Vec::new() }
    }

    /// The slice of a cache that attention sees.
    fn read_slice(&mut self, n: &Slice) -> Option<()> {
        let stop = variable(n.stop)?;
        let same = self.visible.is_none_or(|s| s == stop) && literal(n.start) == Some(0);
        (same && literal(n.axis) == Some(2) && n.step == 1).then_some(())?;
        self.visible = Some(stop);
        self.make(n.out.0, Term::Cache(n.x.0));
        Some(())
    }

    /// Attention over this step's slices of the caches, over an earlier step's slices, or over
    /// rings.
    fn read_attention(&mut self, n: &Sdpa, at: usize) -> Option<()> {
        let mut rows = self.visible;
        let caches = match [n.k, n.v].map(|slot| self.terms.get(&slot.0)) {
            [Some(Term::Cache(k)), Some(Term::Cache(v))] => [*k, *v],
            [None, None] if [n.k, n.v].iter().all(|slot| self.scope.is_buffer(slot.0)) => [n.k.0, n.v.0],
            [None, None] => {
                let [(k, visible), (v, same)] = [shared_cache(self.scope, n.k.0, at)?, shared_cache(self.scope, n.v.0, at)?];
                (visible == same && rows.is_none()).then_some(())?;
                rows = Some(visible);
                [k, v]
            }
            _ => return None,
        };
        let (window, extent) = match (n.mask, rows) {
            (Some(mask), Some(visible)) => {
                let (window, seen) = in_order(self.scope, mask.0, at)?;
                (seen == visible).then_some((Some(window), Extent::First(visible)))?
            }
            (Some(mask), None) => {
                let (window, ring) = in_ring(self.scope, mask.0, at)?;
                (Some(window), Extent::Ring(ring))
            }
            (None, rows) => (None, Extent::First(rows?)),
        };
        self.attended = Some(Attended { q: self.heads(n.q.0)?, caches, scale: n.scale, window, extent });
        self.make(n.out.0, Term::Attended);
        Some(())
    }

    fn make(&mut self, tid: Tid, term: Term) {
        self.terms.insert(tid, term);
        self.foreign.retain(|&t| t != tid);
        self.made.push(tid);
    }

    /// Keeps an unrelated node, which must not read the results of the matched nodes.
    fn keep(&mut self, node: &Node) -> Option<()> {
        let free = self.terms.keys().all(|&t| !uses(node, t).0);
        node.walk(&mut |role, slot| match slot {
            GraphSlot::Tensor(t) if role != Role::Read => self.foreign.push(t),
            _ => {}
        });
        self.terms.retain(|t, _| !self.foreign.contains(t));
        self.made.retain(|t| !self.foreign.contains(t));
        self.kept.push(node.clone());
        self.scope.require(free, "a node among the others reads a result inside")
    }

    /// The attention, without its readers, if the kernel computes such heads.
    fn finish(self, out: Tid) -> Option<Attention> {
        let Attended { q, caches, scale, window, extent } = self.attended?;
        let of = |tid: Tid| self.written.iter().find(|(t, _)| *t == tid).map(|(_, h)| h.clone());
        let [k_cache, v_cache] = caches;
        let shape = self.scope.graph.meta.get(k_cache.0 as usize)?.static_shape()?;
        let other = self.scope.graph.meta.get(v_cache.0 as usize)?.static_shape()?;
        let (&[1, key_heads, capacity, dim], true) = (&shape[..], shape == other) else { return None };
        let fresh = match (of(k_cache), of(v_cache)) {
            (Some(k), Some(v)) => {
                let fresh = Fresh { k, v };
                let suits = fresh.suits(self.scope, &q, [key_heads, dim]);
                self.scope.require(suits, "key and value have another norm, rotation or size than the query")?;
                Some(fresh)
            }
            (None, None) if self.written.is_empty() => None,
            _ => return None,
        };
        let start = match (extent, &fresh) {
            (Extent::First(_), Some(_)) => self.start.filter(|_| self.ring.is_none())?,
            (Extent::First(visible), None) => last_visible_position(self.scope, &q, visible)?,
            (Extent::Ring(ring), fresh) => {
                let written = fresh.as_ref().map(|_| (window.map(|window| window.positions), ring.length));
                let same = written == self.ring.map(|(positions, length)| (Some(positions), length)) && self.start.is_none();
                self.scope.require(same, "mask and new row belong to different rings")?;
                rotated_by(&q)?
            }
        };
        let between = Heads { offset: q.dim, norm: None, narrows: None, rope: None, ..q.clone() };
        let gated = self.gate.is_some();
        let apart = if gated { q.offset == 0 && self.gate == Some(between) } else { q.is_whole() };
        let sizes = matches!(q.dim, 64 | 128 | 256 | 512) && q.dim == dim && q.count.is_multiple_of(key_heads);
        let few = q.count <= MAX_HEADS && q.count / key_heads <= 8;
        let rotates = q.rope.is_some_and(|r| r.periods.is_none_or(|t| self.scope.is_constant(t)));
        let own = caches.iter().all(|&t| is_own(self.scope, t, extent));
        let scope = self.scope;
        scope.require(sizes, "heads have another size than 64, 128, 256 or 512")?;
        scope.require(few, "there are too many heads, in all or for each key head")?;
        scope.require(rotates, "the query does not rotate, or by periods that are not constant")?;
        scope.require(apart, "the query's row holds other values than heads and their gates")?;
        scope.require(q.has_weights(), "a norm has no weights")?;
        scope.require(own && k_cache != v_cache, "other nodes use the cache")?;
        Some(Attention {
            q,
            fresh,
            key_heads,
            window,
            width: OnceLock::new(),
            caches,
            capacity,
            scale,
            start,
            extent,
            gated,
            kept: self.kept,
            readers: Vec::new(),
            out,
        })
    }
}

impl Heads {
    fn is_whole(&self) -> bool {
        self.offset == 0 && self.step == self.dim
    }

    /// Whether a norm, if there is one, has weights.
    fn has_weights(&self) -> bool {
        self.norm.is_none_or(|(weight, _)| weight.is_some())
    }

    /// Whether a norm of the heads, or of their source before node `at`, yields the cache's type,
    /// according to the program. If one step over a shared cache cannot run fused, no step over it
    /// may. So this is decided before the first step runs.
    fn suits(&self, scope: &Scope<'_>, at: usize, cache: Tid) -> bool {
        let of = |t: Tid| scope.graph.meta.get(t.0 as usize).map(|meta| meta.dtype);
        let before = match writer(scope, self.source, at) {
            Some((_, Node::RMSNorm(norm))) => norm.weight.map(|weight| (weight.0, None)),
            _ => None,
        };
        let own = self.norm.and_then(|(weight, _)| Some((weight?, self.narrows)));
        [before, own].into_iter().flatten().all(|(weight, narrows)| match (of(weight), of(cache)) {
            (Some(weight), Some(dtype)) => fits_norm(weight, dtype, narrows),
            _ => true,
        })
    }

    fn eps(&self) -> Option<f32> {
        self.norm.map(|norm| norm.1)
    }
}

impl Fresh {
    /// Whether key and value are rows for such a cache, with the same norm and rotation as the
    /// query.
    fn suits(&self, scope: &Scope<'_>, q: &Heads, [count, dim]: [usize; 2]) -> bool {
        let Fresh { k, v } = self;
        let alike = [k, v].iter().all(|h| (h.count, h.dim) == (count, dim) && h.is_whole());
        let plain_value = v.norm.is_none_or(|(weight, own)| weight.is_none() && v.narrows.is_none() && q.eps() == Some(own));
        let one_norm = q.eps() == k.eps() && k.has_weights();
        alike && plain_value && one_norm && v.rope.is_none() && same_rotation(scope, q, k)
    }
}

/// Whether only attention uses a cache: one node writes the new row, and one node slices it, or
/// nodes of attention read the whole ring.
fn is_own(scope: &Scope<'_>, cache: Tid, extent: Extent) -> bool {
    let mut users = scope.nodes.iter().filter(|node| uses(node, cache) != (false, false));
    match extent {
        Extent::First(_) => users.count() == 2,
        Extent::Ring(_) => {
            let writers = scope.nodes.iter().filter(|node| uses(node, cache).1).count();
            let reads = |n: &Sdpa| n.q.0 != cache && n.mask.is_none_or(|mask| mask.0 != cache);
            writers == 1 && users.all(|node| uses(node, cache).1 || matches!(node, Node::Sdpa(n) if reads(n)))
        }
    }
}

/// The last node before `at` that writes a slot, with its index.
pub(super) fn writer<'a>(scope: &Scope<'a>, tid: Tid, at: usize) -> Option<(usize, &'a Node)> {
    scope.nodes[..at].iter().rposition(|node| uses(node, tid).1).map(|i| (i, &scope.nodes[i]))
}

/// Whether a node writes an integer.
fn writes_integer(node: &Node, vid: Vid) -> bool {
    let mut writes = false;
    node.walk(&mut |role, slot| writes |= role != Role::Read && slot == GraphSlot::Value(vid));
    writes
}

/// The cache that a slot slices from its first position, and the slice's length. The cache must be
/// unchanged at that node.
fn shared_cache(scope: &Scope<'_>, tid: Tid, at: usize) -> Option<(Tid, Vid)> {
    let (cut, Node::Slice(n)) = writer(scope, tid, at)? else { return None };
    let visible = variable(n.stop)?;
    let plain = literal(n.axis) == Some(2) && literal(n.start) == Some(0) && n.step == 1 && scope.is_buffer(n.x.0);
    let as_cut = scope.nodes[cut + 1..at].iter().all(|node| !uses(node, n.x.0).1 && !writes_integer(node, visible));
    (plain && as_cut).then_some((n.x.0, visible))
}

/// The position of the query heads' rotation.
fn rotated_by(q: &Heads) -> Option<Vid> {
    match q.rope?.offset {
        VidOrTid::Vid(start) => Some(start),
        VidOrTid::Tid(_) => None,
    }
}

/// The position of the query heads' rotation, if it is the last visible position.
fn last_visible_position(scope: &Scope<'_>, q: &Heads, visible: Vid) -> Option<Vid> {
    let start = rotated_by(q)?;
    let at = scope.nodes.iter().rposition(|node| writes_integer(node, start))?;
    let Node::SubtractInt(minus) = &scope.nodes[at] else { return None };
    let only = scope.nodes.iter().filter(|node| writes_integer(node, visible) || writes_integer(node, start)).count() == 2;
    (only && minus.a == Int::Vid(visible) && minus.b == Int::Lit(1)).then_some(start)
}

/// The readers of a slot's contents from node `from` on, if all of them are attention over it.
fn attentions_of(scope: &Scope<'_>, tid: Tid, from: usize) -> Option<Vec<usize>> {
    let mut found = Vec::new();
    for (i, node) in scope.nodes.iter().enumerate().skip(from) {
        let (reads, writes) = uses(node, tid);
        if reads {
            let attends = matches!(node, Node::Sdpa(n) if n.q.0 != tid && n.mask.is_none_or(|mask| mask.0 != tid));
            attends.then(|| found.push(i))?;
        }
        if writes {
            break;
        }
    }
    scope.nodes.iter().all(|node| node.chains().is_empty()).then_some(found)
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
