//! Caches of codes that attention reads as they lie: the nodes that would decode keys and values for it alone are left out.

use std::collections::BTreeMap;

use flambeau_ir::{Chain, Graph, In, Node, Role, Slot};
use flambeau_tensor::{DType, Expr};

use super::{memref::MemRef, planner::Planner};
use crate::{
    liveness::{Deaths, Liveness},
    prepare::{Dynamic, Obstacle, Prepared},
};

/// Keys or values that nodes of the main chain decode: where their codes become floats, and where these are scaled.
#[derive(Clone, Copy, Debug)]
struct Site {
    cast: usize,
    scaling: usize,
}

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
        if !self.deaths[at].dying.contains(&operand.0) {
            return None;
        }
        for (i, node) in self.chain[..at].iter().enumerate().rev() {
            let (mut reads, mut writes) = (!node.chains().is_empty(), false);
            node.walk(&mut |role, slot| {
                if slot == Slot::Tensor(operand.0) {
                    reads |= role != Role::Write;
                    writes |= role != Role::Read;
                }
            });
            match (reads, writes) {
                (false, false) => {}
                (false, true) => return Some((i, node)),
                (true, _) => return None,
            }
        }
        None
    }

    /// What decodes an operand of the attention `at`, and the nodes that do nothing else.
    fn site(&self, at: usize, operand: In) -> Option<(Site, [(usize, Option<In>); 3])> {
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
        Some((Site { cast, scaling }, [(joining, None), (scaling, Some(scales)), (cast, Some(codes))]))
    }
}

impl Planner<'_> {
    /// Keeps what a node that is left out would have read.
    pub(super) fn keep_codes(&mut self, at: usize) -> Prepared {
        let Some(Some(operand)) = self.recorder().and_then(|recorder| recorder.undecoded.nodes.get(&at).copied()) else {
            return Ok(());
        };
        let x = self.get(operand)?;
        if let Some(recorder) = self.recorder() {
            recorder.undecoded.kept.insert(at, x);
        }
        Ok(())
    }

    /// What the keys and values of an attention, the node being prepared, are decoded from, if it is to read that.
    ///
    /// # Errors
    /// [`Obstacle::Dynamic`] if it is nothing that attention can read.
    pub(crate) fn codes_of(&mut self, operands: [In; 2]) -> Prepared<Option<[Codes; 2]>> {
        let Some(recorder) = self.recorder() else { return Ok(None) };
        let Some(&sites) = recorder.undecoded.attentions.get(&recorder.at) else { return Ok(None) };
        let dims = operands.map(|operand| recorder.env.get(operand.0).map(|spec| spec.dims.to_vec()));
        let kept = &mut recorder.undecoded.kept;
        let [keys, values] = sites.map(|site| Some(Codes { codes: kept.remove(&site.cast)?, scales: kept.remove(&site.scaling)? }));
        match ((keys, values), dims) {
            ((Some(keys), Some(values)), [Some(k), Some(v)]) if keys.are_rows_of(&k) && values.are_rows_of(&v) => {
                Ok(Some([keys, values]))
            }
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
