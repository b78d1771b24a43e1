//! Compiled programs return PyTorch's results.

use flambeau_compile::{Options, compile};
use flambeau_ir::Node;
use flambeau_runtime::Value;

use crate::support::{check_runs, compiled, engine, exported, method, runs};

fn check(name: &str) {
    let bytes = compiled(name, &Options { require_full: true, ..Options::default() }).unwrap_or_else(|e| panic!("{name}: {e}"));
    check_runs(&mut method(bytes, "forward"), name);
}

#[test]
fn branches_on_tensors_and_on_sizes() {
    check("cond_tensor");
    check("cond_size");
}

#[test]
fn scans_swap_what_they_carry() {
    check("scan");
}

#[test]
fn counted_loops_and_maps_are_scans() {
    check("loop");
    check("loop_by_data");
    check("map");
}

#[test]
fn only_what_shares_memory_is_written() {
    check("aliases");
}

#[test]
fn writes_through_views_reach_buffers_and_stale_views() {
    check("writes");
    check("writes_aten");
}

#[test]
fn caches_of_both_dialects() {
    check("cache");
    check("kv_train");
    check("kv_aten");
}

#[test]
fn experts_are_chosen_by_token() {
    check("experts");
    check("experts_dense");
}

#[test]
fn recurrences_of_200_steps() {
    check("lstm_200");
    check("lstm_200_bf16");
    check("gru_200");
    check("lstm_both_ways");
}

#[test]
fn attention_rows_without_keys_are_zero() {
    check("padding");
    check("padding_bf16");
}

#[test]
fn weights_of_2_to_8_bits() {
    check("widths_f32");
    check("widths_f16");
    check("widths_bf16");
}

#[test]
fn floats_read_out_of_tensors_stay_tensors() {
    check("item");
}

#[test]
fn slots_are_reused_without_harm() {
    check("chain");
}

#[test]
fn folded_tables_keep_their_values() {
    check("layers");
}

/// Compiles a fixture and requires bit-identical results.
fn check_exact(name: &str) {
    let bytes = compiled(name, &Options { require_full: true, ..Options::default() }).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut method = method(bytes, "forward");
    for (inputs, expected) in runs(name) {
        let inputs: Vec<Value> = inputs.into_iter().map(Value::Tensor).collect();
        let found = method.run(&inputs).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(found.len(), expected.len(), "{name}");
        for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let Value::Tensor(found) = found else { panic!("{name}, result {i} is no tensor") };
            assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()), "{name}, result {i}");
            let differ = found.bytes().iter().zip(expected.bytes()).position(|(a, b)| a != b);
            assert_eq!(differ, None, "{name}, result {i}: first byte that differs");
        }
    }
}

#[test]
fn resampled_bytes_are_pytorchs() {
    check_exact("resized");
    check_exact("shrunk");
}

#[test]
fn grids_of_halves_are_placed_as_pytorch_rounds() {
    check_exact("sampled_f16");
    check_exact("sampled_bf16");
}

#[test]
fn halves_are_rounded_where_pytorch_rounds_them() {
    check("rounded_f16");
    check("rounded_bf16");
}

#[test]
fn integers_wrap_around_before_they_become_floats() {
    check_exact("wrapped");
}

fn count(name: &str, is: fn(&Node) -> bool) -> usize {
    let program = exported(name);
    let output = compile(&[("forward", &program)], &Options::default(), &*engine()).unwrap();
    output.graphs().map(|g| g.chains.iter().flatten().filter(|n| is(n)).count()).sum()
}

#[test]
fn caches_are_updated_in_place() {
    for name in ["cache", "kv_train", "kv_aten"] {
        assert_eq!(count(name, |n| matches!(n, Node::SliceUpdate(_))), 1, "{name}");
        assert_eq!(count(name, |n| matches!(n, Node::IdCopy(_))), 0, "{name}");
    }
}

#[test]
fn what_depends_on_no_input_is_folded() {
    assert_eq!(count("layers", |n| matches!(n, Node::Sin(_))), 0);
}

#[test]
fn conditions_become_if_nodes_and_scans_scan_nodes() {
    for (name, ifs, scans) in [("cond_tensor", 1, 0), ("cond_size", 1, 0), ("scan", 0, 1)] {
        assert_eq!(count(name, |n| matches!(n, Node::If(_))), ifs, "{name}");
        assert_eq!(count(name, |n| matches!(n, Node::Scan(_))), scans, "{name}");
    }
}
