//! Values that every other crate speaks about: element types, shapes, symbolic sizes, shared bytes,
//! tensors.
//!
//! A [`Tensor`] is row-major and immutable once shared; strided views are an engine's private
//! affair. Bytes are shared by reference count ([`bytes::Bytes`]), so a weight that is mapped from
//! a file is never copied on its way to a kernel.
//!
//! This crate executes nothing and reads no file: the case-file format in [`tensor_list`] works on
//! byte slices.

#![forbid(unsafe_code)]

mod buffer;
mod cast;
mod codes;
mod compare;
mod distance;
mod dtype;
mod expr;
mod float8;
pub mod gguf;
mod real;
mod shape;
mod tensor;
pub mod tensor_list;
mod window;

pub use buffer::AlignedBytes;
pub use bytes::Bytes;
pub use cast::cast;
pub use codes::{e4m3, pack_codes};
pub use compare::{Mismatch, Tolerance, compare};
pub use distance::{Distance, distance};
pub use dtype::{Bool, DType, DTypeClass, Element};
pub use expr::{Atom, Expr, Symbol};
pub use half::{bf16, f16};
pub use real::{Real, Rounding};
pub use shape::{Shape, broadcast, normalize_axis, numel, row_major_strides};
pub use tensor::{Error, Tensor};
pub use window::WindowAxis;
