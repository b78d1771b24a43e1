//! Time per node of a decode-like chain of small nodes, where the work itself is next to nothing.

use std::{sync::Arc, time::Instant};

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Add, AddInt, Graph, In, Int, Multiply, Node, Out, OutVid, RMSNorm, Reshape, Silu, Slice, SliceUpdate, Slot, SlotCounts,
    TensorMeta, Tid, Transpose, Vid, check,
    engine::{Clock, Constants, Engine, LoadOptions, Value},
};
use flambeau_tensor::{Bytes, DType, Tensor};

struct Ones;

impl Constants for Ones {
    fn get(&self, _: &str) -> Option<Bytes> {
        Some((0..64).flat_map(|_| 1f32.to_le_bytes()).collect::<Vec<u8>>().into())
    }
}

/// One layer over slot 1 `[1, 4, 1, 16]`: constant 0 `[64]`, buffer 3 `[1, 4, 32, 16]`, temporaries
/// from 4.
fn layer() -> Vec<Node> {
    let (t, o, i) = (|n| In(Tid(n)), |n| Out(Tid(n)), Int::Lit);
    let slice = Slice { x: t(3), out: o(7), axis: i(2), start: i(0), stop: Int::Vid(Vid(1)), step: 1 };
    vec![
        Reshape { x: t(4), out: o(5), shape: vec![i(1), i(1), i(64)] }.into(),
        RMSNorm { x: t(5), weight: Some(t(0)), out: o(6), eps: 1e-5 }.into(),
        Reshape { x: t(6), out: o(5), shape: vec![i(1), i(1), i(4), i(16)] }.into(),
        Transpose { x: t(5), out: o(6), perm: vec![0, 2, 1, 3] }.into(),
        AddInt { a: Int::Vid(Vid(0)), b: i(1), out: OutVid(Vid(1)) }.into(),
        SliceUpdate { dst: t(3), update: t(6), out: o(3), axis: i(2), start: Int::Vid(Vid(0)), stop: Int::Vid(Vid(1)), step: 1 }
            .into(),
        slice.into(),
        Silu { x: t(6), out: o(5) }.into(),
        Multiply { a: t(5), b: t(6), out: o(7) }.into(),
        Add { a: t(7), b: t(4), out: o(4) }.into(),
    ]
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layers = 60;
    let add = |a, b, out| Node::from(Add { a: In(Tid(a)), b: In(Tid(b)), out: Out(Tid(out)) });
    let mut chain = vec![add(1, 1, 4)];
    (0..layers).for_each(|_| chain.extend(layer()));
    chain.push(add(4, 4, 2));
    let nodes = chain.len();
    let x = [1, 4, 1, 16];
    let graph = Graph {
        slots: SlotCounts { constants: 1, inputs: 1, outputs: 1, buffers: 1, temps: 4 },
        values: 2,
        chains: vec![chain],
        inputs: vec![Slot::Tensor(Tid(1)), Slot::Value(Vid(0))],
        outputs: vec![Slot::Tensor(Tid(2))],
        buffers: vec![Tid(3)],
        names: vec![("ones".into(), Slot::Tensor(Tid(0)))],
        meta: vec![
            TensorMeta::fixed(DType::F32, &[64]),
            TensorMeta::fixed(DType::F32, &x),
            TensorMeta::fixed(DType::F32, &x),
            TensorMeta::fixed(DType::F32, &[1, 4, 32, 16]),
        ],
        ..Graph::default()
    };
    let profile = std::env::args().any(|a| a == "--profile");
    let begin = Instant::now();
    let engine = CpuEngine::new(Some(1)).with_profile(profile.then(|| Clock::new(move || begin.elapsed())));
    let mut session = engine.load(Arc::new(check(graph)?), &Ones, &LoadOptions::default())?;
    let input = Tensor::from_slice(&[0.5f32; 64], &[1, 4, 1, 16])?;
    let rounds = 2000;
    let start = Instant::now();
    for i in 0..rounds {
        session.run(&[Value::Tensor(input.clone()), Value::Int(i % 32)])?;
    }
    println!("{} ns a node", start.elapsed().as_nanos() as usize / (nodes * rounds as usize));
    for (name, calls, ns) in session.take_profile() {
        println!("{name}: {} ns", ns / calls);
    }
    Ok(())
}
