//! Recognises attention in a chain: what nodes make of query, key and value, piece by piece.

use std::collections::BTreeMap;

use flambeau_ir::{Int, Node, Reshape, Role, Slice, SliceUpdate, Slot as GraphSlot, Tid, Vid};

use super::{
    super::{Kind, Step, find::Scope, uses},
    Attention, Heads, MAX_HEADS, Rotation, Window,
};

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

/// What is known while nodes are read.
struct Reader<'s, 'a> {
    scope: &'s Scope<'a>,
    terms: BTreeMap<Tid, Term>,
    written: Vec<(Tid, Heads)>,
    start: Option<Vid>,
    visible: Option<Vid>,
    attended: Option<(Heads, [Tid; 2], f32, Option<Window>)>,
    gate: Option<Heads>,
    kept: Vec<Node>,
    /// Slots that nodes of the run wrote, and those that kept nodes wrote.
    made: Vec<Tid>,
    foreign: Vec<Tid>,
}

/// Finds an attention that begins at a node.
pub(in crate::fused) fn find(scope: &Scope<'_>, at: usize) -> Option<Step> {
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
        if let Some(out) = reader.read(i, node)? {
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
            Node::Slice(n) if self.scope.is_buffer(n.x.0) => self.read_slice(n)?,
            Node::Sdpa(n) if self.attended.is_none() && n.mask.is_some() != n.causal => {
                let window = n.mask.map(|mask| window(self.scope, mask.0, at).filter(|w| Some(w.visible) == self.visible));
                let (Some(Term::Cache(k)), Some(Term::Cache(v))) = (self.terms.get(&n.k.0), self.terms.get(&n.v.0)) else {
                    return None;
                };
                self.attended = Some((self.heads(n.q.0)?, [*k, *v], n.scale, if n.causal { None } else { Some(window??) }));
                self.make(n.out.0, Term::Attended);
            }
            Node::SymSize(_) | Node::AddInt(_) | Node::ItemInt(_) | Node::Take(_) | Node::ExpandDims(_) => self.keep(node)?,
            Node::ARange(_) | Node::Subtract(_) | Node::GreaterEqual(_) | Node::Less(_) | Node::LogicalAnd(_) => self.keep(node)?,
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
        self.foreign.retain(|&t| t != tid);
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
        self.made.retain(|t| !self.foreign.contains(t));
        self.kept.push(node.clone());
        free.then_some(())
    }

    fn finish(self, out: Tid) -> Option<Attention> {
        let (q, [k_cache, v_cache], scale, window) = self.attended?;
        let of = |tid: Tid| self.written.iter().find(|(t, _)| *t == tid).map(|(_, h)| h.clone());
        let (k, v) = (of(k_cache)?, of(v_cache)?);
        let shape = self.scope.graph.meta.get(k_cache.0 as usize)?.static_shape()?;
        let other = self.scope.graph.meta.get(v_cache.0 as usize)?.static_shape()?;
        let (&[1, key_heads, capacity, dim], true) = (&shape[..], shape == other) else { return None };
        let whole = |h: &Heads| h.offset == 0 && h.step == h.dim;
        let between = Heads { offset: q.dim, norm: None, narrows: None, rope: None, ..q.clone() };
        let gated = self.gate.is_some();
        let apart = if gated { q.offset == 0 && self.gate == Some(between) } else { whole(&q) };
        let sizes = matches!(q.dim, 64 | 128 | 256 | 512) && q.dim == dim && q.count.is_multiple_of(key_heads);
        let few = q.count <= MAX_HEADS && q.count / key_heads <= 8;
        let alike = [&k, &v].iter().all(|h| (h.count, h.dim) == (key_heads, dim) && whole(h));
        let eps = |h: &Heads| h.norm.map(|n| n.1);
        let weighted = |h: &Heads| h.norm.is_none_or(|(weight, _)| weight.is_some());
        let norms = eps(&q) == eps(&k) && weighted(&q) && weighted(&k);
        let plain_value = v.norm.is_none_or(|(weight, own)| weight.is_none() && v.narrows.is_none() && eps(&q) == Some(own));
        let one_rope = v.rope.is_none() && same_rotation(self.scope, &q, &k);
        let own = [k_cache, v_cache].iter().all(|&t| self.scope.nodes.iter().filter(|n| uses(n, t) != (false, false)).count() == 2);
        let fits = alike && apart && sizes && few && norms && plain_value && one_rope && own && k_cache != v_cache;
        fits.then_some(())?;
        Some(Attention {
            q,
            k,
            v,
            window,
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

/// The bounds of a mask that a node before `at` has left: `0 <= position - j < width` for all `j` that are visible.
fn window(scope: &Scope<'_>, mask: Tid, at: usize) -> Option<Window> {
    let writer =
        |tid: Tid, before: usize| scope.nodes[..before].iter().rposition(|node| uses(node, tid).1).map(|i| (i, &scope.nodes[i]));
    let (i, Node::LogicalAnd(both)) = writer(mask, at)? else { return None };
    let (low_at, Node::GreaterEqual(low)) = writer(both.a.0, i)? else { return None };
    let (high_at, Node::Less(high)) = writer(both.b.0, i)? else { return None };
    let (apart, Node::Subtract(minus)) = writer(low.a.0, low_at)? else { return None };
    let (same, _) = writer(high.a.0, high_at)?;
    let (expanded, Node::ExpandDims(column)) = writer(minus.a.0, apart)? else { return None };
    let (_, Node::ARange(range)) = writer(minus.b.0, apart)? else { return None };
    let plain = column.axis == 1 && range.start == Int::Lit(0) && range.step == Int::Lit(1) && same == apart;
    let bounds = [low.b.0, high.b.0];
    let given = bounds.iter().all(|&t| scope.is_constant(t)) && writer(column.x.0, expanded).is_none();
    (plain && given).then_some(Window { bounds, positions: column.x.0, visible: variable(range.stop)? })
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
