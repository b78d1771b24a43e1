//! CPU kernels over plain slices and strided views.
//!
//! Kernels know shapes, strides and element types, and nothing of graphs. They take a [`Pool`], which carries the threads and
//! the instruction set, check the sizes of their operands, and write all of their output or nothing. Storage may be `f16` or
//! `bf16`; sums run in `f32`. Work is cut by shape alone, so a result is the same, bit for bit, for every number of threads; it
//! may differ in the last bits between instruction sets.

pub mod attention;
pub mod cast;
pub mod conv;
mod convert;
pub mod elementwise;
mod error;
pub mod gemm;
pub mod linear;
pub mod math;
pub mod norm;
pub mod order;
mod pool;
pub mod quant;
pub mod random;
pub mod reduce;
pub mod rope;
pub mod simd;
#[cfg(test)]
mod testing;
pub mod view;

pub use error::Error;
pub use flambeau_tensor::{Bool, DType, Element, bf16, f16};
pub use gemm::FloatView;
pub use pool::Pool;
pub use simd::{Float, IsaKind};
pub use view::{Strides, View, ViewMut};
