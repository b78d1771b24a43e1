use proptest::prelude::*;

use super::*;
use crate::{Node, limits::MAX_CHAIN_DEPTH, testing::any_graph};

/// A linear layer with a bias from the init chain, then a cache update, a branch and a scan.
const GOOD: &str = "\
slots constants=3 inputs=2 outputs=2 buffers=1 temps=5 values=3
main 0
init 1
input t3
input v0
input t4
output t5
output v1
output t6
buffer t7
name t0 \"weight\"
name t1 \"scales\"
name t2 \"biases\"
name t3 \"x\"
meta t0 f32[8,4]
meta t1 f32[8]
meta t2 f32[]
meta t3 f32[1..16,4]
meta t4 i64[1]
meta t5 f32[1..16,8]
meta t6 f32[2..]
meta t7 f32[1,16,8]
chain 0
  Transpose x=t0 out=t8 perm=[1,0]
  Addmm mat1=t3 mat2=t8 out=t5 bias=t2
  ItemInt x=t4 out=v1
  SymSize a=t5 dim=0 out=v2
  AddInt a=v1 b=v2 out=v2
  SliceUpdate dst=t7 update=t5 out=t7 axis=1 start=v1 stop=v2
  Slice x=t7 out=t8 axis=1 start=0 stop=v2
  If cond=v0 then_chain_idx=2 else_chain_idx=3
  Scan originals=[t8] sliced=[t10] outputs=[t11] carry=[t12] body_chain_idx=4
  Reshape x=t11 out=t6 shape=[-1]
chain 1
  Full out=t8 shape=[] v=-8.0 scalar_type=f32
  Multiply a=t1 b=t8 out=t2
chain 2
  Exp x=t5 out=t9
chain 3
  Log x=t5 out=t9
chain 4
  Sum x=t10 out=t12 axes=[0]
  Square x=t12 out=t11
";

fn graph(text: &str) -> Graph {
    text.parse().unwrap_or_else(|e| panic!("{e}\n{text}"))
}

#[test]
fn a_good_graph_is_accepted_with_what_it_returns() {
    let checked = check(graph(GOOD)).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(checked.to_string(), GOOD);
    let shown: Vec<String> = checked.results().iter().map(Content::to_string).collect();
    // The last result is flat, with a row of 8 for each of the first `?2 + ?0` positions of the
    // cache.
    assert_eq!(shown, ["f32[?0,8]", "?2", "f32[8*?0+8*?2]"].map(String::from));
    assert_eq!(checked.into_inner(), graph(GOOD));
}

/// Replaces a part of the valid graph. The error must be at `place` and contain `part`.
fn refuse(from: &str, to: &str, place: &str, part: &str) {
    assert!(GOOD.contains(from), "{from}");
    let error = check(graph(&GOOD.replace(from, to))).map(|_| ()).unwrap_err();
    assert_eq!(error.place.to_string(), place, "{to}: {error}");
    assert!(error.fault.to_string().contains(part), "{to}: {error}");
}

#[test]
fn counts_are_bounded() {
    refuse("temps=5", "temps=1000000", "graph", "1000008 tensor slots");
    refuse("constants=3", "constants=4294967295", "graph", "tensor slots");
    refuse("values=3", "values=1000001", "graph", "1000001 values");
    refuse("main 0", "main 5", "graph", "chain 5 does not exist, there are 5");
    refuse("init 1", "init 9", "graph", "chain 9 does not exist");
    // The node and its two slots count as well.
    let list = |n| format!("perm=[{}]", vec!["0"; n].join(","));
    refuse("perm=[1,0]", &list(999_998), "chain 0, instruction 0, Transpose", "list entries");
    refuse("perm=[1,0]", &list(999_997), "chain 0, instruction 0, Transpose", "perm");
}

#[test]
fn maps_name_slots_of_their_class_once() {
    refuse("input t4\n", "input t13\n", "input 2", "t13 does not exist");
    refuse("input t4\n", "input t5\n", "input 2", "expected Input");
    refuse("input v0", "input v3", "input 1", "v3 does not exist");
    refuse("input t4\n", "input t3\n", "input 2", "t3 occurs twice");
    refuse("output t5", "output t8", "output 0", "expected Output");
    refuse("buffer t7", "buffer t6", "buffer 0", "expected Buffer");
    refuse("buffer t7", "buffer t7\nbuffer t7", "buffer 1", "t7 occurs twice");
    refuse("buffer t7\n", "", "graph", "buffer t7 is not in the buffer map");
    refuse("name t3", "name t99", "name 3", "t99 does not exist");
    refuse("name t3", "name v7", "name 3", "v7 does not exist");
    refuse("name t1 \"scales\"\n", "", "graph", "constant t1 has no name");
    refuse("\"scales\"", "\"\"", "name 1", "constant t1 has no name");
}

