//! Random graphs: MLX against the CPU engine.

use std::{process::ExitCode, sync::Arc};

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Checked, Graph, Slot, SlotCounts, TensorMeta, Tid,
    engine::{Engine, EngineError, LoadOptions, NoConstants, Value},
};
use flambeau_tensor::{DType, Tensor, cast};
use flambeau_testcases::functions;
use flambeau_testgraphs::{RandomGraph, Rounding, random_graph};

#[path = "support/mod.rs"]
mod installed;

const GRAPHS: u64 = 10_000;

fn run(engine: &dyn Engine, graph: &Checked, inputs: &[Value]) -> Result<Vec<Value>, EngineError> {
    engine.load(Arc::new(graph.clone()), &NoConstants, &LoadOptions::default())?.run(inputs)
}

fn tensor(value: &Value) -> Tensor {
    match value {
        Value::Tensor(tensor) => tensor.clone(),
        Value::Int(value) => Tensor::scalar(*value),
    }
}

/// Why two results differ by more than `bound`; bit by bit if it is zero.
fn difference(found: &Tensor, expected: &Tensor, bound: f64) -> Option<String> {
    if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
        return Some(format!("{} {:?}, expected {} {:?}", found.dtype(), found.shape(), expected.dtype(), expected.shape()));
    }
    if !found.dtype().is_float() {
        return (found.bytes()[..] != expected.bytes()[..]).then(|| "not the same integers".to_owned());
    }
    let floats =
        |t: &Tensor| cast(t, DType::F64).and_then(|t| Ok(t.aligned().as_slice::<f64>()?.to_vec())).expect("a float tensor");
    let (found, expected) = (floats(found), floats(expected));
    let close = |a: f64, b: f64| a == b || a.is_nan() && b.is_nan() || (a - b).abs() <= bound;
    let at = found.iter().zip(&expected).position(|(&a, &b)| !close(a, b))?;
    Some(format!("element {at} is {}, expected {} within {bound}", found[at], expected[at]))
}

fn check([mlx, cpu]: [&dyn Engine; 2], sample: &RandomGraph) -> Result<(), String> {
    let (found, expected) = match [mlx, cpu].map(|engine| run(engine, &sample.graph, &sample.inputs)).into() {
        (Ok(found), Ok(expected)) => (found, expected),
        // Division by zero is an error by the node's definition.
        (Err(EngineError::Node { what, .. }), Err(EngineError::Node { what: expected, .. }))
            if what == expected && what.ends_with("by zero") =>
        {
            return Ok(());
        }
        (found, expected) => return Err(format!("MLX {found:?}, CPU engine {expected:?}")),
    };
    let bounds = sample.bounds(&run(cpu, &sample.every, &sample.inputs).map_err(|e| format!("every result: {e}"))?);
    for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
        if let Some(difference) = difference(&tensor(found), &tensor(expected), bounds[i]) {
            return Err(format!("output {i}: {difference}"));
        }
    }
    Ok(())
}

fn mlx_and_the_cpu_engine_agree() {
    let mlx = installed::engine();
    let (cpu, mut wrong) = (CpuEngine::new(Some(2)), Vec::new());
    for seed in 0..GRAPHS {
        let sample = random_graph(seed, 8, Rounding::FloatNodes);
        if let Err(what) = check([&mlx, &cpu], &sample) {
            wrong.push(format!("seed {seed}: {what}\n{}", *sample.graph));
        }
    }
    assert!(wrong.is_empty(), "{} graphs differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// A gated delta rule over inputs q, k, v, g, beta, state and the number of steps: 2 sequences, 2
/// key heads, 4 value heads.
fn delta_rule(steps: usize) -> Checked {
    let node = format!(
        "MetalKernel name=gated_delta_step source=x inputs=[t0,t1,t2,t3,t4,t5,t6] outputs=[t7,t8] grid=[32,8,8] threadgroup=[32,4,1] \
         input_names=[q,k,v,g,beta,state_in,T] output_names=[y,state_out] output_shapes_flat=[2,{steps},4,8,2,4,8,32] \
         output_shape_lengths=[4,4] output_dtypes=[f32,f32] template_arg_names=[InT,Dk,Dv,Hk,Hv] \
         template_arg_kinds=[2,0,0,0,0] template_arg_values=[6,32,8,2,4]"
    );
    let shapes = delta_shapes(steps);
    let float = |shape: &[usize]| TensorMeta::fixed(DType::F32, &shape.iter().map(|&d| d as u32).collect::<Vec<_>>());
    let mut meta: Vec<TensorMeta> = shapes.iter().map(|shape| float(shape)).collect();
    meta.push(TensorMeta::fixed(DType::I32, &[1]));
    meta.extend([float(&[2, steps, 4, 8]), float(&[2, 4, 8, 32])]);
    let slots = SlotCounts { inputs: 7, outputs: 2, ..SlotCounts::default() };
    let named = |range: std::ops::Range<u32>| range.map(|t| Slot::Tensor(Tid(t))).collect();
    let chains = vec![vec![node.parse().expect("a node")]];
    let (inputs, outputs) = (named(0..7), named(7..9));
    let graph =
        Graph { slots, values: 0, chains, main: 0, init: None, inputs, outputs, buffers: Vec::new(), names: Vec::new(), meta };
    flambeau_ir::check(graph).expect("the graph is sound")
}

fn delta_shapes(steps: usize) -> [Vec<usize>; 6] {
    [vec![2, steps, 2, 32], vec![2, steps, 2, 32], vec![2, steps, 4, 8], vec![2, steps, 4], vec![2, steps, 4], vec![2, 4, 8, 32]]
}

fn delta_rules_in_chunks_agree_with_single_steps() {
    let engines: [&dyn Engine; 2] = [&installed::engine(), &CpuEngine::new(Some(2))];
    for steps in [1, 7, 8, 16, 17, 64, 150] {
        let mut random = fastrand::Rng::with_seed(steps as u64);
        let mut inputs: Vec<Value> = Vec::new();
        for (i, shape) in delta_shapes(steps).iter().enumerate() {
            let count = shape.iter().product();
            // Keys repeat, like the keys of a text's tokens, and some gates are zero.
            let value = |j: usize| match i {
                0 | 1 => (((j / 64) % 5 + j % 32) as f32 * 0.7).sin() / 4.0,
                3 if j % 29 == 3 => 0.0,
                3 => 1.0 - 0.3 * random.f32() * random.f32(),
                _ => random.f32(),
            };
            let values: Vec<f32> = (0..count).map(value).collect();
            inputs.push(Value::Tensor(Tensor::from_slice(&values, shape).expect("a tensor")));
        }
        inputs.push(Value::Tensor(Tensor::from_slice(&[steps as i32], &[1]).expect("a tensor")));
        let graph = delta_rule(steps);
        let [found, expected] = engines.map(|engine| run(engine, &graph, &inputs).expect("the rule runs"));
        for (found, expected) in found.iter().zip(&expected) {
            let [found, expected] = [found, expected].map(|v| tensor(v).as_slice::<f32>().expect("floats").to_vec());
            let largest = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let off = found.iter().zip(&expected).fold(0.0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(off <= 2e-6 * largest, "{steps} steps: {off} off, of {largest}");
        }
    }
}

fn main() -> ExitCode {
    flambeau_testcases::run(functions![
        installed::requirement;
        mlx_and_the_cpu_engine_agree,
        delta_rules_in_chunks_agree_with_single_steps,
    ])
}
