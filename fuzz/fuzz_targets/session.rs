//! Payloads with small valid graphs, run twice on the CPU engine.

#![no_main]

use std::sync::Arc;

use fastrand::Rng;
use flambeau_cpu::CpuEngine;
use flambeau_fuzz::{Zeros, arguments, is_cheap, with_static_inputs};
use flambeau_ir::{
    check,
    engine::{Engine, LoadOptions},
};
use flambeau_wire::mlx;
use libfuzzer_sys::{Corpus, fuzz_target};

fuzz_target!(|bytes: &[u8]| -> Corpus {
    let Some((&seed, payload)) = bytes.split_first() else { return Corpus::Reject };
    let mut rng = Rng::with_seed(seed.into());
    let Ok(graph) = mlx::decode(payload) else { return Corpus::Reject };
    let Ok(fixed) = check(with_static_inputs(graph.clone(), &mut rng)) else { return Corpus::Keep };
    let (Ok(graph), Some(inputs)) = (check(graph), arguments(&fixed, &mut rng)) else { return Corpus::Keep };
    if !is_cheap(&fixed) {
        return Corpus::Reject;
    }
    let constants = Zeros::of(&graph);
    if let Ok(mut session) = CpuEngine::new(Some(1)).load(Arc::new(graph), &constants, &LoadOptions::default()) {
        let _ = session.run(&inputs);
        let _ = session.run(&inputs);
    }
    Corpus::Keep
});
