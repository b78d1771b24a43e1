//! Guarantees of sessions on an installed MLX beyond the numbers of single nodes.

use std::{process::ExitCode, sync::Arc, thread, time::Instant};

use flambeau_ir::{
    Add, BroadcastTo, Chain, ChainId, Checked, Concatenate, Graph, IdCopy, If, In, Int, Multiply, Node, Out, Slice, SliceUpdate,
    Slot, SlotCounts, TensorMeta, Tid, Vid, check,
    engine::{Clock, Constants, Engine, EngineError, KvCacheConfig, KvLayer, LoadOptions, Session, SharedState, Value},
};
use flambeau_mlx::{Device, MlxEngine, Options};
use flambeau_tensor::{Bytes, DType, Tensor};
use flambeau_testcases::{functions, run_with_buffer as run, unknown_kernel, with_buffer};

#[path = "support/mod.rs"]
mod installed;

use installed::alone;

fn clock() -> Clock {
    let start = Instant::now();
    Clock::new(move || start.elapsed())
}

/// One constant `c`.
struct Data(Bytes);

impl Data {
    fn new(values: &[f32]) -> Data {
        Data(values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>().into())
    }
}

impl Constants for Data {
    fn get(&self, key: &str) -> Option<Bytes> {
        (key == "c").then(|| self.0.clone())
    }
}

fn graph(chains: Vec<Chain>, init: Option<u32>) -> Arc<Checked> {
    Arc::new(check(with_buffer(chains, init)).expect("the graph is sound"))
}

fn load(engine: &MlxEngine, graph: &Arc<Checked>, constant: f32) -> Box<dyn Session> {
    engine.load(Arc::clone(graph), &Data::new(&[constant; 4]), &LoadOptions::default()).expect("the graph loads")
}

fn add(a: u32, b: u32, out: u32) -> Node {
    Add { a: In(Tid(a)), b: In(Tid(b)), out: Out(Tid(out)) }.into()
}

fn multiply(a: u32, b: u32, out: u32) -> Node {
    Multiply { a: In(Tid(a)), b: In(Tid(b)), out: Out(Tid(out)) }.into()
}

fn copy(x: u32, out: u32) -> Node {
    IdCopy { x: In(Tid(x)), out: Out(Tid(out)) }.into()
}

fn update(dst: u32, from: u32, at: i64, out: u32) -> Node {
    let (start, stop) = (Int::Lit(at), Int::Lit(at + 1));
    SliceUpdate { dst: In(Tid(dst)), update: In(Tid(from)), out: Out(Tid(out)), axis: Int::Lit(0), start, stop, step: 1 }.into()
}

fn first(x: u32, out: u32) -> Node {
    Slice { x: In(Tid(x)), out: Out(Tid(out)), axis: Int::Lit(0), start: Int::Lit(0), stop: Int::Lit(1), step: 1 }.into()
}

fn buffers_start_at_zero_last_and_reset() {
    let (_turn, engine) = (alone(), installed::engine());
    let mut s = load(&engine, &graph(vec![vec![add(3, 1, 3), copy(3, 2)]], None), 0.0);
    assert_eq!(run(&mut *s, [1.0; 4], 0).unwrap(), [1.0; 4]);
    assert_eq!(run(&mut *s, [1.0; 4], 0).unwrap(), [2.0; 4]);
    s.reset();
    assert_eq!(run(&mut *s, [5.0; 4], 0).unwrap(), [5.0; 4]);
}

fn sessions_share_buffers_of_one_name() {
    let (_turn, engine) = (alone(), installed::engine());
    let named = |prefix: &str, chain: Chain| {
        let mut graph = (**graph(vec![chain], None)).clone();
        graph.names.push((format!("{prefix}/total"), Slot::Tensor(Tid(3))));
        Arc::new(check(graph).expect("the graph is sound"))
    };
    let (write, read) = (named("a", vec![add(3, 1, 3), copy(3, 2)]), named("b", vec![add(3, 1, 2)]));
    let options = LoadOptions { shared: Some(SharedState::default()), ..LoadOptions::default() };
    let load = |graph: &Arc<Checked>| engine.load(Arc::clone(graph), &Data::new(&[0.0; 4]), &options).expect("the graph loads");
    let (mut writer, mut reader) = (load(&write), load(&read));
    for total in [1.0, 2.0, 3.0] {
        assert_eq!(run(&mut *writer, [1.0; 4], 0).unwrap(), [total; 4]);
        assert_eq!(run(&mut *reader, [10.0; 4], 0).unwrap(), [total + 10.0; 4]);
    }
    drop(writer);
    assert_eq!(run(&mut *reader, [10.0; 4], 0).unwrap(), [13.0; 4]);
    reader.reset();
    assert_eq!(run(&mut *load(&write), [5.0; 4], 0).unwrap(), [5.0; 4]);
    drop((reader, options));
    assert_eq!(engine.live_arrays(), 0);
}

