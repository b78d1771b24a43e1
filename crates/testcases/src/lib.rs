//! Conformance cases and their test harness. It locates cases, runs a case on an engine, ignores
//! tests with missing requirements, and mutates programs.
//!
//! A case is a folder with a program written by ExecuTorch or Flambeau (`model.pte`), its source
//! archive (`model.pt2`), inputs, and PyTorch's results. Small cases are committed; larger ones
//! come from archives next to the repository.

#![forbid(unsafe_code)]

mod adapter;
mod cases;
mod graphs;
mod harness;
mod method;
mod mutate;
mod run;
mod script;

use flambeau_ir::{In, Int, MetalKernel, Out, Tid};
use flambeau_tensor::DType;

pub use libtest_mimic::Trial;

pub use self::{
    adapter::low_rank_adapter,
    cases::{Case, all, archives, checkpoints, committed, families, reports, sessions},
    graphs::{history, run_with_buffer, with_buffer},
    harness::{Outcome, Requirement, per_case, run, test},
    method::{add_method, finish_program, word_tokenizer},
    mutate::{may_not_end, mutate},
    run::{LoadedCase, run_case},
    script::script,
};

/// A kernel called `mystery` from f32 `[4]` to f32 `[4]`, which no engine implements.
pub fn unknown_kernel(input: u32, output: u32) -> MetalKernel {
    MetalKernel {
        name: "mystery".into(),
        source: "out[0] = 1;".into(),
        inputs: vec![In(Tid(input))],
        outputs: vec![Out(Tid(output))],
        grid: vec![Int::Lit(1); 3],
        threadgroup: vec![Int::Lit(1); 3],
        header: None,
        input_names: vec!["x".into()],
        output_names: vec!["out".into()],
        ensure_row_contiguous: true,
        atomic_outputs: false,
        output_shapes_flat: vec![Int::Lit(4)],
        output_shape_lengths: vec![1],
        output_dtypes: vec![DType::F32],
        template_arg_names: vec![],
        template_arg_kinds: vec![],
        template_arg_values: vec![],
        init_value: None,
    }
}
