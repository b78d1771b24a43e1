//! A delegate program before slot allocation: nodes in single-assignment form over virtual slots.

use std::{collections::HashMap, sync::Arc};

use flambeau_ir::{Node, Slot, Spec, Tid, Vid};
use flambeau_tensor::{Expr, Symbol};

use crate::Constant;

/// Source of a virtual tensor slot's value.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Written by a node.
    Node,
    /// A constant.
    Constant(Arc<Constant>),
    /// The argument with this index among the tensor and integer arguments.
    Input(u32),
    /// The contents of a mutable buffer when a run begins.
    Buffer(u32),
}

/// Spec and origin of a virtual tensor slot.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub spec: Spec,
    pub origin: Origin,
}

/// A node and its source call.
#[derive(Clone, Debug)]
pub struct SsaNode {
    pub node: Node,
    /// Number of the call in the caller's numbering, for reports and errors.
    pub call: u32,
}

/// Smallest and largest value of a symbol; absent bounds are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    pub min: Option<i64>,
    pub max: Option<i64>,
}

/// A program in single-assignment form. Chain 0 is the main chain. Only slots written in both
/// branches of an `If` are assigned twice.
#[derive(Clone, Debug, Default)]
pub struct SsaGraph {
    pub chains: Vec<Vec<SsaNode>>,
    /// Tensor slots, by slot number.
    pub tensors: Vec<TensorInfo>,
    /// Value slots: the integer expression of each, by slot number.
    pub values: Vec<Expr>,
    /// Slots that a run returns, in order.
    pub results: Vec<Slot>,
    /// Mutable buffers: (slot of the contents before a run, slot of the contents after it).
    pub buffers: Vec<(Tid, Tid)>,
    /// Value slots that are arguments: (argument number, slot).
    pub value_inputs: Vec<(u32, Vid)>,
    /// Bounds of the symbols in sizes.
    pub ranges: HashMap<Symbol, Range>,
}

impl SsaGraph {
    /// Element type and sizes of a slot.
    pub fn spec(&self, t: Tid) -> &Spec {
        &self.tensors[t.0 as usize].spec
    }

    /// The constant in a slot.
    pub fn constant(&self, t: Tid) -> Option<&Arc<Constant>> {
        match &self.tensors[t.0 as usize].origin {
            Origin::Constant(c) => Some(c),
            _ => None,
        }
    }

    /// The value of a slot that is a known one-element constant.
    pub fn scalar(&self, t: Tid) -> Option<f64> {
        self.constant(t)?.scalar()
    }

    /// Bounds of an expression from the bounds of its symbols; an open end is the limit of `i64`.
    pub fn bounds(&self, e: &Expr) -> (i64, i64) {
        e.bounds(&|s| {
            let range = self.ranges.get(s).copied().unwrap_or_default();
            (range.min.unwrap_or(i64::MIN), range.max.unwrap_or(i64::MAX))
        })
    }

    /// The smaller of two sizes, without a `min` if the bounds decide.
    pub fn smaller(&self, a: &Expr, b: &Expr) -> Expr {
        let (low, high) = self.bounds(&(a.clone() - b.clone()));
        match () {
            () if high <= 0 => a.clone(),
            () if low >= 0 => b.clone(),
            () => a.minimum(b),
        }
    }

    /// The larger of two sizes, without a `max` if the bounds decide.
    pub fn larger(&self, a: &Expr, b: &Expr) -> Expr {
        let (low, high) = self.bounds(&(a.clone() - b.clone()));
        match () {
            () if low >= 0 => a.clone(),
            () if high <= 0 => b.clone(),
            () => a.maximum(b),
        }
    }

    /// Number of nodes in all chains.
    pub fn node_count(&self) -> usize {
        self.chains.iter().map(Vec::len).sum()
    }
}