fn init_chains_replace_constants_and_fill_buffers() {
    let (_turn, engine) = (alone(), installed::engine());
    let chains = vec![vec![add(3, 0, 2), add(3, 1, 3)], vec![add(0, 0, 0), copy(0, 3)]];
    let mut s = load(&engine, &graph(chains, Some(1)), 3.0);
    for _ in 0..2 {
        assert_eq!(run(&mut *s, [1.0; 4], 0).unwrap(), [12.0; 4]);
        assert_eq!(run(&mut *s, [1.0; 4], 0).unwrap(), [13.0; 4]);
        s.reset();
    }
}

fn sessions_count_their_nodes_with_reasons_traced_or_not() {
    let _turn = alone();
    for compiles in [false, true] {
        let engine = installed::engine_that(compiles);
        let mut s = load(&engine, &graph(vec![vec![add(3, 1, 3), multiply(3, 1, 4), add(4, 3, 2)]], None), 0.0);
        for runs in 1..=4 {
            run(&mut *s, [1.0; 4], 0).unwrap();
            let steps = s.steps().expect("the engine counts");
            assert!((steps.planned, &steps.regions[..]) == (0, &[]), "{steps:?}");
            assert!(steps.node_by_node.iter().all(|nodes| nodes.why == "the device has no fused kernels"), "{steps:?}");
            let counted: Vec<_> = steps.node_by_node.iter().map(|nodes| (nodes.node, nodes.count)).collect();
            assert_eq!(counted, [("Add", 2 * runs), ("Multiply", runs)]);
        }
        assert_eq!(engine.compiled_runs(), if compiles { 3 } else { 0 });
    }
}

fn measured_sessions_tell_of_every_step_and_compute_the_same() {
    let (_turn, engine) = (alone(), installed::engine_that(true));
    let branch = |chain: u32| If { cond: Int::Vid(Vid(0)), then_chain_idx: ChainId(chain), else_chain_idx: ChainId(chain + 1) };
    let chains = vec![
        vec![multiply(1, 0, 4), branch(1).into(), first(5, 6), update(3, 6, 1, 3), add(3, 5, 2)],
        vec![add(4, 4, 5), add(5, 4, 5)],
        vec![copy(4, 5)],
    ];
    let (graph, x) = (graph(chains, None), [1.0, 2.0, 3.0, 4.0]);
    let runs = |session: &mut Box<dyn Session>| [1, 1, 0].map(|v| run(&mut **session, x, v).unwrap());
    let expected = runs(&mut load(&engine, &graph, 2.0));
    let engine = engine.with_profile(Some(clock()));
    let mut s = load(&engine, &graph, 2.0);
    assert_eq!(runs(&mut s), expected);
    assert!(s.pipelined().is_none() && engine.compiled_runs() == 1);
    let spans = s.take_spans();
    let names: Vec<&str> = spans.iter().map(|span| &*span.name).collect();
    let taken = ["Multiply", "Add", "Add", "Slice", "SliceUpdate", "Add"];
    assert_eq!(names, [&taken[..], &taken, &["Multiply", "IdCopy", "Slice", "SliceUpdate", "Add"]].concat());
    assert!(spans.windows(2).all(|pair| pair[0].start + pair[0].time <= pair[1].start));
    // Two operands and a result of 16 bytes; a view moves nothing; one element is read and written.
    assert_eq!([0, 3, 4].map(|i| (spans[i].bytes, spans[i].flops)), [(48, 0), (0, 0), (8, 0)]);
    let counts: Vec<_> = s.take_profile().into_iter().map(|(name, calls, _)| (name, calls)).collect();
    assert_eq!(counts, [("IdCopy", 1), ("Add", 7), ("Multiply", 3), ("Slice", 3), ("SliceUpdate", 3)]);
    assert!(s.take_spans().is_empty() && s.take_profile().is_empty());
}

