//! Caches of codes that attention reads as they lie: the nodes that would decode keys and values for it alone are left out.

use std::collections::BTreeMap;

use flambeau_ir::{Chain, Graph, In, Node, Role, Slot, Tid};
use flambeau_tensor::{DType, Expr};

use super::{memref::MemRef, planner::Planner};
use crate::{
    liveness::{Deaths, Liveness},
    prepare::{Dynamic, Obstacle, Prepared},
};

/// Keys or values that nodes of the main chain decode: where their codes become floats, where these are scaled, and where groups are
/// joined to rows.
#[derive(Clone, Copy, Debug)]
struct Site {
    cast: usize,
    scaling: usize,
    joining: usize,
}

/// A node that is left out, by its number in the main chain, and the operand that is kept of it.
type LeftOut = (usize, Option<In>);

/// What keys or values are decoded from.
#[derive(Clone, Debug)]
pub(crate) struct Codes {
    /// i8 [B, Hk, T, G, D/G]
    pub(crate) codes: MemRef,
    /// [B, Hk, T, G, 1]
    pub(crate) scales: MemRef,
}

/// Nodes that are left out, by their numbers in the main chain, and what is kept of them meanwhile.
#[derive(Debug, Default)]
pub(super) struct Undecoded {
    /// Nodes that are left out, with the operand that is kept.
    nodes: BTreeMap<usize, Option<In>>,
    /// Keys and values of attentions.
    attentions: BTreeMap<usize, [Site; 2]>,
    pub(super) kept: BTreeMap<usize, MemRef>,
    /// Sizes of the rows that nodes would have joined; an attention may put its result into their slot.
    rows: BTreeMap<usize, Vec<Expr>>,
    /// Whether an attention cannot read what was kept for it.
    pub(super) is_refused: bool,
}

impl Undecoded {
    /// Every attention of the main chain whose keys and values are decoded for nobody else: codes become floats, are multiplied by
    /// scales, and groups are joined to rows.
    pub(super) fn of(graph: &Graph, liveness: &Liveness) -> Undecoded {
        let mut found = Undecoded::default();
        let main = graph.main as usize;
        let chain = Made { chain: &graph.chains[main], deaths: &liveness.chains[main] };
        for (at, node) in chain.chain.iter().enumerate() {
            if let Node::Sdpa(n) = node
                && let (Some((keys, key_nodes)), Some((values, value_nodes))) = (chain.site(at, n.k), chain.site(at, n.v))
            {
                found.attentions.insert(at, [keys, values]);
                found.nodes.extend(key_nodes.into_iter().chain(value_nodes));
            }
        }
        found
    }

    /// Whether a node is left out.
    pub(super) fn has(&self, at: usize) -> bool {
        self.nodes.contains_key(&at)
    }

    /// Whether codes are kept for a node.
    pub(super) fn serves(&self, at: usize) -> bool {
        self.attentions.contains_key(&at)
    }
}

/// The main chain, and what dies in it.
struct Made<'a> {
    chain: &'a Chain,
    deaths: &'a [Deaths],
}

impl Made<'_> {
    /// The node that made an operand of the node `at`, if nothing else reads it.
    fn maker(&self, at: usize, operand: In) -> Option<(usize, &Node)> {
        // A value ends with its last reader, or with a reader that takes its slot.
        if !self.deaths[at].dying.contains(&operand.0) && !writes(&self.chain[at], operand.0) {
            return None;
        }
        for (i, node) in self.chain[..at].iter().enumerate().rev() {
            // What other chains do with the slot is not looked at.
            if !node.chains().is_empty() {
                return None;
            }
            if writes(node, operand.0) {
                return Some((i, node));
            }
            if reads(node, operand.0) {
                return None;
            }
        }
        None
    }

    /// What decodes an operand of the attention `at`, and the nodes that do nothing else.
    fn site(&self, at: usize, operand: In) -> Option<(Site, [LeftOut; 3])> {
        let (joining, Node::Reshape(join)) = self.maker(at, operand)? else { return None };
        let (scaling, Node::Multiply(product)) = self.maker(joining, join.x)? else { return None };
        let cast_of = |factor: In| match self.maker(scaling, factor)? {
            (cast, Node::AsType(n)) => Some((cast, n.x)),
            _ => None,
        };
        let ((cast, codes), scales) = match cast_of(product.a) {
            Some(found) => (found, product.b),
            None => (cast_of(product.b)?, product.a),
        };
        Some((Site { cast, scaling, joining }, [(joining, None), (scaling, Some(scales)), (cast, Some(codes))]))
    }
}

fn names(node: &Node, tid: Tid, is_meant: impl Fn(Role) -> bool) -> bool {
    let mut found = false;
    node.walk(&mut |role, slot| found |= slot == Slot::Tensor(tid) && is_meant(role));
    found
}

fn reads(node: &Node, tid: Tid) -> bool {
    names(node, tid, |role| role != Role::Write)
}

fn writes(node: &Node, tid: Tid) -> bool {
    names(node, tid, |role| role != Role::Read)
}

impl Planner<'_> {
    /// Keeps what a node that is left out would have read, or the sizes of the rows that it would have joined.
    pub(super) fn keep_codes(&mut self, at: usize, node: &Node) -> Prepared {
        let operand = self.recorder().and_then(|recorder| recorder.undecoded.nodes.get(&at).copied().flatten());
        let kept = operand.map(|operand| self.get(operand)).transpose()?;
        if let Some(recorder) = self.recorder() {
            recorder.undecoded.kept.extend(kept.map(|x| (at, x)));
            if let Node::Reshape(join) = node {
                let rows = recorder.env.get(join.out.0).map(|spec| spec.dims.to_vec());
                recorder.undecoded.rows.extend(rows.map(|dims| (at, dims)));
            }
            // Its result is read by nobody, and its slot shows nothing any more.
            recorder.clear_results();
        }
        Ok(())
    }

    /// What the keys and values of the attention that is being prepared are decoded from, if it is to read that.
    ///
    /// # Errors
    /// [`Obstacle::Dynamic`] if it is nothing that attention can read.
    pub(crate) fn codes_of_attention(&mut self) -> Prepared<Option<[Codes; 2]>> {
        let Some(recorder) = self.recorder() else { return Ok(None) };
        let Some(&sites) = recorder.undecoded.attentions.get(&recorder.at) else { return Ok(None) };
        let Undecoded { kept, rows, .. } = &mut recorder.undecoded;
        let found = sites.map(|site| {
            let codes = Codes { codes: kept.remove(&site.cast)?, scales: kept.remove(&site.scaling)? };
            rows.remove(&site.joining).filter(|rows| codes.are_rows_of(rows)).map(|_| codes)
        });
        match found {
            [Some(keys), Some(values)] => Ok(Some([keys, values])),
            _ => Err(Obstacle::Dynamic(Dynamic::Operand)),
        }
    }
}

impl Codes {
    /// Whether these are codes in groups of rows `[B, Hk, T, D]`, with a scale for each group.
    fn are_rows_of(&self, rows: &[Expr]) -> bool {
        let (codes, scales) = (&self.codes.array, &self.scales.array);
        let is_size = |n: usize, dim: &Expr| dim.as_int() == Some(n as i64);
        match (&codes.shape[..], &scales.shape[..], rows) {
            (&[b, h, _, g, e], &[.., one], [rows_b, rows_h, _, d]) => {
                let are_rows = is_size(b, rows_b) && is_size(h, rows_h) && is_size(g * e, d);
                are_rows && one == 1 && scales.rank() == 5 && codes.dtype == DType::I8 && scales.dtype.is_float()
            }
            _ => false,
        }
    }
}
