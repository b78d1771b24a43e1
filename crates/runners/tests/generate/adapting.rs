//! Adapters at run time: every text has its own, and caches are not shared across them.

use std::{collections::BTreeMap, time::Duration};

use flambeau_runners::{
    Error,
    llm::{AdapterFacts, Adapters, DiskCache, Event, Job, JobId, Limits, Model, ModelOptions, Request, Scheduler, Session},
};
use flambeau_runtime::Program;
use flambeau_tensor::DType;
use flambeau_testcases::add_method;
use flambeau_wire::{ProgramWriter, pte::EValue};

use crate::{
    AnyEngine,
    model::{Table, finish, tokenizer},
    request,
};

const TABLE: Table = [[0.0, 0.5, 1.0, 0.2], [1.0, 0.0, 0.3, 0.9], [0.4, 0.8, 0.1, 0.6], [0.7, 0.2, 0.9, 0.0]];
const LIMITS: Limits = Limits { running: 4, sequences: 6, waiting: 16, tokens: 1000, kept_bytes: 1 << 20 };

/// Logits are the sum of the rows of all tokens so far, stored in a cache of 100 positions; up to
/// eight tokens per step. Adapter 0 adds the transposed table, and adapter 1 subtracts the table.
const ADAPTED: &str = r#"slots constants=1 inputs=3 outputs=1 buffers=1 temps=11 values=3
main 0
input t1
input t2
input t3
output t4
buffer t5
name t0 "table"
name t1 "input_ids"
name t2 "cache_position"
name t3 "adapter_scales"
meta t0 f32[4,4]
meta t1 i64[1,1..8]
meta t2 i64[1..8]
meta t3 f32[2]
meta t4 f32[1,4]
meta t5 f32[100,4]
chain 0
  Take x=t2 out=t6 index=0 axis=0
  ItemInt x=t6 out=v0
  SymSize a=t1 dim=1 out=v1
  AddInt a=v0 b=v1 out=v2
  Take x=t3 out=t7 index=0 axis=0
  Transpose x=t0 out=t8 perm=[1,0]
  Multiply a=t8 b=t7 out=t9
  Take x=t3 out=t10 index=1 axis=0
  Multiply a=t0 b=t10 out=t11
  Add a=t0 b=t9 out=t12
  Subtract a=t12 b=t11 out=t13
  Take x=t13 out=t14 index=t1 axis=0
  Reshape x=t14 out=t15 shape=[v1,4]
  SliceUpdate dst=t5 update=t15 out=t5 axis=0 start=v0 stop=v2
  Slice x=t5 out=t16 axis=0 start=0 stop=v2
  Sum x=t16 out=t4 axes=[0] keepdims=true
"#;

/// A model with two adapters, which it names so.
fn adapted(named: &str) -> Program {
    let mut writer = ProgramWriter::new();
    let values: [(DType, &[u32]); 4] = [(DType::I64, &[1, 8]), (DType::I64, &[8]), (DType::F32, &[2]), (DType::F32, &[1, 4])];
    add_method(&mut writer, "forward", ADAPTED, &values, 1);
    writer.constant_method("get_lora_adapters", vec![EValue::String(named.into())]);
    finish(writer, &TABLE, 100)
}

