//! Random valid graphs for property tests of engines.
//!
//! A graph is generated node by node. Fields are drawn by type and name from the node table. Nodes
//! with dependent operands (products, convolutions, attention, gathers) come from templates with
//! fresh inputs. A node that inference refuses is dropped, and another is drawn. Every graph is
//! therefore valid, and every new row of the node table takes part.
//!
//! A slot is tainted if its value depends on a node that engines may compute by another formula
//! ([`flambeau_ir::decompose`]). Tainted values may differ between engines by rounding, so only
//! well-conditioned nodes read them.

#![forbid(unsafe_code)]

mod fields;
mod finish;
mod rounding;
mod templates;

use std::collections::HashSet;

use fastrand::Rng;
use flambeau_ir::{
    Checked, Infer, Int, Node, NodeKind, Role, Slot, Spec, Tid, Vid, decompose::is_fused, engine::Value, infer::Env,
};
use flambeau_tensor::{DType, Tensor};

/// A graph and its arguments.
#[derive(Clone, Debug)]
pub struct RandomGraph {
    pub graph: Checked,
    /// The same nodes with the same inputs, and every slot that a node writes as an output.
    pub every: Checked,
    pub inputs: Vec<Value>,
    /// For each output, whether engines may differ by rounding. Other outputs must be equal bit by
    /// bit on engines with the same element functions.
    pub tainted: Vec<bool>,
    rounding: Rounding,
    /// Slots of `every` with the results of `graph`.
    results: Vec<Tid>,
}

/// Whether a node does not amplify rounding differences of its operands.
fn is_well_conditioned(node: &Node) -> bool {
    matches!(
        node.kind(),
        NodeKind::Abs
            | NodeKind::Add
            | NodeKind::AsStrided
            | NodeKind::BroadcastTo
            | NodeKind::Concatenate
            | NodeKind::Contiguous
            | NodeKind::ExpandDims
            | NodeKind::Flip
            | NodeKind::IdCopy
            | NodeKind::Maximum
            | NodeKind::Mean
            | NodeKind::Minimum
            | NodeKind::Neg
            | NodeKind::Noop
            | NodeKind::Pad
            | NodeKind::Repeat
            | NodeKind::Reshape
            | NodeKind::Roll
            | NodeKind::Sigmoid
            | NodeKind::Slice
            | NodeKind::Split
            | NodeKind::Squeeze
            | NodeKind::Stack
            | NodeKind::Subtract
            | NodeKind::SymSize
            | NodeKind::Tanh
            | NodeKind::Tile
            | NodeKind::Transpose
            | NodeKind::Tril
            | NodeKind::Triu
    )
}

/// Whether random graphs contain nodes of this kind. Excluded nodes need more: `UpdateAndAttend` a
/// cache from the session's options, `MetalKernel` a known kernel, and `Scan` a body of nodes.
fn is_generated(kind: NodeKind) -> bool {
    !matches!(kind, NodeKind::UpdateAndAttend | NodeKind::MetalKernel | NodeKind::Scan)
}

/// Nodes that may round differently on the two sides of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Nodes that engines may compute by another formula.
    FusedNodes,
    /// Every node with a float result.
    FloatNodes,
}

impl Rounding {
    /// Whether a node may round differently; `is_float`: it has a float result.
    fn includes(self, node: &Node, is_float: bool) -> bool {
        match self {
            Rounding::FusedNodes => is_fused(node),
            Rounding::FloatNodes => is_float,
        }
    }
}

/// A valid graph of up to `nodes` nodes; the same arguments give the same graph.
pub fn random_graph(seed: u64, nodes: usize, rounding: Rounding) -> RandomGraph {
    let mut rng = Rng::with_seed(seed);
    loop {
        let mut generator = Generator::new(Rng::with_seed(rng.u64(..)), rounding);
        generator.generate(nodes);
        if let Some(sample) = generator.finish() {
            return sample;
        }
    }
}

