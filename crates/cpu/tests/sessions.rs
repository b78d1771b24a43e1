//! Guarantees of sessions beyond the numbers of single nodes.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use flambeau_cpu::CpuEngine;
use flambeau_ir::{
    Add, Chain, ChainId, Exp, Full, Graph, IdCopy, If, In, Int, Multiply, Node, Out, Slice, SliceUpdate, Tid, Vid, check,
    engine::{Clock, Constants, Engine, EngineError, LoadOptions, Session, Value},
};
use flambeau_tensor::{Bytes, DType, Tensor};
use flambeau_testcases::{run_with_buffer as run, unknown_kernel, with_buffer};

struct Data(Vec<(&'static str, Vec<f32>)>);

impl Constants for Data {
    fn get(&self, key: &str) -> Option<Bytes> {
        let (_, values) = self.0.iter().find(|(name, _)| *name == key)?;
        Some(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into())
    }
}

fn load(graph: Graph, data: &Data) -> Result<Box<dyn Session>, EngineError> {
    let graph = Arc::new(check(graph).expect("the graph is sound"));
    CpuEngine::new(Some(1)).load(graph, data, &LoadOptions::default())
}

fn session(chains: Vec<Chain>, init: Option<u32>) -> Box<dyn Session> {
    load(with_buffer(chains, init), &Data(vec![("c", vec![10.0, 20.0, 30.0, 40.0])])).expect("the graph loads")
}

fn add(a: u32, b: u32, out: u32) -> Node {
    Add { a: In(Tid(a)), b: In(Tid(b)), out: Out(Tid(out)) }.into()
}

fn copy(x: u32, out: u32) -> Node {
    IdCopy { x: In(Tid(x)), out: Out(Tid(out)) }.into()
}

fn update(dst: u32, from: u32, at: Int, out: u32) -> Node {
    let stop = match at {
        Int::Lit(v) => Int::Lit(v + 1),
        vid => vid,
    };
    SliceUpdate { dst: In(Tid(dst)), update: In(Tid(from)), out: Out(Tid(out)), axis: Int::Lit(0), start: at, stop, step: 1 }.into()
}

#[test]
fn buffers_start_at_zero_last_and_reset() {
    let mut s = session(vec![vec![add(3, 1, 3), copy(3, 2)]], None);
    assert_eq!(run(&mut *s, [1.0; 4], 0).unwrap(), [1.0; 4]);
    assert_eq!(run(&mut *s, [1.0; 4], 0).unwrap(), [2.0; 4]);
    s.reset();
    assert_eq!(run(&mut *s, [5.0; 4], 0).unwrap(), [5.0; 4]);
}

#[test]
fn aliases_keep_what_they_were_made_of() {
    let first = Slice { x: In(Tid(1)), out: Out(Tid(5)), axis: Int::Lit(0), start: Int::Lit(0), stop: Int::Lit(1), step: 1 };
    // The buffer takes the input, 4 remembers the buffer, the buffer changes, and 4 is what comes
    // out.
    let mut s = session(vec![vec![copy(1, 3), copy(3, 4), first.into(), update(3, 5, Int::Lit(3), 3), copy(4, 2)]], None);
    assert_eq!(run(&mut *s, [1.0, 2.0, 3.0, 4.0], 0).unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn results_outlive_the_buffers_they_alias() {
    let first = Slice { x: In(Tid(1)), out: Out(Tid(5)), axis: Int::Lit(0), start: Int::Lit(0), stop: Int::Lit(1), step: 1 };
    let mut s = session(vec![vec![first.into(), update(3, 5, Int::Lit(2), 3), copy(3, 2)]], None);
    let x = |v: f32| [Value::Tensor(Tensor::from_slice(&[v; 4], &[4]).unwrap()), Value::Int(0)];
    let held = s.run(&x(7.0)).unwrap();
    s.run(&x(8.0)).unwrap();
    let [Value::Tensor(held)] = &held[..] else { panic!("one tensor") };
    assert_eq!(held.as_slice::<f32>().unwrap(), [0.0, 0.0, 7.0, 0.0]);
    assert_eq!(run(&mut *s, [9.0; 4], 0).unwrap(), [0.0, 0.0, 9.0, 0.0]);
}

#[test]
fn inputs_are_never_written() {
    let one = Full { out: Out(Tid(5)), shape: vec![Int::Lit(1)], v: flambeau_ir::Float::Lit(1.0), scalar_type: DType::F32 };
    let mut s = session(vec![vec![one.into(), update(1, 5, Int::Lit(0), 4), copy(4, 2)]], None);
    let x = Tensor::from_slice(&[3.0f32; 4], &[4]).unwrap();
    s.run(&[Value::Tensor(x.clone()), Value::Int(0)]).unwrap();
    assert_eq!(x.as_slice::<f32>().unwrap(), [3.0; 4]);
}

#[test]
fn the_init_chain_may_replace_constants_and_fill_buffers() {
    let double: Node = Multiply { a: In(Tid(0)), b: In(Tid(0)), out: Out(Tid(0)) }.into();
    let mut s = session(vec![vec![add(0, 1, 4), add(4, 3, 2), add(3, 1, 3)], vec![double, copy(0, 3)]], Some(1));
    assert_eq!(run(&mut *s, [1.0; 4], 0).unwrap(), [201.0, 801.0, 1801.0, 3201.0]);
    s.reset();
    assert_eq!(run(&mut *s, [0.0; 4], 0).unwrap(), [200.0, 800.0, 1800.0, 3200.0]);
}

#[test]
fn branches_share_slots_with_their_callers() {
    let exp = Exp { x: In(Tid(6)), out: Out(Tid(6)) };
    let branch: Node = If { cond: Int::Vid(Vid(0)), then_chain_idx: ChainId(1), else_chain_idx: ChainId(2) }.into();
    let main = vec![add(1, 1, 4), add(1, 0, 6), branch, add(4, 6, 2)];
    let mut s = session(vec![main, vec![copy(1, 6), exp.into()], vec![]], None);
    assert_eq!(run(&mut *s, [0.0; 4], 1).unwrap(), [1.0; 4]);
    assert_eq!(run(&mut *s, [1.0; 4], 0).unwrap(), [13.0, 23.0, 33.0, 43.0]);
}

#[test]
fn a_failed_update_leaves_the_buffer_usable() {
    // The start is a value slot and the stop is the same: an empty region, unless the start is out
    // of the literal's way.
    let two = Full { out: Out(Tid(5)), shape: vec![Int::Vid(Vid(0))], v: flambeau_ir::Float::Lit(2.0), scalar_type: DType::F32 };
    let whole = SliceUpdate {
        dst: In(Tid(3)),
        update: In(Tid(5)),
        out: Out(Tid(3)),
        axis: Int::Lit(0),
        start: Int::Lit(0),
        stop: Int::Lit(4),
        step: 1,
    };
    let mut s = session(vec![vec![two.into(), whole.into(), copy(3, 2)]], None);
    assert!(run(&mut *s, [0.0; 4], 3).is_err());
    assert_eq!(run(&mut *s, [0.0; 4], 4).unwrap(), [2.0; 4]);
}

fn refused(graph: Graph, data: &Data, expected: &str) {
    let message = load(graph, data).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(message.contains(expected), "{message:?} lacks {expected:?}");
}

#[test]
fn loading_names_what_is_missing() {
    let main = vec![add(0, 1, 2)];
    refused(with_buffer(vec![main.clone()], None), &Data(vec![]), "constant `c`: its data is missing");
    refused(with_buffer(vec![main], None), &Data(vec![("c", vec![1.0])]), "takes 16 bytes, found 4");
    let message = "the cpu engine does not implement MetalKernel `mystery`";
    refused(with_buffer(vec![vec![unknown_kernel(1, 2).into()]], None), &Data(vec![("c", vec![0.0; 4])]), message);
}

#[test]
fn runs_refuse_arguments_that_do_not_fit() {
    let mut s = session(vec![vec![add(0, 1, 2)]], None);
    let tensor = |t: Tensor| Value::Tensor(t);
    let refused = |s: &mut Box<dyn Session>, inputs: &[Value], expected: &str| {
        let message = s.run(inputs).unwrap_err().to_string();
        assert!(message.contains(expected), "{message:?} lacks {expected:?}");
    };
    refused(&mut s, &[], "expected 2 inputs, found 0");
    refused(&mut s, &[tensor(Tensor::scalar(1i64)), Value::Int(0)], "input 0: expected a tensor of f32, found i64");
    refused(&mut s, &[Value::Int(0), Value::Int(0)], "input 0: expected a tensor, found an integer");
    let three = Tensor::from_slice(&[0.0f32; 3], &[3]).unwrap();
    refused(&mut s, &[tensor(three), Value::Int(0)], "chain 0, instruction 0 (Add)");
}

/// A clock that advances by a millisecond each time it is read.
fn ticking() -> Clock {
    let reads = AtomicU64::new(0);
    Clock::new(move || Duration::from_millis(reads.fetch_add(1, Ordering::Relaxed)))
}

#[test]
fn measured_sessions_count_their_nodes() {
    let graph = Arc::new(check(with_buffer(vec![vec![add(0, 1, 4), add(4, 4, 2)]], None)).unwrap());
    let data = Data(vec![("c", vec![0.0; 4])]);
    let mut s = CpuEngine::new(Some(1)).with_profile(Some(ticking())).load(graph, &data, &LoadOptions::default()).unwrap();
    run(&mut *s, [0.0; 4], 0).unwrap();
    assert_eq!(s.take_profile(), [("Add", 2, 2_000_000)]);
    assert!(s.take_profile().is_empty());
}

#[test]
fn threads_share_an_engine() {
    let engine = CpuEngine::new(Some(2));
    // y = (buffer + x) * c, buffer = x
    let multiply: Node = Multiply { a: In(Tid(4)), b: In(Tid(0)), out: Out(Tid(2)) }.into();
    let program =
        || Arc::new(check(with_buffer(vec![vec![add(3, 1, 4), multiply.clone(), copy(1, 3)]], None)).expect("the graph is sound"));
    let shared = program();
    std::thread::scope(|scope| {
        for i in 0..50u8 {
            let (engine, shared, program) = (&engine, &shared, &program);
            scope.spawn(move || {
                let graph = if i % 2 == 0 { Arc::clone(shared) } else { program() };
                let constant = f32::from(i % 7);
                let data = Data(vec![("c", vec![constant; 4])]);
                let mut s = engine.load(graph, &data, &LoadOptions::default()).expect("the graph loads");
                let mut last = 0.0;
                for n in 0..100u8 {
                    let x = f32::from(n) + f32::from(i);
                    assert_eq!(run(&mut *s, [x; 4], 0).unwrap(), [(x + last) * constant; 4], "thread {i}, run {n}");
                    last = x;
                }
            });
        }
    });
}