fn load(engine: &AnyEngine) -> Model {
    let program = adapted(r#"[{"name":"turned","scale":0.5},{"name":"weak","scale":1.0}]"#);
    Model::load(&program, engine, &ModelOptions::default()).unwrap()
}

/// The base model, each adapter, another scale, and both adapters.
fn choices() -> Vec<Adapters> {
    [[0.0, 0.0], [1.0, 0.0], [0.0, 3.0], [0.25, 0.0], [1.0, 3.0]].iter().map(|scales| Adapters::new(scales)).collect()
}

/// A prompt that is long enough to be worth a copy.
fn prompt() -> Vec<u32> {
    (0..70).map(|i| i * i % 7 % 3).collect()
}

fn job(adapters: &Adapters) -> Job {
    let request = Request { adapters: adapters.clone(), ignore_eos: true, ..request(&prompt(), 8) };
    Job { request, reuses: true }
}

fn alone(model: &Model, adapters: &Adapters) -> Vec<u32> {
    let mut session = Session::new(model.sequence().unwrap());
    let (now, request) = (|| Duration::ZERO, job(adapters).request);
    session.generate(&tokenizer(), request, &now, &false.into(), &mut |_| ()).unwrap().ids
}

/// Runs all jobs. Returns the number of cached tokens and the tokens of each.
fn run(scheduler: &mut Scheduler) -> BTreeMap<JobId, (usize, Vec<u32>)> {
    let mut done: BTreeMap<JobId, (usize, Vec<u32>)> = BTreeMap::new();
    while scheduler.step(&|| Duration::ZERO, &mut |id, event| match event {
        Event::Started { cached } => done.entry(id).or_default().0 = cached,
        Event::Finished(generation) => done.entry(id).or_default().1 = generation.ids,
        Event::Failed(error) => panic!("{error}"),
        Event::Stepped(_) => {}
    }) {}
    done
}

pub(crate) fn every_text_has_its_adapters(engine: &AnyEngine) {
    let model = load(engine);
    let texts: Vec<Vec<u32>> = choices().iter().map(|adapters| alone(&model, adapters)).collect();
    assert!((1..texts.len()).all(|i| !texts[..i].contains(&texts[i])), "the texts tell the adapters apart: {texts:?}");
    // All run at once, from the same prompt.
    let mut scheduler = Scheduler::new(model, tokenizer(), LIMITS);
    let ids: Vec<JobId> = choices().iter().map(|adapters| scheduler.submit(job(adapters)).unwrap()).collect();
    let done = run(&mut scheduler);
    for (id, text) in ids.iter().zip(&texts) {
        assert_eq!(done[id], (0, text.clone()));
    }
}

pub(crate) fn caches_are_not_shared_across_adapters(engine: &AnyEngine) {
    let model = load(engine);
    let folder = tempfile::tempdir().unwrap();
    let texts: Vec<Vec<u32>> = choices().iter().map(|adapters| alone(&model, adapters)).collect();
    // One sequence has to take turns, so texts move to copies and to the disk. The second process
    // finds them there.
    for process in 0..2 {
        let (disk, writer) = DiskCache::open(folder.path(), u64::MAX, |warning| panic!("{warning}")).unwrap();
        let limits = Limits { running: 1, sequences: 1, ..LIMITS };
        let mut scheduler = Scheduler::new(model.clone(), tokenizer(), limits).with_disk(&disk);
        for round in 0..2 {
            for (adapters, text) in choices().iter().zip(&texts) {
                let id = scheduler.submit(job(adapters)).unwrap();
                let (cached, ids) = run(&mut scheduler).remove(&id).unwrap();
                assert_eq!(&ids, text, "process {process}, round {round}, {adapters:?}");
                let is_known = process + round > 0 && model.can_snapshot() && engine.name() == "cpu";
                assert_eq!(cached > 0, is_known, "process {process}, round {round}, {adapters:?}: {cached}");
            }
        }
        scheduler.save();
        drop((scheduler, disk));
        writer.join();
    }
}

pub(crate) fn adapters_have_names(engine: &AnyEngine) {
    let model = load(engine);
    let facts = |name: &str, scale| AdapterFacts { name: name.into(), scale };
    assert_eq!(model.metadata().adapters, [facts("turned", 0.5), facts("weak", 1.0)]);
    assert_eq!(model.adapters(&[("weak", 2.0)]), Some(Adapters::new(&[0.0, 2.0])));
    assert_eq!((model.adapters(&[("other", 2.0)]), model.default_adapters()), (None, Adapters::new(&[0.5, 1.0])));
    let refused = Model::load(&adapted(r#"[{"name":"one"}]"#), engine, &ModelOptions::default()).unwrap_err().to_string();
    assert!(refused.contains("it names 1 adapters and takes the scales of 2"), "{refused}");
}

pub(crate) fn a_text_keeps_its_adapters(engine: &AnyEngine) {
    let model = load(engine);
    let mut scheduler = Scheduler::new(model.clone(), tokenizer(), LIMITS);
    let many = scheduler.submit(job(&Adapters::new(&[1.0; 3])));
    assert!(matches!(many, Err(Error::Adapters { found: 3, expected: 2 })));
    let mut sequence = model.sequence().unwrap();
    sequence.step(&[0, 1]).unwrap();
    let mut generate = |request: &Request| {
        flambeau_runners::llm::generate(&mut sequence, &tokenizer(), request, &|| Duration::ZERO, &false.into(), &mut |_| ())
    };
    let other = Request { adapters: Adapters::new(&[1.0]), ..request(&[1], 1) };
    assert!(matches!(generate(&other), Err(Error::OtherAdapters)));
    assert!(generate(&request(&[1], 1)).is_ok());
    sequence.set_adapters(&other.adapters).unwrap();
    assert_eq!(sequence.position(), 0);
}
