//! The JSON form of a graph, for inspection tools.

use serde_json::{Map, Value, json};

use crate::{Graph, MetaDim, Node, Slot, TensorMeta, Tid};

/// The graph as one JSON object. Slots are strings such as `t3` and `v1`. Each node is an object
/// with its name as `op`. Fields with default values are omitted.
pub fn to_json(graph: &Graph) -> Value {
    let slots = &graph.slots;
    json!({
        "slots": {
            "constants": slots.constants,
            "inputs": slots.inputs,
            "outputs": slots.outputs,
            "buffers": slots.buffers,
            "temps": slots.temps,
            "values": graph.values,
        },
        "main": graph.main,
        "init": graph.init,
        "inputs": graph.inputs.iter().map(Slot::to_string).collect::<Vec<_>>(),
        "outputs": graph.outputs.iter().map(Slot::to_string).collect::<Vec<_>>(),
        "buffers": graph.buffers.iter().map(Tid::to_string).collect::<Vec<_>>(),
        "names": graph.names.iter().map(|(name, slot)| json!({ "slot": slot.to_string(), "name": name })).collect::<Vec<_>>(),
        "meta": graph.meta.iter().enumerate().map(|(i, meta)| meta_to_json(i, meta)).collect::<Vec<_>>(),
        "chains": graph.chains.iter().map(|chain| chain.iter().map(node_to_json).collect()).collect::<Vec<Value>>(),
    })
}

fn meta_to_json(index: usize, meta: &TensorMeta) -> Value {
    let dim = |dim: &MetaDim| match *dim {
        MetaDim::Static(n) => json!(n),
        MetaDim::Dynamic { min, max } => json!({ "min": min, "max": max }),
    };
    let shape: Vec<Value> = meta.shape.iter().map(dim).collect();
    json!({ "slot": Tid(index as u32).to_string(), "dtype": meta.dtype.name(), "shape": shape, "dim_order": meta.dim_order })
}

/// A node as a JSON object.
pub fn node_to_json(node: &Node) -> Value {
    let mut object = Map::new();
    object.insert("op".to_owned(), node.name().into());
    object.extend(node.fields().into_iter().map(|(name, value)| (name.to_owned(), value)));
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_names_every_part() {
        let text = "slots inputs=1 outputs=1 values=1\nmain 0\ninput t0\ninput v0\noutput t1\nname t0 \"x\"\n\
            meta t0 f32[2..]\nmeta t1 f32[2]\nchain 0\n  Exp x=t0 out=t1\n";
        let graph: Graph = text.parse().unwrap();
        let json = to_json(&graph);
        assert_eq!(json["chains"], json!([[{ "op": "Exp", "x": "t0", "out": "t1" }]]));
        assert_eq!(
            json["meta"][0],
            json!({ "slot": "t0", "dtype": "f32", "shape": [{ "min": 2, "max": null }], "dim_order": [0] })
        );
        assert_eq!((&json["inputs"], &json["init"]), (&json!(["t0", "v0"]), &Value::Null));
        assert_eq!(json["names"], json!([{ "slot": "t0", "name": "x" }]));
    }

    #[test]
    fn no_field_hides_the_name() {
        assert!(Node::ALL.iter().all(|info| info.fields.iter().all(|field| field.name != "op")));
    }
}
