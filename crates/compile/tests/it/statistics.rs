//! Weights that compilation quantizes by statistics of their inputs.

use std::sync::Arc;

use flambeau_compile::{InputStatistics, Options, Scheme, SchemeName, Statistics, compile};
use flambeau_pt2::{
    Argument, Dialect, Exported, Graph, InputSpec, NamedArgument, Node, OutputSpec, Signature, Storage, TensorMeta, View, Weight,
};
use flambeau_runtime::Value;
use flambeau_tensor::{DType, Expr, Tensor};

use crate::support::{engine, method, written};

const ROWS: usize = 4;
const COLUMNS: usize = 64;

fn view(id: &str, tensor: &Tensor) -> View {
    let storage = Storage::new(id, tensor.bytes().clone());
    let strides = if tensor.rank() == 2 { vec![COLUMNS, 1] } else { vec![1] };
    View { dtype: tensor.dtype(), shape: tensor.shape().to_vec(), strides, offset: 0, storage }
}

/// Looks up rows of one table twice: by stored places, and by places from the caller.
fn rows_of_a_table() -> Exported {
    let values: Vec<f32> = (0..ROWS * COLUMNS).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 97.0).collect();
    let stored = [
        ("table", Tensor::from_slice(&values, &[ROWS, COLUMNS]).unwrap()),
        ("places", Tensor::from_slice(&[0i64, 1, 2, 3], &[ROWS]).unwrap()),
    ];
    let tensor = |name: &str| Argument::Tensor(name.to_owned());
    let lookup = |places: &str, rows: &str| {
        let operands = [("weight", "table"), ("indices", places)].map(|(name, arg)| NamedArgument::positional(name, tensor(arg)));
        Node::call("torch.ops.aten.embedding.default", operands.to_vec(), vec![tensor(rows)])
    };
    let metas = [("table", DType::F32), ("places", DType::I64), ("x", DType::I64), ("fixed", DType::F32), ("given", DType::F32)];
    let meta = |(name, dtype): (&str, DType)| {
        let dims = if dtype == DType::F32 { &[ROWS, COLUMNS][..] } else { &[ROWS] };
        (name.to_owned(), TensorMeta::new(dtype, dims.iter().map(|&d| Expr::Int(d as i64)).collect()))
    };
    let graph = Graph {
        inputs: ["table", "places", "x"].map(tensor).to_vec(),
        outputs: ["fixed", "given"].map(tensor).to_vec(),
        nodes: vec![lookup("places", "fixed"), lookup("x", "given")],
        tensors: metas.into_iter().map(meta).collect(),
        ..Graph::default()
    };
    let parameter = |name: &str| InputSpec::Parameter { arg: name.to_owned(), name: name.to_owned() };
    Exported {
        signature: Signature {
            inputs: vec![parameter("table"), parameter("places"), InputSpec::UserInput(tensor("x"))],
            outputs: graph.outputs.iter().cloned().map(OutputSpec::UserOutput).collect(),
        },
        graph,
        ranges: Default::default(),
        expression_ranges: Vec::new(),
        guards: Vec::new(),
        in_spec: String::new(),
        out_spec: String::new(),
        forward_arg_names: vec!["x".to_owned()],
        torch_version: String::new(),
        dialect: Dialect::Training,
        weights: stored.iter().map(|(name, tensor)| ((*name).to_owned(), Weight::Strided(view(name, tensor)))).collect(),
        constants: Default::default(),
    }
}

#[test]
fn folded_parts_of_weights_follow_statistics_too() {
    let exported = rows_of_a_table();
    let rows = |statistics: Statistics| {
        let embedding = Some(Scheme::from_name("2w", None).unwrap());
        let options = Options { embedding, statistics: Arc::new(statistics), require_full: true, ..Options::default() };
        let bytes = written(&compile(&[("forward", &exported)], &options, &*engine()).unwrap());
        let x = Tensor::from_slice(&[0i64, 1, 2, 3], &[ROWS]).unwrap();
        let found = method(bytes, "forward").run(&[Value::Tensor(x)]).unwrap();
        [0, 1].map(|i| found[i].as_tensor().unwrap().as_slice::<f32>().unwrap().to_vec())
    };
    let mut statistics = Statistics::default();
    let squares = (0..COLUMNS).map(|k| if k % 5 == 0 { 50.0 } else { 0.5 }).collect();
    statistics.insert("table", Arc::new(InputStatistics::from_squares(squares)));
    let (plain, fitted) = (rows(Statistics::default()), rows(statistics));
    assert!(plain[0] == plain[1] && fitted[0] == fitted[1], "one table");
    assert_ne!(plain[0], fitted[0]);
}
