//! CPU kernels over plain slices and strided views.
//!
//! Kernels work on shapes, strides and element types, independently of graphs. They take a [`Pool`]
//! with the threads and the instruction set. They check the sizes of their operands, and write all
//! of their output or nothing. Storage may be `f16` or `bf16`; sums run in `f32`. Work is divided
//! by shape alone, so results are bit-identical for every number of threads. They may differ in the
//! last bits between instruction sets.

pub mod attention;
pub mod cast;
pub mod conv;
mod convert;
mod element_cast;
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
