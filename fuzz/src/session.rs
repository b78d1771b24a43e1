//! Selects cheap graphs and generates their inputs.

use std::collections::BTreeMap;

use fastrand::Rng;
use flambeau_ir::{
    Checked, Cost, Graph, Infer, MetaDim, Node, Slot, TensorMeta, Tid, Vid,
    engine::{Constants, Value},
    infer::{Env, run::Contents},
};
use flambeau_tensor::{AlignedBytes, Bytes, DType, Expr, Tensor, cast, numel};

/// Maximum number of nodes of a run, and maximum number of elements and products of all nodes.
/// Larger graphs only exercise memory and time limits.
const MOST_NODES: u64 = 1000;
const MOST_WORK: u64 = 1 << 24;
/// Maximum number of elements of an argument and of bytes of a constant.
const MOST_ELEMENTS: usize = 1 << 20;

/// Zero-filled constants by name.
pub struct Zeros(BTreeMap<String, usize>);

impl Zeros {
    /// The constants of a graph.
    pub fn of(graph: &Graph) -> Zeros {
        let bytes = |(name, slot): &(String, Slot)| {
            let Slot::Tensor(Tid(slot)) = slot else { return None };
            let meta = graph.meta.get(*slot as usize)?;
            Some((name.clone(), numel(&meta.static_shape()?)?.checked_mul(meta.dtype.size())?))
        };
        Zeros(graph.names.iter().filter_map(bytes).collect())
    }
}

impl Constants for Zeros {
    fn get(&self, key: &str) -> Option<Bytes> {
        self.0.get(key).filter(|&&len| len <= MOST_ELEMENTS).map(|&len| AlignedBytes::zeroed(len).into_bytes())
    }
}

/// Replaces the dynamic sizes of a graph's inputs by static ones.
pub fn with_static_inputs(mut graph: Graph, rng: &mut Rng) -> Graph {
    for dim in graph.meta.iter_mut().flat_map(|meta| &mut meta.shape) {
        if let MetaDim::Dynamic { min, max } = *dim {
            *dim = MetaDim::Static(min.saturating_add(rng.u32(..5)).min(max.unwrap_or(u32::MAX)));
        }
    }
    graph
}

/// Small random arguments for a graph with static input sizes; `None` if one is too large.
pub fn arguments(graph: &Graph, rng: &mut Rng) -> Option<Vec<Value>> {
    let argument = |slot: &Slot| match slot {
        Slot::Value(_) => Some(Value::Int(rng.i32(-1..5))),
        Slot::Tensor(Tid(slot)) => tensor(graph.meta.get(*slot as usize)?, rng).map(Value::Tensor),
    };
    graph.inputs.iter().map(argument).collect()
}

fn tensor(meta: &TensorMeta, rng: &mut Rng) -> Option<Tensor> {
    let shape = meta.static_shape()?;
    let numel = numel(&shape).filter(|&n| n <= MOST_ELEMENTS)?;
    let low = if meta.dtype.is_float() { -2.0 } else { 0.0 };
    let values: Vec<f32> = (0..numel).map(|_| low + 4.0 * rng.f32()).collect();
    cast(&Tensor::from_slice(&values, &shape).ok()?, meta.dtype).ok()
}

/// Whether the checker can bound a run's time and memory.
pub fn is_cheap(graph: &Checked) -> bool {
    let (mut nodes, mut steps, mut work) = (0, 1u64, 0u64);
    graph.visit(&mut |node, before| {
        nodes += 1;
        if nodes > MOST_NODES {
            return;
        }
        let largest = Largest::of(node, before);
        work = work.saturating_add(largest.elements()).saturating_add(cost(node).flops(&largest));
        if let Node::Scan(_) = node {
            // A scan takes its steps even if the other axes are empty.
            steps = steps.saturating_mul(largest.elements().max(largest.longest()).max(1));
        }
    });
    nodes <= MOST_NODES && work.max(1).saturating_mul(steps) <= MOST_WORK
}

/// A node's cost. A transposed convolution counts as a convolution over its input with zeros
/// inserted.
fn cost(node: &Node) -> Cost {
    match node {
        Node::ConvTranspose1D(n) => Cost::Convolution(n.w, n.out),
        Node::ConvTranspose2D(n) => Cost::Convolution(n.w, n.out),
        Node::ConvTranspose3D(n) => Cost::Convolution(n.w, n.out),
        other => other.cost(),
    }
}

/// The largest possible shapes of a node's tensors.
struct Largest(BTreeMap<Tid, (DType, Vec<usize>)>);

impl Largest {
    fn of(node: &Node, before: &Env) -> Largest {
        let mut env = before.clone();
        // Results of branches and bodies count when their own nodes are visited.
        let _ = node.infer(&mut env);
        let most = |size: &Expr| size.bounds(&|symbol| env.range(symbol)).1.max(0) as usize;
        let shape = |tid| env.get(tid).map(|spec| (tid, (spec.dtype, spec.dims.iter().map(most).collect())));
        Largest(node.tensors(|_| true).into_iter().filter_map(shape).collect())
    }

    /// Size of the longest axis.
    fn longest(&self) -> u64 {
        self.0.values().flat_map(|(_, shape)| shape).map(|&size| size as u64).max().unwrap_or(0)
    }

    fn elements(&self) -> u64 {
        let numel = |(_, shape): &(DType, Vec<usize>)| shape.iter().fold(1u64, |n, &size| n.saturating_mul(size as u64));
        self.0.values().map(numel).fold(0, u64::saturating_add)
    }
}

impl Contents for Largest {
    fn tensor(&self, tid: Tid) -> Option<(DType, &[usize])> {
        self.0.get(&tid).map(|(dtype, shape)| (*dtype, &shape[..]))
    }

    fn integer(&self, _: Vid) -> Option<i32> {
        None
    }
}
