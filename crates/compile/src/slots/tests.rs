//! Reusing slots does not change the results of small random graphs.

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Add, Multiply, Neg, Spec, Subtract, check,
    engine::{Engine, LoadOptions, NoConstants, Value},
};
use flambeau_lower::{SsaNode, TensorInfo};
use flambeau_tensor::{DType, Tensor};

use super::*;

/// Deterministic numbers below `n`.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// A graph of random arithmetic with two inputs and two buffers.
fn random_graph(dice: &mut Dice) -> SsaGraph {
    let origins = [Origin::Input(0), Origin::Input(1), Origin::Buffer(0), Origin::Buffer(1)];
    let info = |origin| TensorInfo { spec: Spec::fixed(DType::F32, &[4]), origin };
    let mut ssa = SsaGraph { chains: vec![Vec::new()], tensors: origins.map(info).into(), ..SsaGraph::default() };
    for _ in 0..3 + dice.below(12) {
        let n = ssa.tensors.len();
        let (a, b, out) = (In(Tid(dice.below(n) as u32)), In(Tid(dice.below(n) as u32)), Out(Tid(n as u32)));
        let node = match dice.below(4) {
            0 => Add { a, b, out }.into(),
            1 => Subtract { a, b, out }.into(),
            2 => Multiply { a, b, out }.into(),
            _ => Neg { x: a, out }.into(),
        };
        ssa.tensors.push(info(Origin::Node));
        ssa.chains[0].push(SsaNode { node, call: 0 });
    }
    let n = ssa.tensors.len();
    ssa.results = (0..1 + dice.below(4)).map(|_| Slot::Tensor(Tid(dice.below(n) as u32))).collect();
    ssa.buffers = vec![(Tid(2), Tid(dice.below(n) as u32)), (Tid(3), Tid(dice.below(n) as u32))];
    ssa
}

/// Runs the graph by definition: every slot has separate memory.
fn reference(ssa: &SsaGraph, inputs: &[[f32; 4]; 2], buffers: &mut [[f32; 4]; 2]) -> Vec<[f32; 4]> {
    let mut slots = vec![[f32::NAN; 4]; ssa.tensors.len()];
    slots[..4].copy_from_slice(&[inputs[0], inputs[1], buffers[0], buffers[1]]);
    for entry in &ssa.chains[0] {
        let at = |t: In| slots[t.0.0 as usize];
        let zip = |a: In, b: In, f: fn(f32, f32) -> f32| std::array::from_fn(|i| f(at(a)[i], at(b)[i]));
        let (out, value) = match &entry.node {
            Node::Add(n) => (n.out, zip(n.a, n.b, |a, b| a + b)),
            Node::Subtract(n) => (n.out, zip(n.a, n.b, |a, b| a - b)),
            Node::Multiply(n) => (n.out, zip(n.a, n.b, |a, b| a * b)),
            Node::Neg(n) => (n.out, at(n.x).map(|v| -v)),
            other => panic!("{other:?} is not part of random graphs"),
        };
        slots[out.0.0 as usize] = value;
    }
    for (buffer, (_, after)) in buffers.iter_mut().zip(&ssa.buffers) {
        *buffer = slots[after.0 as usize];
    }
    ssa.results.iter().filter_map(|s| if let Slot::Tensor(t) = s { Some(slots[t.0 as usize]) } else { None }).collect()
}

#[test]
fn reuse_of_slots_changes_no_number() {
    let engine = CpuEngine::new(None);
    let mut dice = Dice(1);
    for case in 0..200 {
        let mut ssa = random_graph(&mut dice);
        flambeau_lower::drop_unread(&mut ssa);
        let keep_inputs = case % 2 == 1;
        let slotted = assign(ssa.clone(), "t", &["a".to_owned(), "b".to_owned()], keep_inputs);
        let numbers = slotted.inputs.clone();
        assert!(!keep_inputs || numbers == [0, 1], "case {case}: inputs {numbers:?}");
        let graph = Arc::new(check(slotted.graph).unwrap_or_else(|e| panic!("case {case}: {e}")));
        let mut session = engine.load(graph, &NoConstants, &LoadOptions::default()).unwrap();
        let mut buffers = [[0.0; 4]; 2];
        for run in 0..2 {
            let inputs = [[1.5, -2.0, 0.25, run as f32], [0.5, 1.0, -1.0, 2.0]];
            let want = reference(&ssa, &inputs, &mut buffers);
            let args: Vec<Value> =
                numbers.iter().map(|&n| Value::Tensor(Tensor::from_slice(&inputs[n as usize], &[4]).unwrap())).collect();
            let found = session.run(&args).unwrap();
            for (i, (found, want)) in found.iter().zip(&want).enumerate() {
                let Value::Tensor(found) = found else { panic!("case {case}: result {i} is no tensor") };
                let same = found.as_slice::<f32>().unwrap().iter().zip(want).all(|(a, b)| a == b || (a.is_nan() && b.is_nan()));
                assert!(same, "case {case}, run {run}, result {i}: expected {want:?}, found {found:?}\n{ssa:?}");
            }
        }
    }
}
