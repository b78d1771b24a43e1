//! A delegate program before slots: nodes in single-assignment form over virtual slot numbers.

use std::{collections::HashMap, sync::Arc};

use flambeau_ir::{Node, Slot, Spec, Tid, Vid};
use flambeau_tensor::{Expr, Symbol};

use crate::Constant;

/// Where a virtual tensor slot gets its value.
#[derive(Clone, Debug)]
pub enum Origin {
    /// Written by a node.
    Node,
    /// A constant.
    Constant(Arc<Constant>),
    /// The argument of that number among the tensor and integer arguments.
    Input(u32),
    /// The contents that a mutable buffer has when a run begins.
    Buffer(u32),
}

/// What is known of a virtual tensor slot.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    pub spec: Spec,
    pub origin: Origin,
}

/// A node and the call that it comes from.
#[derive(Clone, Debug)]
pub struct SsaNode {
    pub node: Node,
    /// Number of the call, as the caller counts them; reports and errors lead back through it.
    pub call: u32,
}

/// Smallest and largest value of a symbol; absent bounds are open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    pub min: Option<i64>,
    pub max: Option<i64>,
}

/// A program in single-assignment form. Chain 0 is the main chain; slots written in both branches of an `If` are the exception
/// to single assignment.
#[derive(Clone, Debug, Default)]
pub struct SsaGraph {
    pub chains: Vec<Vec<SsaNode>>,
    /// By virtual tensor slot.
    pub tensors: Vec<TensorInfo>,
    /// By virtual value slot: the integer that it holds.
    pub values: Vec<Expr>,
    /// Slots that a run returns, in order.
    pub results: Vec<Slot>,
    /// Mutable buffers: the slot that holds the contents before a run, and the one that holds them after it.
    pub buffers: Vec<(Tid, Tid)>,
    /// Value slots that are arguments: (argument number, slot).
    pub value_inputs: Vec<(u32, Vid)>,
    /// Bounds of the symbols that sizes are made of.
    pub ranges: HashMap<Symbol, Range>,
}

impl SsaGraph {
    /// Element type and sizes of a slot.
    pub fn spec(&self, t: Tid) -> &Spec {
        &self.tensors[t.0 as usize].spec
    }

    /// The constant that a slot holds.
    pub fn constant(&self, t: Tid) -> Option<&Arc<Constant>> {
        match &self.tensors[t.0 as usize].origin {
            Origin::Constant(c) => Some(c),
            _ => None,
        }
    }

    /// The value of a slot that is a known constant with one element.
    pub fn scalar(&self, t: Tid) -> Option<f64> {
        self.constant(t)?.scalar()
    }

    /// Bounds of an expression, from those of its symbols; an open end is the end of `i64`.
    pub fn bounds(&self, e: &Expr) -> (i64, i64) {
        e.bounds(&|s| {
            let range = self.ranges.get(s).copied().unwrap_or_default();
            (range.min.unwrap_or(i64::MIN), range.max.unwrap_or(i64::MAX))
        })
    }

    /// The smaller of two sizes, without a `min` where the bounds decide.
    pub fn smaller(&self, a: &Expr, b: &Expr) -> Expr {
        let (low, high) = self.bounds(&(a.clone() - b.clone()));
        match () {
            () if high <= 0 => a.clone(),
            () if low >= 0 => b.clone(),
            () => a.minimum(b),
        }
    }

    /// The larger of two sizes, without a `max` where the bounds decide.
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
