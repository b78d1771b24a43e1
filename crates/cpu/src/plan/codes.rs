//! Attention directly over caches of codes. Nodes that only decode keys and values for it are left
//! out.

use std::collections::BTreeMap;

use flambeau_ir::{Chain, Graph, In, Node, Role, Slot, Tid};
use flambeau_tensor::{DType, Expr};

use super::{memref::MemRef, planner::Planner};
use crate::{
    liveness::{Deaths, Liveness},
    obstacle::{Dynamic, Obstacle, Prepared},
};

/// The three nodes of the main chain that decode keys or values. The first casts codes to floats,
/// the second scales them, the third joins groups to rows.
#[derive(Clone, Copy, Debug)]
struct Site {
    cast: usize,
    scaling: usize,
    joining: usize,
}

/// A left-out node, by its index in the main chain, and its kept operand.
type SkippedNode = (usize, Option<In>);

/// The encoded form of keys or values.
#[derive(Clone, Debug)]
pub(crate) struct Codes {
    /// i8 [B, Hk, T, G, D/G]
    pub(crate) codes: MemRef,
    /// [B, Hk, T, G, 1]
    pub(crate) scales: MemRef,
}

/// Left-out nodes, by their index in the main chain, and the operands kept for attention.
#[derive(Debug, Default)]
pub(super) struct Undecoded {
    /// Left-out nodes with their kept operand.
    nodes: BTreeMap<usize, Option<In>>,
    /// Keys and values of attentions.
    attentions: BTreeMap<usize, [Site; 2]>,
    pub(super) kept: BTreeMap<usize, MemRef>,
    /// Sizes of the rows that nodes would have joined; an attention may put its result into their
    /// slot.
    rows: BTreeMap<usize, Vec<Expr>>,
}

impl Undecoded {
    /// Finds every attention of the main chain that is the only reader of its decoded keys and
    /// values. Decoding is a cast to floats, a product with scales, and a join of groups to rows.
    pub(super) fn of(graph: &Graph, liveness: &Liveness) -> Undecoded {
        let mut found = Undecoded::default();
        let main = graph.main as usize;
        let chain = MainChain { chain: &graph.chains[main], deaths: &liveness.chains[main] };
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

    /// Whether the attention at this node reads codes directly.
    pub(super) fn is_read_by(&self, at: usize) -> bool {
        self.attentions.contains_key(&at)
    }
}

/// The main chain, and its dying slots.
struct MainChain<'a> {
    chain: &'a Chain,
    deaths: &'a [Deaths],
}

impl MainChain<'_> {
    /// The node that made an operand of the node `at`, if nothing else reads it.
    fn maker(&self, at: usize, operand: In) -> Option<(usize, &Node)> {
        // A value ends with its last reader, or with a reader that takes its slot.
        if !self.deaths[at].dying.contains(&operand.0) && !writes(&self.chain[at], operand.0) {
            return None;
        }
        for (i, node) in self.chain[..at].iter().enumerate().rev() {
            // Uses of the slot by other chains are not analysed.
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

    /// The decoding of an operand of the attention `at`, and its three nodes.
    fn site(&self, at: usize, operand: In) -> Option<(Site, [SkippedNode; 3])> {
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
    /// Keeps the operand of a left-out node, or the sizes of the rows it would have joined.
    pub(super) fn keep_codes(&mut self, at: usize, node: &Node) -> Prepared {
        let operand = self.recorder().and_then(|recorder| recorder.undecoded.nodes.get(&at).copied().flatten());
        let kept = operand.map(|operand| self.get(operand)).transpose()?;
        if let Some(recorder) = self.recorder() {
            recorder.undecoded.kept.extend(kept.map(|x| (at, x)));
            if let Node::Reshape(join) = node {
                let rows = recorder.env.get(join.out.0).map(|spec| spec.dims.to_vec());
                recorder.undecoded.rows.extend(rows.map(|dims| (at, dims)));
            }
            // Its result has no reader, so its slot becomes empty.
            recorder.clear_results();
        }
        Ok(())
    }

    /// The codes of the keys and values of the current attention, if it reads codes directly.
    ///
    /// # Errors
    /// [`Obstacle::Dynamic`] if attention cannot read the kept operands.
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
