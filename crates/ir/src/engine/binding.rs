//! Bindings of a graph's slots, with the same checks for all engines.

use flambeau_tensor::Tensor;

use super::{Constants, EngineError, Value};
use crate::{
    Graph, Node, Slot,
    field::{Tid, Vid},
};

/// Refuses a graph with nodes that an engine lacks. The error names each kind once.
///
/// # Errors
/// [`EngineError::Unsupported`].
pub fn check_supported(engine: &'static str, graph: &Graph, has: impl Fn(&Node) -> bool) -> Result<(), EngineError> {
    let mut nodes: Vec<String> = Vec::new();
    for node in graph.chains.iter().flatten().filter(|node| !has(node)) {
        let name = match node {
            Node::MetalKernel(kernel) => format!("MetalKernel `{}`", kernel.name),
            node => node.name().to_owned(),
        };
        if !nodes.contains(&name) {
            nodes.push(name);
        }
    }
    if nodes.is_empty() { Ok(()) } else { Err(EngineError::Unsupported { engine, nodes }) }
}

/// The constants by slot number.
///
/// # Errors
/// [`EngineError::Constant`] if a constant has no name, no data, or data of a wrong length.
pub fn constants_of(graph: &Graph, constants: &dyn Constants) -> Result<Vec<Tensor>, EngineError> {
    let mut names: Vec<Option<&str>> = vec![None; graph.slots.constants as usize];
    for (name, slot) in &graph.names {
        if let Slot::Tensor(tid) = slot
            && let Some(entry) = names.get_mut(tid.0 as usize)
        {
            *entry = Some(name);
        }
    }
    let bind = |(name, tid): (Option<&str>, Tid)| {
        let key = name.map_or_else(|| tid.to_string(), str::to_owned);
        let fail = |what: String| EngineError::Constant { key: key.clone(), what };
        let name = name.ok_or_else(|| fail("the program gives it no name".into()))?;
        let meta = graph.meta.get(tid.0 as usize).ok_or_else(|| fail("it has no metadata".into()))?;
        let shape = meta.static_shape().ok_or_else(|| fail("its shape is not static".into()))?;
        let bytes = constants.get(name).ok_or_else(|| fail("its data is missing".into()))?;
        Tensor::new(meta.dtype, &shape, bytes).map_err(|e| fail(e.to_string()))
    };
    names.into_iter().zip((0..).map(Tid)).map(bind).collect()
}

/// An argument and its slot.
#[derive(Clone, Copy, Debug)]
pub enum BoundInput<'a> {
    Tensor(Tid, &'a Tensor),
    Int(Vid, i32),
}

/// The arguments of a run in the order of the graph's input map.
///
/// # Errors
/// [`EngineError::Arguments`] if the number of arguments is wrong. Each item, if its kind or
/// element type differs from its slot.
pub fn bind_inputs<'a>(
    graph: &'a Graph,
    inputs: &'a [Value],
) -> Result<impl Iterator<Item = Result<BoundInput<'a>, EngineError>>, EngineError> {
    if inputs.len() != graph.inputs.len() {
        let (expected, found) = (graph.inputs.len(), inputs.len());
        return Err(EngineError::Arguments(format!("expected {expected} inputs, found {found}")));
    }
    Ok(graph.inputs.iter().zip(inputs).enumerate().map(|(i, pair)| {
        let refuse = |expected: &str| Err(EngineError::Arguments(format!("input {i}: expected {expected}")));
        match pair {
            (&Slot::Tensor(tid), Value::Tensor(tensor)) => match graph.meta.get(tid.0 as usize) {
                Some(meta) if meta.dtype != tensor.dtype() => {
                    refuse(&format!("a tensor of {}, found {}", meta.dtype, tensor.dtype()))
                }
                _ => Ok(BoundInput::Tensor(tid, tensor)),
            },
            (&Slot::Value(vid), &Value::Int(value)) => Ok(BoundInput::Int(vid, value)),
            (Slot::Tensor(_), Value::Int(_)) => refuse("a tensor, found an integer"),
            (Slot::Value(_), Value::Tensor(_)) => refuse("an integer, found a tensor"),
        }
    }))
}
