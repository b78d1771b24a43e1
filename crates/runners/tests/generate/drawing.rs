//! Programs that sample tokens themselves.

use flambeau_runners::{Error, llm::Request};
use flambeau_runtime::Program;
use flambeau_tensor::DType;
use flambeau_text::SamplingParams;

use crate::{AnyEngine, load, model::program, request, run};

/// The next token is the last one plus the seed, or plus 1 at temperature 0, modulo 4. A top-k of 2
/// adds 1 more.
const DRAWS: &str = r#"slots constants=0 inputs=6 outputs=1 buffers=0 temps=11 values=0
main 0
input t0
input t1
input t2
input t3
input t4
input t5
output t6
name t0 "tokens"
name t1 "input_pos"
name t2 "temperature"
name t3 "top_k"
name t4 "top_p"
name t5 "seed"
meta t0 i64[1,1..3]
meta t1 i64[1..3]
meta t2 f32[]
meta t3 i64[]
meta t4 f32[]
meta t5 i64[]
meta t6 i64[1]
chain 0
  Take x=t0 out=t7 index=-1 axis=1
  Full out=t8 shape=[] v=0.0 scalar_type=f32
  Greater a=t2 b=t8 out=t9
  Full out=t10 shape=[] v=1.0 scalar_type=i64
  Where condition=t9 x=t5 y=t10 out=t11
  Add a=t7 b=t11 out=t12
  Full out=t13 shape=[] v=2.0 scalar_type=i64
  Equal a=t3 b=t13 out=t14
  AsType x=t14 out=t15 scalar_type=i64
  Add a=t12 b=t15 out=t16
  Full out=t17 shape=[] v=4.0 scalar_type=i64
  Remainder a=t16 b=t17 out=t6
"#;

fn draws() -> Program {
    let values: [(DType, &[u32]); 7] = [
        (DType::I64, &[1, 3]),
        (DType::I64, &[3]),
        (DType::F32, &[]),
        (DType::I64, &[]),
        (DType::F32, &[]),
        (DType::I64, &[]),
        (DType::I64, &[1]),
    ];
    program(DRAWS, &values, &[[0.0; 4]; 4], 100)
}

fn drawn(engine: &AnyEngine, sampling: SamplingParams) -> Result<Vec<u32>, Error> {
    let request = Request { sampling, ignore_eos: true, ..request(&[3, 1, 2, 0, 1], 6) };
    Ok(run(engine, &draws(), &request)?.ids)
}

pub(crate) fn the_program_is_told_how_to_draw(engine: &AnyEngine) {
    let mut model = load(engine, &draws());
    assert!(model.model().samples_tokens() && matches!(model.step(&[0]), Err(Error::Logits { .. })));
    let check = |sampling, expected: [u32; 6]| assert_eq!(drawn(engine, sampling).unwrap(), expected);
    let plain = SamplingParams::default();
    check(plain.clone(), [2, 3, 0, 1, 2, 3]);
    // The seed grows by one per token.
    let seeded = SamplingParams { temperature: 0.5, seed: 5, ..plain.clone() };
    check(seeded.clone(), [2, 0, 3, 3, 0, 2]);
    check(SamplingParams { top_k: 2, ..seeded }, [3, 2, 2, 3, 1, 0]);
    let largest = SamplingParams { temperature: 0.5, seed: u64::MAX, ..plain };
    check(largest, [0, 0, 1, 3, 2, 2]);
}

pub(crate) fn what_the_program_cannot_be_told_is_refused(engine: &AnyEngine) {
    let plain = SamplingParams { temperature: 0.5, ..SamplingParams::default() };
    for sampling in [SamplingParams { min_p: 0.1, ..plain.clone() }, SamplingParams { repetition_penalty: 1.1, ..plain }] {
        let error = drawn(engine, sampling).unwrap_err();
        assert!(matches!(error, Error::Sampling { .. }), "{error}");
    }
}