fn measured_products_count_their_operations() {
    let (_turn, engine) = (alone(), installed::engine());
    let graph: Graph = "slots constants=1 inputs=1 outputs=1 buffers=0 temps=0 values=0
main 0
input t1
output t2
name t0 \"c\"
meta t0 f32[4,1]
meta t1 f32[3,4]
meta t2 f32[3,1]
chain 0
  Addmm mat1=t1 mat2=t0 out=t2
"
    .parse()
    .unwrap();
    let mut s = load(&engine.with_profile(Some(clock())), &Arc::new(check(graph).unwrap()), 1.0);
    s.run(&[Value::Tensor(Tensor::from_slice(&[1.0f32; 12], &[3, 4]).unwrap())]).unwrap();
    let spans: Vec<_> = s.take_spans().into_iter().map(|span| (span.name.to_string(), span.bytes, span.flops)).collect();
    assert_eq!(spans, [("Addmm".to_owned(), 4 * (12 + 4 + 3), 2 * 12)]);
}

fn aliases_keep_what_they_were_made_of() {
    let (_turn, engine) = (alone(), installed::engine());
    // The input is copied to the buffer and the buffer to slot 4. The buffer then changes, and slot
    // 4 is the output.
    let chain = vec![copy(1, 3), copy(3, 4), first(1, 5), update(3, 5, 3, 3), copy(4, 2)];
    let mut s = load(&engine, &graph(vec![chain], None), 0.0);
    let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[4]).unwrap();
    for _ in 0..2 {
        s.run(&[Value::Tensor(x.clone()), Value::Int(0)]).unwrap();
        // The caller's input is never written, although the buffer took over its storage.
        assert_eq!(x.as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 4.0]);
    }
    assert_eq!(run(&mut *s, [1.0, 2.0, 3.0, 4.0], 0).unwrap(), [1.0, 2.0, 3.0, 4.0]);
}

fn results_outlive_the_buffers_they_alias() {
    let (_turn, engine) = (alone(), installed::engine());
    let mut s = load(&engine, &graph(vec![vec![first(1, 5), update(3, 5, 2, 3), copy(3, 2)]], None), 0.0);
    let x = |v: f32| [Value::Tensor(Tensor::from_slice(&[v; 4], &[4]).unwrap()), Value::Int(0)];
    let held = s.run(&x(7.0)).unwrap();
    s.run(&x(8.0)).unwrap();
    let [Value::Tensor(held)] = &held[..] else { panic!("one tensor") };
    assert_eq!(held.as_slice::<f32>().unwrap(), [0.0, 0.0, 7.0, 0.0]);
}

/// A graph with a buffer `[rows, 1024]`. A run replaces the buffer's row 0 by the input and returns
/// the buffer.
fn cache_graph(rows: u32) -> Arc<Checked> {
    let slots = SlotCounts { constants: 0, inputs: 1, outputs: 1, buffers: 1, temps: 0 };
    let row = TensorMeta::fixed(DType::F32, &[1, 1024]);
    let graph = Graph {
        slots,
        chains: vec![vec![update(2, 0, 0, 2), first(2, 1)]],
        inputs: vec![Slot::Tensor(Tid(0))],
        outputs: vec![Slot::Tensor(Tid(1))],
        buffers: vec![Tid(2)],
        meta: vec![row.clone(), row, TensorMeta::fixed(DType::F32, &[rows, 1024])],
        ..Graph::default()
    };
    Arc::new(check(graph).expect("the graph is sound"))
}

fn caches_are_written_in_place() {
    let _turn = alone();
    for compiles in [false, true] {
        let engine = installed::engine_that(compiles);
        let rows = 1 << 14;
        let mut s = engine.load(cache_graph(rows), &Data::new(&[]), &LoadOptions::default()).expect("the graph loads");
        let x = Value::Tensor(Tensor::from_slice(&[1.0f32; 1024], &[1, 1024]).unwrap());
        // The first run gives the zeros storage of their own; the second is traced.
        (0..3).for_each(|_| drop(s.run(std::slice::from_ref(&x)).unwrap()));
        engine.reset_peak();
        let before = engine.memory();
        s.run(std::slice::from_ref(&x)).unwrap();
        let grown = engine.memory().peak.saturating_sub(before.active);
        assert!(grown < u64::from(rows) * 1024, "a run took {grown} bytes beside a buffer of {}", rows * 4096);
        assert_eq!(engine.compiled_runs() > 0, compiles);
    }
}

