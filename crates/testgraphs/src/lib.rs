//! Random valid graphs for property tests of engines.
//!
//! A graph grows node by node. Fields are drawn by type and name from the node table; nodes whose operands must fit each other
//! (products, convolutions, attention, gathers) bring fresh inputs along. Whatever inference refuses is dropped and drawn again,
//! so every graph is valid and every new row of the table takes part.
//!
//! Slots carry a taint: whether a node that engines may compute by another formula ([`flambeau_ir::decompose`]) contributed.
//! Tainted values differ by rounding from engine to engine, so only nodes that keep small differences small read them.

#![forbid(unsafe_code)]

mod fields;
mod finish;
mod recipes;

use std::collections::HashSet;

use fastrand::Rng;
use flambeau_ir::{Checked, Infer, Int, Node, Role, Slot, Spec, Tid, Vid, engine::Value, infer::Env};
use flambeau_tensor::{DType, Tensor};

/// A graph with arguments for it.
#[derive(Clone, Debug)]
pub struct Sample {
    pub graph: Checked,
    pub inputs: Vec<Value>,
    /// For each output, whether engines may differ by rounding; others must be equal bit by bit on engines that compute elements
    /// alike.
    pub tainted: Vec<bool>,
}

/// Nodes that keep differences by rounding small.
const GENTLE: &[&str] = &[
    "Abs",
    "Add",
    "AsStrided",
    "BroadcastTo",
    "Concatenate",
    "Contiguous",
    "Expand",
    "ExpandDims",
    "Flip",
    "IdCopy",
    "Maximum",
    "Mean",
    "Minimum",
    "Neg",
    "Noop",
    "Pad",
    "Repeat",
    "Reshape",
    "Roll",
    "Sigmoid",
    "Slice",
    "Split",
    "Squeeze",
    "Stack",
    "Subtract",
    "SymSize",
    "Tanh",
    "Tile",
    "Transpose",
    "Tril",
    "Triu",
];

/// Nodes that engines may compute by another formula.
const FUSED: &[&str] =
    &["Silu", "Gelu", "Softmax", "LogSumExp", "RMSNorm", "LayerNorm", "Rope", "Sdpa", "QuantizedMatmul", "GatherQmm"];

/// Nodes that are never drawn: one needs a cache that the session is told of, one a kernel known by name, one a body of nodes.
const LEFT_OUT: &[&str] = &["UpdateAndAttend", "MetalKernel", "Scan"];

/// What may round differently between the two sides of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Nodes that engines may compute by another formula.
    OfFormulas,
    /// Every node with a float result.
    OfEngines,
}

/// A valid graph of up to `nodes` nodes for a seed; the same for the same arguments.
pub fn sample(seed: u64, nodes: usize, rounding: Rounding) -> Sample {
    let mut rng = Rng::with_seed(seed);
    loop {
        let mut growing = Growing::new(Rng::with_seed(rng.u64(..)), rounding);
        growing.grow(nodes);
        if let Some(sample) = growing.finish() {
            return sample;
        }
    }
}

/// Where a slot's contents come from.
#[derive(Clone, Debug)]
enum Source {
    Input(Tensor),
    Node,
}

/// A graph that is being drawn. Slot numbers are provisional: tensors and values in the order of their first use.
struct Growing {
    rng: Rng,
    rounding: Rounding,
    env: Env,
    tensors: Vec<Source>,
    /// Arguments for value inputs, by slot; `None` for values that nodes write.
    values: Vec<Option<i32>>,
    chains: Vec<Vec<Node>>,
    tainted: HashSet<Tid>,
    /// Slots that nodes read.
    read: HashSet<Tid>,
}

impl Growing {
    fn new(rng: Rng, rounding: Rounding) -> Growing {
        let mut growing = Growing {
            rng,
            rounding,
            env: Env::new(),
            tensors: Vec::new(),
            values: Vec::new(),
            chains: vec![Vec::new()],
            tainted: HashSet::new(),
            read: HashSet::new(),
        };
        for _ in 0..growing.rng.usize(1..4) {
            let (dtype, shape) = (growing.dtype(), growing.shape());
            growing.input(dtype, &shape);
        }
        growing
    }

