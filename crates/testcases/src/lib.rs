//! Conformance cases and the harness that names them: where cases are, how one runs on an engine, tests that are ignored where what
//! they need is missing, and programs that differ from the cases a little.
//!
//! A case is a folder with a program that ExecuTorch or Flambeau wrote (`model.pte`), the archive that it was made of (`model.pt2`),
//! its inputs, and PyTorch's results. Small ones are a part of the repository; archives of more may lie beside it.

#![forbid(unsafe_code)]

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
    cases::{Case, all, archives, checkpoints, committed, families, reports, sessions},
    graphs::{history, run_with_buffer, with_buffer},
    harness::{Outcome, Requirement, per_case, run, test},
    method::{add_method, finish_program, word_tokenizer},
    mutate::{may_not_end, mutate},
    run::{LoadedCase, run_case},
    script::script,
};

/// A kernel from f32 `[4]` to f32 `[4]` that no engine knows, by the name `mystery`.
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
