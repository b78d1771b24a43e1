//! Attention with masks of windows.

use flambeau_ir::engine::Session;
use flambeau_tensor::{DType, Tolerance, cast, compare};

use super::{DECODER, graph, only, session, tokens};

/// The decoder with a mask t28 `[T, Tk]` instead of causal attention. Nodes before it give 0 in t29
/// `[1]`, 3 in t30 `[1]`, positions of keys in t31 `[Tk]` and of queries in t28 `[T, 1]`.
fn with_mask(nodes: &str) -> String {
    let given = "  Full out=t29 shape=[1] v=0.0 scalar_type=i64
  Full out=t30 shape=[1] v=3.0 scalar_type=i64
  ARange out=t31 start=0 stop=v2 step=1 scalar_type=i64
  ExpandDims x=t14 out=t28 axis=1
";
    let text = DECODER.replace("temps=10", "temps=14").replace("causal=true", "mask=t28");
    text.replace("  Sdpa ", &format!("{given}{nodes}\n  Sdpa "))
}

/// Compares planned runs with runs node by node. Returns the names of the nodes that waited for
/// their turn, and the steps of the last plan.
fn check(nodes: &str, dtype: DType) -> (Vec<String>, usize) {
    let graph = graph(&with_mask(nodes), &dtype.to_string());
    let (mut planned, mut plain) = (session(&graph, false), session(&graph, true));
    let mut position = 0;
    for count in [1, 5, 1, 1, 4, 1, 3] {
        let inputs = tokens(position, count);
        let [a, b] = [&mut planned, &mut plain].map(|s| cast(&only(s.run(&inputs).expect("the step runs")), DType::F32));
        // Sums skip hidden keys, which changes their order.
        let relative = if dtype == DType::F32 { 1e-5 } else { 2e-2 };
        let tolerance = Tolerance { relative, absolute: relative };
        compare(&a.expect("floats"), &b.expect("floats"), tolerance)
            .unwrap_or_else(|e| panic!("{dtype}, {count} from {position}: {e}\n{nodes}"));
        position += count;
    }
    let waited = planned.steps().expect("the engine counts").node_by_node;
    (waited.iter().map(|n| n.node.to_owned()).collect(), planned.plans.steps())
}

#[test]
fn masks_of_windows_are_spans() {
    let masks = [
        // The last three keys.
        "  Subtract a=t28 b=t31 out=t31
  GreaterEqual a=t31 b=t29 out=t28
  Less a=t31 b=t30 out=t31
  LogicalAnd a=t28 b=t31 out=t28",
        // The same from the other side.
        "  Subtract a=t31 b=t28 out=t31
  LessEqual a=t31 b=t29 out=t28
  Neg x=t30 out=t30
  Less a=t30 b=t31 out=t31
  LogicalAnd a=t31 b=t28 out=t28",
        // The key's own chunk of three.
        "  LessEqual a=t31 b=t28 out=t29
  Remainder a=t28 b=t30 out=t30
  Subtract a=t28 b=t30 out=t30
  GreaterEqual a=t31 b=t30 out=t31
  LogicalAnd a=t29 b=t31 out=t28",
        // The query's own key, told by an inverted inversion.
        "  Equal a=t28 b=t31 out=t28
  LogicalNot x=t28 out=t28
  LogicalNot x=t28 out=t28",
        // All keys up to the third one, for each query alike. Queries see keys after themselves.
        "  Greater a=t30 b=t31 out=t28",
        // The same for keys three ahead, or the sum would differ.
        "  Add a=t31 b=t30 out=t31
  LessEqual a=t31 b=t30 out=t28",
    ];
    for mask in masks {
        for dtype in [DType::F32, DType::BF16] {
            let (waited, _) = check(mask, dtype);
            assert_eq!(waited, [""; 0], "{mask}");
        }
    }
}

#[test]
fn masks_that_another_node_reads_are_written() {
    // Windows of two kinds joined.
    let joined = "  Subtract a=t28 b=t31 out=t31
  Equal a=t31 b=t30 out=t30
  Equal a=t31 b=t29 out=t28
  LogicalOr a=t28 b=t30 out=t28";
    let (waited, _) = check(joined, DType::F32);
    assert_eq!(waited, ["Sdpa", "Subtract", "ARange", "Equal", "LogicalOr"]);
    // All keys but the query's own.
    let inverted = "  LessEqual a=t28 b=t31 out=t28\n  LogicalNot x=t28 out=t28\n  LogicalNot x=t28 out=t28
  Equal a=t30 b=t31 out=t30\n  LogicalNot x=t30 out=t28";
    let (waited, _) = check(inverted, DType::F32);
    assert!(waited.contains(&"Sdpa".to_owned()), "{waited:?}");
}

#[test]
fn a_window_takes_few_steps() {
    let (_, causal) = check("  GreaterEqual a=t28 b=t31 out=t28", DType::BF16);
    let window = "  Subtract a=t28 b=t31 out=t31
  GreaterEqual a=t31 b=t29 out=t28
  Less a=t31 b=t30 out=t31
  LogicalAnd a=t28 b=t31 out=t28";
    let (_, steps) = check(window, DType::BF16);
    // The second comparison and the conjunction are one step each.
    assert!(steps <= causal + 2, "{steps}, and {causal} with one comparison");
}