    fn grow(&mut self, nodes: usize) {
        for _ in 0..self.rng.usize(1..=nodes.max(1)) {
            // Few draws of an unlucky kind are a waste; another kind is drawn instead.
            while !(0..30).any(|_| self.try_node()) {}
        }
    }

    fn try_node(&mut self) -> bool {
        let info = &Node::ALL[self.rng.usize(..Node::ALL.len())];
        if LEFT_OUT.contains(&info.name) {
            return false;
        }
        let before = (self.tensors.len(), self.values.len(), self.chains.len());
        let drawn = recipes::draw(self, info.name).unwrap_or_else(|| Some(fields::draw(self, info.tag)));
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
        if !known || tainted && !GENTLE.contains(&node.name()) {
            return false;
        }
        if !matches!(node, Node::If(_)) && node.infer(&mut self.env).is_err() || !writes.iter().all(|&t| self.is_small(t)) {
            return false;
        }
        let is_float = |t: &Tid| self.env.get(*t).is_some_and(|spec| spec.dtype.is_float());
        let rounds = match self.rounding {
            Rounding::OfFormulas => FUSED.contains(&node.name()),
            Rounding::OfEngines => writes.iter().any(is_float),
        };
        if tainted || rounds {
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
        use DType::{BF16, Bool, F16, F32, I32, I64, U8, U32};
        [F32, F32, F32, F32, F16, BF16, I32, I64, Bool, U8, U32][self.rng.usize(..11)]
    }

    fn float(&mut self) -> DType {
        [DType::F32, DType::F32, DType::F16, DType::BF16][self.rng.usize(..4)]
    }

    /// Up to four small sizes; now and then a zero.
    fn shape(&mut self) -> Vec<usize> {
        (0..self.rng.usize(..5)).map(|_| if self.rng.usize(..40) == 0 { 0 } else { self.rng.usize(1..6) }).collect()
    }

    /// A fresh input with random elements.
    fn input(&mut self, dtype: DType, shape: &[usize]) -> Tid {
        let numel = shape.iter().product();
        let tensor = elements(&mut self.rng, dtype, numel).reshape(shape).expect("as many elements");
        self.given(tensor)
    }

    /// A fresh input of indices below `size`.
    fn indices(&mut self, dtype: DType, shape: &[usize], size: usize) -> Tid {
        let values: Vec<i64> = (0..shape.iter().product()).map(|_| self.rng.i64(0..size.max(1) as i64)).collect();
        let tensor = Tensor::from_slice(&values, shape).expect("as many elements");
        self.given(flambeau_tensor::cast(&tensor, dtype).expect("small integers"))
    }

    /// A fresh input.
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

    /// Any slot that holds something, recent ones more often.
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

    /// A slot of a floating type.
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

    /// A literal, or a value input that holds it.
    fn int(&mut self, value: i64) -> Int {
        if self.rng.usize(..5) == 0 { Int::Vid(self.fresh_value(Some(value as i32))) } else { Int::Lit(value) }
    }
}

/// Elements of a type: floats of both signs around 1, small integers.
fn elements(rng: &mut Rng, dtype: DType, count: usize) -> Tensor {
    let signed = if matches!(dtype, DType::U8 | DType::U32 | DType::Bool) { 0.0 } else { -4.0 };
    let values: Vec<f32> = (0..count)
        .map(|_| if dtype.is_float() { rng.f32() * 4.0 - 2.0 } else { (signed + rng.f32() * (8.0 - signed)).floor() })
        .collect();
    let tensor = Tensor::from_slice(&values, &[count]).expect("as many elements");
    flambeau_tensor::cast(&tensor, dtype).expect("small numbers")
}

/// Names of the kinds of node that samples consist of.
pub fn kinds_drawn() -> impl Iterator<Item = &'static str> {
    Node::ALL.iter().map(|info| info.name).filter(|name| !LEFT_OUT.contains(name))
}
