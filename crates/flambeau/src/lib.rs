//! Flambeau: ExecuTorch's MLX delegate in Rust.
//!
//! It compiles PyTorch programs that `torch.export` captured into ExecuTorch `.pte` files whose work is delegated to MLX, and runs
//! such files. This crate only re-exports the parts; depend on it, not on them.
//!
//! ```no_run
//! use flambeau::runtime::{LoadOptions, Program};
//!
//! # fn main() -> Result<(), flambeau::runtime::Error> {
//! let engine = flambeau::engines(None, false).get("cpu")?;
//! let program = Program::open("model.pte")?;
//! let mut forward = program.method("forward", &engine, &LoadOptions::default())?;
//! let x = flambeau::tensor::Tensor::zeros(flambeau::tensor::DType::F32, &[1, 4]).expect("a small tensor");
//! let outputs = forward.run(&[x.into()])?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

use std::sync::Arc;

/// From exported programs to `.pte` files.
pub use flambeau_compile as compile;
/// The CPU engine.
pub use flambeau_cpu as cpu;
/// Nodes, graphs, their checker, and the seam between programs and engines.
pub use flambeau_ir as ir;
/// From PyTorch calls to nodes.
pub use flambeau_lower as lower;
/// The MLX engine, which needs an installed MLX at run time.
pub use flambeau_mlx as mlx;
/// The archives that `torch.export.save` writes.
pub use flambeau_pt2 as pt2;
/// Generation loops.
pub use flambeau_runners as runners;
/// Programs and methods.
pub use flambeau_runtime as runtime;
/// Element types, shapes and tensors.
pub use flambeau_tensor as tensor;
/// Tokenizers, chat templates and sampling.
pub use flambeau_text as text;
/// The bytes of `.pte` and `.ptd` files.
pub use flambeau_wire as wire;
/// Model families: checkpoints to exported programs.
pub use flambeau_zoo as zoo;

/// The engines of this build.
///
/// `threads` bounds the CPU engine, the caller's thread included; `None` means one per core. With `profile`, sessions measure the
/// time of each node.
pub fn engines(threads: Option<usize>, profile: bool) -> runtime::Engines {
    runtime::Engines::new().with(Arc::new(cpu::CpuEngine::new(threads).with_profile(profile)))
}