/// Source of a slot's contents.
#[derive(Clone, Debug)]
enum Source {
    Input(Tensor),
    Node,
}

/// A graph under construction. Slot numbers are provisional: tensors and values are numbered by
/// first use.
struct Generator {
    rng: Rng,
    rounding: Rounding,
    env: Env,
    tensors: Vec<Source>,
    /// Arguments of value inputs, by slot; `None` for values that nodes write.
    values: Vec<Option<i32>>,
    chains: Vec<Vec<Node>>,
    tainted: HashSet<Tid>,
    /// Slots that nodes read.
    read: HashSet<Tid>,
}

impl Generator {
    fn new(rng: Rng, rounding: Rounding) -> Generator {
        let mut generator = Generator {
            rng,
            rounding,
            env: Env::new(),
            tensors: Vec::new(),
            values: Vec::new(),
            chains: vec![Vec::new()],
            tainted: HashSet::new(),
            read: HashSet::new(),
        };
        for _ in 0..generator.rng.usize(1..4) {
            let (dtype, shape) = (generator.dtype(), generator.shape());
            generator.input(dtype, &shape);
        }
        generator
    }

    fn generate(&mut self, nodes: usize) {
        for _ in 0..self.rng.usize(1..=nodes.max(1)) {
            // If a kind of node does not fit, another one is drawn soon.
            while !(0..30).any(|_| self.try_node()) {}
        }
    }

    fn try_node(&mut self) -> bool {
        let info = &Node::ALL[self.rng.usize(..Node::ALL.len())];
        if !is_generated(info.kind) {
            return false;
        }
        let before = (self.tensors.len(), self.values.len(), self.chains.len());
        let drawn = templates::draw(self, info.kind).unwrap_or_else(|| Some(fields::draw(self, info.kind)));
        let added = drawn.is_some_and(|node| self.add(node));
        if !added {
            self.tensors.truncate(before.0);
            self.values.truncate(before.1);
            self.chains.truncate(before.2);
        }
        added
    }

    /// Appends a node if it is valid here.
    fn add(&mut self, node: Node) -> bool {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        node.walk(&mut |role, slot| {
            if let Slot::Tensor(t) = slot {
                if role != Role::Write {
                    reads.push(t)
                }
                if role != Role::Read {
                    writes.push(t)
                }
            }
        });
        let known = reads.iter().all(|&t| self.env.get(t).is_some());
        let tainted = reads.iter().any(|t| self.tainted.contains(t));
        if !known || tainted && !is_well_conditioned(&node) {
            return false;
        }
        if !matches!(node, Node::If(_)) && node.infer(&mut self.env).is_err() || !writes.iter().all(|&t| self.is_small(t)) {
            return false;
        }
        let is_float = |t: &Tid| self.env.get(*t).is_some_and(|spec| spec.dtype.is_float());
        if tainted || self.rounding.includes(&node, writes.iter().any(is_float)) {
            self.tainted.extend(writes);
        }
        self.read.extend(reads);
        self.chains[0].push(node);
        true
    }

    fn is_small(&self, t: Tid) -> bool {
        let shape = self.env.get(t).and_then(Spec::shape);
        shape.is_some_and(|shape| shape.iter().product::<usize>() <= 4096)
    }

    fn dtype(&mut self) -> DType {
        use DType::{BF16, Bool, F16, F32, I32, I64, U8, U16, U32};
        [F32, F32, F32, F32, F16, BF16, I32, I64, Bool, U8, U16, U32][self.rng.usize(..12)]
    }

    fn float(&mut self) -> DType {
        [DType::F32, DType::F32, DType::F16, DType::BF16][self.rng.usize(..4)]
    }

    /// A shape of up to four small sizes, rarely with a zero.
    fn shape(&mut self) -> Vec<usize> {
        (0..self.rng.usize(..5)).map(|_| if self.rng.usize(..40) == 0 { 0 } else { self.rng.usize(1..6) }).collect()
    }