#[test]
fn metadata_are_complete_and_sane() {
    refuse("meta t7 f32[1,16,8]\n", "", "graph", "7 metadata entries for 8 slots");
    refuse("meta t3 f32[1..16,4]", "meta t3 f64[1..16,4]", "metadata 3", "f64 does not occur");
    refuse("meta t3 f32[1..16,4]", "meta t3 f32[9..2,4]", "metadata 3", "bounded by 9 and 2");
    refuse("meta t3 f32[1..16,4]", "meta t3 f32[1..16,4294967295]", "metadata 3", "4294967295 does not fit");
    refuse("meta t3 f32[1..16,4]", "meta t3 f32[1..16,4] order=[1,0]", "metadata 3", "not row-major");
    refuse("meta t6 f32[2..]", "meta t6 f32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "metadata 6", "rank 17");
    refuse("meta t1 f32[8]", "meta t1 f32[1..8]", "metadata 1", "the shape is dynamic");
    refuse("meta t7 f32[1,16,8]", "meta t7 f32[1,2..,8]", "metadata 7", "the shape is dynamic");
    refuse("meta t7 f32[1,16,8]", "meta t7 f32[65536,65536,8]", "metadata 7", "bytes, at most 4294967296");
    refuse("meta t1 f32[8]", "meta t1 f32[2147483647,2147483647,2147483647]", "metadata 1", "bytes, at most");
}

#[test]
fn nodes_name_slots_and_write_where_they_may() {
    refuse("Exp x=t5 out=t9", "Exp x=t13 out=t9", "chain 2, instruction 0, Exp.x", "t13 does not exist");
    refuse("Exp x=t5 out=t9", "Exp x=t5 out=t4294967295", "chain 2, instruction 0, Exp.out", "does not exist");
    refuse("ItemInt x=t4 out=v1", "ItemInt x=t4 out=v9", "chain 0, instruction 2, ItemInt.out", "v9 does not exist");
    refuse("sliced=[t10]", "sliced=[t13]", "chain 0, instruction 8, Scan.sliced", "t13 does not exist");
    refuse("Exp x=t5 out=t9", "Exp x=t5 out=t3", "chain 2, instruction 0, Exp.out", "writes input t3");
    refuse("Exp x=t5 out=t9", "Exp x=t5 out=t2", "chain 2, instruction 0, Exp.out", "writes constant t2");
    // The chain is reached from both.
    refuse("else_chain_idx=3", "else_chain_idx=1", "chain 1, instruction 1, Multiply.out", "writes constant t2");
    // No run reaches the chain, but its slots must exist.
    refuse("chain 1\n", "chain 1\n  Noop\n  Exp x=t13 out=t9\n", "chain 1, instruction 1, Exp.x", "t13 does not exist");
}

#[test]
fn chains_form_no_cycle_and_nest_boundedly() {
    refuse("body_chain_idx=4", "body_chain_idx=5", "chain 0, instruction 8, Scan", "chain 5 does not exist");
    refuse("Exp x=t5 out=t9", "If cond=v0 then_chain_idx=3 else_chain_idx=2", "chain 2", "runs itself");
    refuse("Exp x=t5 out=t9", "If cond=v0 then_chain_idx=0 else_chain_idx=3", "chain 0", "runs itself");
    let ladder = |n: u64, node: &dyn Fn(u64) -> String| {
        let chains: String = (0..n).map(|i| format!("chain {i}\n{}", node(i))).collect();
        check(graph(&format!("slots values=1\nmain 0\ninput v0\n{chains}chain {n}\n"))).map(|_| ()).unwrap_err().to_string()
    };
    let deep = ladder(MAX_CHAIN_DEPTH, &|i| format!("  If cond=v0 then_chain_idx={} else_chain_idx={}\n", i + 1, i + 1));
    assert!(deep.contains("nested chains"), "{deep}");
    let call = |i: u64| format!("  If cond=v0 then_chain_idx={} else_chain_idx={}\n", i + 1, i + 1);
    for levels in [16, 22, 40] {
        let wide = ladder(levels, &|i| call(i).repeat(2));
        assert!(wide.contains("node entries on all paths"), "{wide}");
    }
}

#[test]
fn nothing_is_read_before_it_is_written() {
    refuse("Addmm mat1=t3", "Addmm mat1=t9", "chain 0, instruction 1, Addmm.mat1", "t9 is read before");
    refuse("SymSize a=t5 dim=0 out=v2", "Noop", "chain 0, instruction 4, AddInt.b", "v2 is read before");
    refuse("input v0\n", "", "chain 0, instruction 7, If.cond", "v0 is read before");
    refuse("input t4\n", "", "chain 0, instruction 2, ItemInt.x", "t4 is read before");
    // The main chain cannot read temporaries of the init chain, and the init chain cannot read
    // inputs.
    refuse("Transpose x=t0 out=t8 perm=[1,0]", "Neg x=t8 out=t8", "chain 0, instruction 0, Neg.x", "t8 is read before");
    refuse("Multiply a=t1 b=t8", "Multiply a=t1 b=t3", "chain 1, instruction 1, Multiply.b", "t3 is read before");
    // A body leaves its output unset, and no node writes a result.
    refuse("Square x=t12 out=t11", "Square x=t12 out=t12", "chain 0, instruction 8, Scan.outputs", "t11 is read before");
    refuse("Reshape x=t11 out=t6 shape=[-1]", "Noop", "output 2", "t6 is not set");
}

#[test]
fn branches_merge() {
    let after = |branch: &str, node: &str, place: &str, part: &str| {
        let both = GOOD.replace("Log x=t5 out=t9", branch).replace("  Reshape x=t11 out=t6 shape=[-1]", node);
        let result = check(graph(&both)).map(|checked| checked.results().last().cloned());
        match result {
            Ok(content) => {
                assert!(place.is_empty() && content.as_ref().is_some_and(|c| c.to_string().contains(part)), "{branch}: {content:?}")
            }
            Err(error) => assert!(error.place.to_string() == place && error.to_string().contains(part), "{branch}: {error}"),
        }
    };
    let read = "  Neg x=t9 out=t6";
    after("Log x=t5 out=t9", read, "", "[?0,8]");
    // Only one branch writes it; the types differ; the ranks differ.
    after("Noop", read, "chain 0, instruction 9, Neg.x", "t9 is read before");
    after("AsType x=t5 out=t9 scalar_type=f16", read, "chain 0, instruction 9, Neg.x", "t9 is read before");
    after("Sum x=t5 out=t9 axes=[0]", read, "chain 0, instruction 9, Neg.x", "t9 is read before");
    // Different sizes become unknown, and equal sizes are kept.
    after("Slice x=t5 out=t9 axis=0 start=0 stop=1", read, "", ",8]");
    // A branch without a write keeps the contents from before the branch.
    after("Exp x=t5 out=t5", "  Neg x=t5 out=t6", "", "[?0,8]");
}

#[test]
fn rules_are_proved_with_their_place() {
    refuse("perm=[1,0]", "perm=[1,1]", "chain 0, instruction 0, Transpose", "axis 1 twice");
    refuse("meta t0 f32[8,4]", "meta t0 f32[8,5]", "chain 0, instruction 1, Addmm", "`b` is 5, expected 4");
    refuse("Sum x=t10 out=t12 axes=[0]", "Sum x=t10 out=t12 axes=[7]", "chain 4, instruction 0, Sum", "axis 7");
    refuse(
        "Multiply a=t1 b=t8 out=t2",
        "Full out=t2 shape=[3] v=0.0 scalar_type=f32",
        "chain 0, instruction 1, Addmm",
        "broadcast",
    );
}

#[test]
fn buffers_keep_their_declared_form() {
    let write = |node: &str| format!("Reshape x=t11 out=t6 shape=[-1]\n  {node}");
    let node = "Reshape x=t11 out=t6 shape=[-1]";
    refuse(node, &write("AsType x=t7 out=t7 scalar_type=f16"), "chain 0", "leaves buffer t7 as f16[1,16,8]");
    refuse(node, &write("ExpandDims x=t7 out=t7 axis=0"), "chain 0", "declared as f32[1,16,8]");
    refuse(node, &write("Slice x=t7 out=t7 axis=1 start=0 stop=3"), "chain 0", "[1,3,8]");
    refuse("Multiply a=t1 b=t8 out=t2", "Multiply a=t1 b=t8 out=t7", "chain 1", "leaves buffer t7 as f32[8]");
    let unknown = GOOD.replace(node, &write("Slice x=t7 out=t7 axis=1 start=0 stop=v2"));
    assert!(check(graph(&unknown)).is_ok(), "a size that only the run knows is the run's to compare");
}

#[test]
fn sizes_that_would_explode_become_unknown() {
    let squares = "  MultiplyInt a=v0 b=v0 out=v0\n  FloorDivideInt a=v0 b=3 out=v0\n".repeat(2000);
    let tiles = "  Tile x=t1 out=t1 reps=[v0]\n".repeat(2000);
    let text = format!(
        "slots inputs=1 outputs=1 values=1\nmain 0\ninput t0\ninput v0\noutput t1\nmeta t0 f32[1..]\nmeta t1 f32[1..]\n\
         chain 0\n  Neg x=t0 out=t1\n{squares}{tiles}"
    );
    let checked = check(graph(&text)).unwrap_or_else(|e| panic!("{e}"));
    match &checked.results()[0] {
        Content::Tensor(spec) => assert!(spec.dims[0].weight() <= crate::limits::MAX_SIZE_WEIGHT),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn any_graph_is_accepted_or_refused(graph in any_graph()) {
        let _ = check(graph);
    }

    /// Random nodes in a valid frame, so the checker follows the flow of many nodes.
    #[test]
    fn any_nodes_in_a_sound_frame_are_accepted_or_refused(nodes in prop::collection::vec(crate::testing::any_node(), 0..40)) {
        let mut framed = graph(GOOD);
        let sound: Vec<Node> = nodes.into_iter().filter(|node| node.chains().is_empty()).collect();
        for node in sound {
            let kept = framed.chains[0].len();
            framed.chains[0].push(node);
            if check(framed.clone()).is_err() {
                framed.chains[0].truncate(kept);
            }
        }
        prop_assert!(check(framed).is_ok());
    }
}