fn threads_share_an_engine_and_leave_nothing_behind() {
    let (_turn, engine) = (alone(), installed::engine());
    // y = (buffer + x) * c, buffer = y
    let shared = graph(vec![vec![add(3, 1, 4), multiply(4, 0, 2), copy(1, 3)]], None);
    let one = Data::new(&[2.0; 4]);
    thread::scope(|scope| {
        for i in 0..50u8 {
            let (engine, shared, one) = (&engine, &shared, &one);
            scope.spawn(move || {
                let (constant, mut s) = if i % 2 == 0 {
                    (2.0, engine.load(Arc::clone(shared), one, &LoadOptions::default()).expect("the graph loads"))
                } else {
                    let own = graph(vec![vec![add(3, 1, 4), multiply(4, 0, 2), copy(1, 3)]], None);
                    (f32::from(i), load(engine, &own, f32::from(i)))
                };
                let mut last = 0.0;
                for n in 0..100u8 {
                    let x = f32::from(n) + f32::from(i);
                    assert_eq!(run(&mut *s, [x; 4], 0).unwrap(), [(x + last) * constant; 4], "thread {i}, run {n}");
                    last = x;
                }
            });
        }
    });
    assert_eq!((engine.live_arrays(), engine.memory().active), (0, 0));
    engine.clear_cache();
    assert_eq!(engine.memory().cached, 0);
}

fn a_failed_run_leaves_the_session_and_its_memory_usable() {
    let (_turn, engine) = (alone(), installed::engine());
    // A result of the size of value 0 times 2^29 floats.
    let wide = BroadcastTo { x: In(Tid(1)), out: Out(Tid(4)), shape: vec![Int::Vid(Vid(0)), Int::Lit(1 << 27), Int::Lit(-1)] };
    let zero = Slice { x: In(Tid(5)), out: Out(Tid(6)), axis: Int::Lit(0), start: Int::Lit(0), stop: Int::Lit(1), step: 1 };
    let flat = flambeau_ir::Reshape { x: In(Tid(7)), out: Out(Tid(2)), shape: vec![Int::Lit(4)] };
    let row = Slice { x: In(Tid(6)), out: Out(Tid(7)), axis: Int::Lit(1), start: Int::Lit(0), stop: Int::Lit(1), step: 1 };
    let chain = vec![add(3, 1, 3), wide.into(), add(4, 4, 5), zero.into(), row.into(), flat.into()];
    let mut s = load(&engine, &graph(vec![chain], None), 0.0);
    let error = run(&mut *s, [1.0; 4], 31).expect_err("62 GiB are too many").to_string();
    // A constant and a buffer of 16 bytes.
    assert_eq!((engine.memory().active, engine.memory().cached), (32, 0));
    assert!(error.to_lowercase().contains("alloc"), "{error}");
    let error = run(&mut *s, [1.0; 4], -2).expect_err("a negative size").to_string();
    assert!(error.contains("BroadcastTo"), "{error}");
    let mut other = load(&engine, &graph(vec![vec![add(1, 0, 2)]], None), 1.0);
    assert_eq!(run(&mut *other, [1.0; 4], 0).unwrap(), [2.0; 4]);
    s.reset();
    drop((s, other));
    assert_eq!(engine.live_arrays(), 0);
}

/// An engine on MLX's CPU backend; while it lives, the process's limit on array bytes is lower.
struct Limited {
    engine: MlxEngine,
    before: u64,
}

impl Limited {
    fn to(bytes: u64) -> Limited {
        let before = installed::engine().memory().limit;
        Limited { engine: Limited::engine(bytes), before }
    }

    fn engine(limit: u64) -> MlxEngine {
        let options = Options { device: Some(Device::Cpu), memory_limit: Some(limit), ..Options::default() };
        MlxEngine::load(&installed::shim(), &options).expect("the engine loads")
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        drop(Limited::engine(self.before));
    }
}

fn programs_without_room_are_refused_before_they_take_any() {
    let (_turn, small) = (alone(), Limited::to(3 << 20));
    let small = &small.engine;
    let load = |rows| small.load(cache_graph(rows), &Data::new(&[]), &LoadOptions::default());
    let error = load(1024).err().expect("the cache takes 4 MiB").to_string();
    let expected = "out of memory: the program needs 4 MiB for weights, buffers and caches, but arrays take 0 MiB of the 3 MiB";
    assert!(error.starts_with(expected), "{error}");
    assert_eq!((small.live_arrays(), small.memory().active), (0, 0));
    let x = Value::Tensor(Tensor::from_slice(&[1.0f32; 1024], &[1, 1024]).unwrap());
    let mut first = load(256).expect("the cache takes 1 MiB");
    first.run(std::slice::from_ref(&x)).expect("there is room");
    let error = load(600).err().expect("2.4 MiB are not left").to_string();
    assert!(error.contains("needs 3 MiB") && error.contains("arrays take 1 MiB"), "{error}");
    first.run(&[x]).expect("the session goes on");
    drop(first);
    drop(load(600).expect("there is room again"));
}

