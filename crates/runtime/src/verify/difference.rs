//! Differences between results.

use std::{fmt, ops::RangeInclusive};

use flambeau_ir::{Checked, Graph, Node, Slot, SlotClass, engine::Value};
use flambeau_tensor::{DType, Distance, Tensor, Tolerance, cast, compare, distance};

/// A node with an unexpected result, or several nodes if only their common run has one.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Number of the graph, in the order in which an engine loads them. A method's delegates come
    /// first.
    pub graph: usize,
    /// Positions of the nodes in the main chain. More than one if the nodes differ only together.
    pub nodes: RangeInclusive<usize>,
    /// The last node in text form.
    pub node: String,
    /// Names of the constants that the last node reads.
    pub weights: Vec<String>,
    /// Slot of the result. `None` if the nodes failed.
    pub slot: Option<Slot>,
    /// Type and shape of the expected result.
    pub expected: String,
    /// The mismatch or the error in words.
    pub what: String,
    /// Distance of the results, if they have the same type and shape.
    pub distance: Option<Distance>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = (self.nodes.start(), self.nodes.end());
        match first == last {
            true => write!(f, "delegate {}, node {last}: {}", self.graph, self.node)?,
            false => write!(f, "delegate {}, nodes {first} to {last} together, the last is {}", self.graph, self.node)?,
        }
        if !self.weights.is_empty() {
            write!(f, "\n  reads {}", self.weights.join(", "))?;
        }
        match self.slot {
            Some(slot) => write!(f, "\n  {slot}, {}: {}", self.expected, self.what)?,
            None => write!(f, "\n  {}", self.what)?,
        }
        let Some(d) = self.distance else { return Ok(()) };
        write!(f, "\n  largest error {:e}, at index {}; {} ULPs", d.absolute, d.index, d.ulps)
    }
}

impl Difference {
    /// A difference at a node; the result's fields are empty.
    pub(super) fn at(graph_number: usize, graph: &Checked, nodes: RangeInclusive<usize>) -> Difference {
        let node = graph.chains.get(graph.main as usize).and_then(|chain| chain.get(*nodes.end()));
        Difference {
            graph: graph_number,
            nodes,
            node: node.map(Node::to_string).unwrap_or_default(),
            weights: node.map(|node| weights_of(graph, node)).unwrap_or_default(),
            slot: None,
            expected: String::new(),
            what: String::new(),
            distance: None,
        }
    }

    pub(super) fn failed(self, error: &dyn fmt::Display) -> Difference {
        Difference { what: error.to_string(), ..self }
    }

    /// The difference of a result, if it is beyond the tolerance.
    pub(super) fn of_result(&self, slot: Slot, actual: &Value, expected: &Value, scale: Scale) -> Option<Difference> {
        let (what, distance) = match (actual, expected) {
            (Value::Tensor(actual), Value::Tensor(expected)) => {
                let mismatch = compare(actual, expected, scale.tolerance(expected)).err()?;
                (mismatch.to_string(), distance(actual, expected))
            }
            (Value::Int(actual), Value::Int(expected)) if actual == expected => return None,
            (actual, expected) => (format!("{} instead of {}", described(actual), described(expected)), None),
        };
        Some(Difference { slot: Some(slot), expected: described(expected), what, distance, ..self.clone() })
    }
}

/// Names of the constants that a node reads.
pub(super) fn weights_of(graph: &Graph, node: &Node) -> Vec<String> {
    let mut names = Vec::new();
    node.walk(&mut |_, slot| {
        if let Slot::Tensor(tid) = slot
            && graph.slots.class(tid) == Some(SlotClass::Constant)
            && let Some(name) = graph.name_of(slot)
            && !names.iter().any(|known| known == name)
        {
            names.push(name.to_owned());
        }
    });
    names
}

pub(super) fn described(value: &Value) -> String {
    match value {
        Value::Tensor(t) => format!("{}{:?}", t.dtype(), t.shape()),
        Value::Int(value) => format!("the integer {value}"),
    }
}

/// The allowed difference of a comparison.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    /// `None` allows the rounding of each type.
    pub(super) given: Option<Tolerance>,
    /// Number of nodes whose errors add up.
    pub(super) nodes: usize,
}

/// Number of consecutive nodes with the allowed rounding of one node.
const ONE_ROUNDING: f64 = 8.0;

impl Scale {
    pub(super) fn tolerance(self, expected: &Tensor) -> Tolerance {
        let factor = ((self.nodes as f64).sqrt() / ONE_ROUNDING).max(1.0);
        let scaled = |t: Tolerance| Tolerance { relative: t.relative * factor, absolute: t.absolute * factor };
        self.given.unwrap_or_else(|| scaled(rounding(expected)))
    }
}

/// Rounding of the element type, relative to each element and to the largest finite one. Integers
/// must be equal.
pub fn rounding(expected: &Tensor) -> Tolerance {
    let unit = match expected.dtype() {
        DType::F64 | DType::F32 => 1e-4,
        DType::F16 => 5e-3,
        DType::BF16 => 3e-2,
        _ => return Tolerance { relative: 0.0, absolute: 0.0 },
    };
    let wide = cast(expected, DType::F64).ok();
    let values = wide.as_ref().and_then(|t| t.as_slice::<f64>().ok()).unwrap_or_default();
    let largest = values.iter().filter(|v| v.is_finite()).fold(0.0, |most: f64, v| most.max(v.abs()));
    Tolerance { relative: unit, absolute: unit * largest.max(f64::MIN_POSITIVE) }
}
