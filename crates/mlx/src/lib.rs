//! The MLX engine: checked graphs on libmlx, which is found and loaded at run time.
//!
//! Building this crate does not need MLX. [`Search`] finds an installed MLX. [`Shim`] compiles this
//! crate's C interface (`shim/`) against its headers, once per version, and caches the result. It
//! takes an interface that was compiled ahead instead, where there is one. [`MlxEngine`] loads it.
//!
//! Modules depend only on modules above them in this list:
//! - `ffi`: the loaded shim behind safe types; the only unsafe code.
//! - `owner`: one thread per device owns its arrays and works through a queue. Any number of
//!   sessions and threads take turns without locks.
//! - `values`, `open`, `keys`, `kv`: contents of slots, open integers, random keys, the cache.
//! - `cx`: the context of a node: graph, device, and slots.
//! - `eval`, `ops`: the nodes, by family. A node without an `Eval` does not build. Nodes extend
//!   MLX's lazy graph; a run computes its outputs and buffers together at the end.
//! - `fused`, `main_chain`, `trace`: kernels for runs of nodes, runs of the main chain, and a run
//!   as a compiled function, for repeated signatures.
//! - `state`: a graph with its buffers. A buffer has one handle, so that MLX updates its storage
//!   in place.
//! - `pipelined`, `together`: steps before their tokens are read, and several sessions of one graph
//!   in one run. It joins their rows (`rows`) where a node treats rows independently.
//! - `session`, `engine`: the traits of engines.

#![deny(unsafe_code)]

mod batch;
mod counts;
mod cuda;
mod cx;
mod engine;
mod error;
mod eval;
mod ffi;
mod fused;
mod keys;
mod kv;
mod locate;
mod main_chain;
mod open;
mod ops;
mod owner;
mod pipelined;
mod probe;
mod profile;
mod residency;
mod rows;
mod session;
mod shared;
mod shim;
mod state;
mod tokens;
mod trace;
mod uploads;
mod values;

use std::{ffi::c_int, fmt, str::FromStr};

pub use engine::{MemoryUse, MlxEngine, Options};
pub use error::Error;
pub use fused::{Region, SingleNode, StepPlan};
pub use locate::{Install, Search};
pub use shim::{Interface, Shim, shim_digest, shim_sources};

/// A device of MLX.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Device {
    /// MLX's CPU backend.
    #[default]
    Cpu,
    /// A GPU, by index: Metal on a Mac, CUDA elsewhere.
    Gpu(u32),
}

impl Device {
    fn parts(self) -> (c_int, c_int) {
        match self {
            Device::Cpu => (0, 0),
            Device::Gpu(index) => (1, c_int::try_from(index).unwrap_or(c_int::MAX)),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
            Device::Gpu(index) => write!(f, "gpu:{index}"),
        }
    }
}

impl FromStr for Device {
    type Err = Error;

    /// `cpu`, `gpu` or `gpu:N`.
    fn from_str(text: &str) -> Result<Device, Error> {
        let refuse = || Error::Device { device: text.to_owned(), what: "expected cpu, gpu or gpu:N".into() };
        match text.split_once(':') {
            None if text == "cpu" => Ok(Device::Cpu),
            None if text == "gpu" => Ok(Device::Gpu(0)),
            Some(("gpu", index)) => index.parse().map(Device::Gpu).map_err(|_| refuse()),
            _ => Err(refuse()),
        }
    }
}
