//! The MLX graph: delegate programs, the checker, and the interface of engines.
//!
//! A [`Graph`] consists of chains of [`Node`]s over numbered slots. Tensor slots have five classes
//! ([`SlotClass`]), and value slots hold 32-bit integers. Every node is functional: it reads all
//! operands, then binds new tensors to its result slots. `out` may be an operand, and temporary
//! slots are reused for tensors of other shapes. Mutable buffers keep their contents from the last
//! run.
//!
//! Only [`check`](fn@check) creates a [`Checked`] graph, and only a checked graph is executed or
//! written. The checker proves every index of the file. Shapes that depend on the call are proved
//! by the same rules ([`infer`]) once its sizes are known.
//!
//! A node is defined by its row in the table ([`for_each_node`]) and its rule ([`Infer`]). Slot
//! walks, the text form ([`text`]), JSON ([`json`]) and the codec of the wire crate are generated
//! from the row. The compiler, the checker and engines share the rule. Fused nodes have
//! decompositions into primitive nodes ([`decompose`]).
//!
//! This crate neither reads files nor executes graphs.
//!
//! ```
//! let graph: flambeau_ir::Graph = "\
//! slots inputs=1 outputs=1 temps=1
//! main 0
//! input t0
//! output t1
//! meta t0 bf16[1..8,64]
//! meta t1 bf16[1..8,64]
//! chain 0
//!   Sigmoid x=t0 out=t2
//!   Multiply a=t0 b=t2 out=t1
//! "
//! .parse()?;
//! let checked = flambeau_ir::check(graph)?;
//! assert_eq!(checked.results()[0].to_string(), "bf16[?0,64]");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod check;
mod conv;
mod cost;
pub mod decompose;
pub mod engine;
pub mod field;
pub mod graph;
pub mod infer;
pub mod json;
pub mod kv;
pub mod limits;
mod metal;
mod node;
#[macro_use]
mod nodes;
#[cfg(test)]
mod testing;
pub mod text;
pub mod work;

pub use check::{CheckError, Checked, Content, check};
pub use conv::Convolution;
pub use cost::{Cost, Effect};
pub use field::{
    ChainId, Field, Float, In, InOut, InVid, Index, Int, Out, OutVid, QuantMode, Role, Slot, SlotRef, Tid, Vid, VidOrTid,
};
pub use graph::{Chain, Graph, MetaDim, SlotClass, SlotCounts, TensorMeta};
pub use infer::{Dims, Infer, InferError, ShapeCx, Spec, promote, to_float};
pub use metal::{GgufBlock, KnownKernel};
pub use node::*;