    /// A fresh input with random elements.
    fn input(&mut self, dtype: DType, shape: &[usize]) -> Tid {
        let numel = shape.iter().product();
        let tensor = elements(&mut self.rng, dtype, numel).reshape(shape).expect("as many elements");
        self.given(tensor)
    }

    /// A fresh input of random indices below `size`.
    fn indices(&mut self, dtype: DType, shape: &[usize], size: usize) -> Tid {
        let values: Vec<i64> = (0..shape.iter().product()).map(|_| self.rng.i64(0..size.max(1) as i64)).collect();
        let tensor = Tensor::from_slice(&values, shape).expect("as many elements");
        self.given(flambeau_tensor::cast(&tensor, dtype).expect("small integers"))
    }

    /// A fresh input with these elements.
    fn given(&mut self, tensor: Tensor) -> Tid {
        let slot = self.fresh(Source::Input(tensor.clone()));
        self.env.replace(slot, Some(Spec::fixed(tensor.dtype(), tensor.shape())));
        slot
    }

    fn fresh(&mut self, source: Source) -> Tid {
        let slot = Tid(self.tensors.len() as u32);
        self.env.replace(slot, None);
        self.tensors.push(source);
        slot
    }

    /// A slot for a result.
    fn out(&mut self) -> Tid {
        self.fresh(Source::Node)
    }

    fn fresh_value(&mut self, given: Option<i32>) -> Vid {
        let slot = Vid(self.values.len() as u32);
        self.env.replace_value(slot, given.map(|v| flambeau_tensor::Expr::Int(v.into())));
        self.values.push(given);
        slot
    }

    /// A random initialized slot; recent slots are more likely.
    fn any(&mut self) -> Tid {
        let count = self.tensors.len();
        for _ in 0..20 {
            let at = self.rng.usize(..count).max(self.rng.usize(..count));
            if self.env.get(Tid(at as u32)).is_some() {
                return Tid(at as u32);
            }
        }
        Tid(0)
    }

    /// A slot with a float type.
    fn any_float(&mut self) -> Tid {
        for _ in 0..10 {
            let slot = self.any();
            if self.env.get(slot).is_some_and(|spec| spec.dtype.is_float()) {
                return slot;
            }
        }
        let (dtype, shape) = (self.float(), self.shape());
        self.input(dtype, &shape)
    }

    fn shape_of(&self, slot: Tid) -> Vec<usize> {
        self.env.get(slot).and_then(Spec::shape).map(|s| s.to_vec()).unwrap_or_default()
    }

    /// A literal, or a value input with this value. Zero is a literal: whether a softmax has
    /// elements is known when it is decomposed.
    fn int(&mut self, value: i64) -> Int {
        if self.rng.usize(..5) == 0 && value != 0 { Int::Vid(self.fresh_value(Some(value as i32))) } else { Int::Lit(value) }
    }
}

/// Random elements of a type: floats of both signs around 1, or small integers.
fn elements(rng: &mut Rng, dtype: DType, count: usize) -> Tensor {
    let signed = if matches!(dtype, DType::U8 | DType::U16 | DType::U32 | DType::Bool) { 0.0 } else { -4.0 };
    let values: Vec<f32> = (0..count)
        .map(|_| if dtype.is_float() { rng.f32() * 4.0 - 2.0 } else { (signed + rng.f32() * (8.0 - signed)).floor() })
        .collect();
    let tensor = Tensor::from_slice(&values, &[count]).expect("as many elements");
    flambeau_tensor::cast(&tensor, dtype).expect("small numbers")
}

/// Names of the nodes that random graphs consist of.
pub fn generated_nodes() -> impl Iterator<Item = &'static str> {
    Node::ALL.iter().filter(|info| is_generated(info.kind)).map(|info| info.name)
}