/// A graph from `[1, 2^20]` to `[1]`: `steps` dependent sums, and the last one's first element. If
/// `joined`, it reads that element through a concatenation of all sums.
fn sums(steps: u32, joined: bool) -> Arc<Checked> {
    let end = 2 + steps;
    let next = |i: u32| add(if i == 0 { 0 } else { 1 + i }, 0, 2 + i);
    let mut chain: Chain = (0..steps).map(next).collect();
    if joined {
        chain.push(Concatenate { tensors: (2..end).map(|t| In(Tid(t))).collect(), out: Out(Tid(end)), axis: 0 }.into());
    }
    let whole = if joined { end } else { end - 1 };
    let column = |x, out| Slice {
        x: In(Tid(x)),
        out: Out(Tid(out)),
        axis: Int::Lit(1),
        start: Int::Lit(-1),
        stop: Int::Lit(i64::MAX),
        step: 1,
    };
    let row = Slice { axis: Int::Lit(0), start: Int::Lit(-1), ..column(end + 1, end + 2) };
    let flat = flambeau_ir::Reshape { x: In(Tid(end + 2)), out: Out(Tid(1)), shape: vec![Int::Lit(1)] };
    chain.extend([column(whole, end + 1).into(), row.into(), flat.into()]);
    let graph = Graph {
        slots: SlotCounts { constants: 0, inputs: 1, outputs: 1, buffers: 0, temps: steps + 3 },
        chains: vec![chain],
        inputs: vec![Slot::Tensor(Tid(0))],
        outputs: vec![Slot::Tensor(Tid(1))],
        meta: vec![TensorMeta::fixed(DType::F32, &[1, 1 << 20]), TensorMeta::fixed(DType::F32, &[1])],
        ..Graph::default()
    };
    Arc::new(check(graph).expect("the graph is sound"))
}

fn runs_that_fit_only_in_part_are_refused_and_runs_that_fit_in_turn_are_not() {
    let (_turn, limited) = (alone(), Limited::to(30 << 20));
    // Tensors of 4 MiB: six of them and all six joined take 48.
    let small = &limited.engine;
    let load = |graph: Arc<Checked>| small.load(graph, &Data::new(&[]), &LoadOptions::default()).expect("the graph loads");
    let ones = [Value::Tensor(Tensor::from_slice(&vec![1.0f32; 1 << 20], &[1, 1 << 20]).unwrap())];
    let last = |session: &mut Box<dyn Session>| match &session.run(&ones)?[..] {
        [Value::Tensor(y)] => Ok::<_, EngineError>(y.as_slice::<f32>().unwrap()[0]),
        other => panic!("{other:?}"),
    };
    let (mut joined, mut in_turn) = (load(sums(6, true)), load(sums(40, false)));
    for _ in 0..2 {
        let error = last(&mut joined).expect_err("48 MiB are more than 30").to_string();
        let expected = ["out of memory: arrays take 2", "may take 30 MiB", "Concatenate needs 25165824 more bytes"];
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
        assert_eq!((small.memory().active, small.memory().cached), (0, 0));
        small.reset_peak();
        assert_eq!(last(&mut in_turn).expect("two sums at a time fit"), 41.0);
        assert!(small.memory().peak <= 30 << 20, "{:?}", small.memory());
    }
    drop(limited);
    assert_eq!(last(&mut joined).expect("there is room"), 7.0);
}

/// Attends to a cache. Its values are the last of three sums of v0 times 4 MiB; two of the sums are
/// joined.
const CACHED: &str = "slots constants=0 inputs=2 outputs=1 buffers=0 temps=6 values=1
main 0
input t0
input t1
input v0
output t2
meta t0 f32[1,1,1,4]
meta t1 i32[1]
meta t2 f32[1,1,1,4]
chain 0
  BroadcastTo x=t0 out=t3 shape=[v0,1,262144,4]
  Add a=t3 b=t3 out=t4
  Add a=t4 b=t3 out=t5
  Concatenate tensors=[t4,t5] out=t6 axis=0
  Slice x=t6 out=t7 axis=0 start=-1 stop=100 step=1
  Slice x=t7 out=t8 axis=2 start=0 stop=1 step=1
  UpdateAndAttend q=t0 k=t0 v=t8 position=t1 out=t2 layer_id=0 scale=1.0
