//! The nodes, by family.

pub(crate) mod attention;
mod control;
mod conv;
pub(crate) mod copy;
mod create;
mod elementwise;
mod index;
mod int_math;
pub(crate) mod linalg;
mod metal;
mod norm;
pub(crate) mod quantized;
pub(crate) mod random;
mod reduce;
mod scalar;
pub(crate) mod shape;
mod sort;
pub(crate) mod update;
mod walk;

pub(crate) use crate::dtypes::{any_dtype, bits_dtype, float_dtype, int_dtype, wide, wide_dtype};
