//! Engines that sample tokens, in a pipeline of steps.

use std::sync::Arc;

use flambeau_cpu::CpuEngine;
use flambeau_runners::llm::Request;
use flambeau_runtime::Sampling;
use flambeau_text::SamplingParams;

use crate::{
    AnyEngine, installed, load,
    model::{bigrams, cycle},
    request, run,
};

pub(crate) fn a_model_continues_after_what_it_received() {
    let mut model = load(&(Arc::new(installed::engine()) as AnyEngine), &bigrams(&cycle(0), 100));
    assert!(model.can_pipeline());
    let greedy = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, uniform: 0.0 };
    model.submit(&[0, 1], greedy).unwrap();
    model.submit_next(greedy).unwrap();
    assert_eq!((model.receive().unwrap(), model.position()), (2, 3));
    model.cancel();
    assert_eq!(model.position(), 2);
    assert_eq!(model.step(&[2]).unwrap(), [1.0, 0.0, 0.0, 0.0]);
    assert!(model.receive().unwrap_err().to_string().contains("no step is in flight"));
}

pub(crate) fn both_engines_draw_the_same_tokens() {
    let engines = [Arc::new(CpuEngine::new(Some(1))) as AnyEngine, Arc::new(installed::engine())];
    for seed in 0..20 {
        let sampling = SamplingParams { temperature: 1.5, top_p: 0.95, seed, ..SamplingParams::default() };
        let request = Request { sampling, ..request(&[0, 1], 30) };
        let [cpu, mlx] = engines.each_ref().map(|engine| run(engine, &bigrams(&cycle(3), 100), &request).unwrap());
        assert_eq!((mlx.ids, mlx.text, mlx.finish), (cpu.ids, cpu.text, cpu.finish));
    }
}