";

fn caches_are_usable_after_a_failed_run() {
    let (_turn, small) = (alone(), Limited::to(30 << 20));
    let graph = Arc::new(check(CACHED.parse::<Graph>().expect("the text is a graph")).expect("the graph is sound"));
    let layers = vec![KvLayer { window: None, n_kv_heads: 1, head_dim: 4 }];
    let config = KvCacheConfig { capacity: 8, layers, dtype: DType::F32, max_write: None };
    let options = LoadOptions { kv_cache: Some(config), ..LoadOptions::default() };
    let mut session = small.engine.load(graph, &Data::new(&[]), &options).expect("the graph loads");
    let mut run = |rows| {
        let (x, at) = (Tensor::from_slice(&[1.0f32; 4], &[1, 1, 1, 4]).unwrap(), Tensor::from_slice(&[0i32], &[1]).unwrap());
        match &session.run(&[Value::Tensor(x), Value::Tensor(at), Value::Int(rows)])?[..] {
            [Value::Tensor(y)] => Ok::<_, EngineError>(y.as_slice::<f32>().unwrap().to_vec()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(run(1).expect("16 MiB fit"), [3.0; 4]);
    let error = run(3).expect_err("48 MiB do not fit").to_string();
    assert!(error.contains("out of memory"), "{error}");
    assert_eq!(run(1).expect("the session goes on"), [3.0; 4]);
}

fn dropping_an_engine_lets_its_sessions_finish() {
    let (_turn, engine) = (alone(), installed::engine());
    let mut sessions: Vec<_> = (0..4).map(|_| load(&engine, &graph(vec![vec![add(1, 0, 2)]], None), 1.0)).collect();
    let last = sessions.pop();
    thread::scope(|scope| {
        for mut s in sessions {
            scope.spawn(move || (0..50).for_each(|_| assert_eq!(run(&mut *s, [1.0; 4], 0).unwrap(), [2.0; 4])));
        }
        drop(last);
        drop(engine);
    });
}

fn unknown_kernels_are_refused_by_name() {
    let (_turn, engine) = (alone(), installed::engine());
    let result = engine.load(graph(vec![vec![unknown_kernel(1, 2).into()]], None), &Data::new(&[0.0; 4]), &LoadOptions::default());
    let error = result.err().map(|e| e.to_string()).unwrap_or_default();
    assert!(error.contains("`mystery`"), "{error}");
}

fn devices_and_libraries_that_are_not_there_are_named() {
    let (_turn, shim) = (alone(), installed::shim());
    let options = Options { device: Some("gpu:7".parse().expect("a device")), ..Options::default() };
    let error = MlxEngine::load(&shim, &options).expect_err("there is no such GPU").to_string();
    assert!(error.contains("gpu:7"), "{error}");
    let error = MlxEngine::load(&shim.path.with_extension("gone").into(), &Options::default())
        .expect_err("there is no such file")
        .to_string();
    assert!(error.contains("cannot load") && error.contains("gone"), "{error}");
}

fn main() -> ExitCode {
    flambeau_testcases::run(functions![
        installed::requirement;
        buffers_start_at_zero_last_and_reset,
        sessions_share_buffers_of_one_name,
        init_chains_replace_constants_and_fill_buffers,
        sessions_count_their_nodes_with_reasons_traced_or_not,
        measured_sessions_tell_of_every_step_and_compute_the_same,
        measured_products_count_their_operations,
        aliases_keep_what_they_were_made_of,
        results_outlive_the_buffers_they_alias,
        caches_are_written_in_place,
        threads_share_an_engine_and_leave_nothing_behind,
        a_failed_run_leaves_the_session_and_its_memory_usable,
        programs_without_room_are_refused_before_they_take_any,
        runs_that_fit_only_in_part_are_refused_and_runs_that_fit_in_turn_are_not,
        caches_are_usable_after_a_failed_run,
        dropping_an_engine_lets_its_sessions_finish,
        unknown_kernels_are_refused_by_name,
        devices_and_libraries_that_are_not_there_are_named,
    ])
}
