//! The nodes, by family.

mod attention;
mod control;
mod conv;
mod create;
mod elementwise;
mod grouped;
pub(crate) mod index;
mod linalg;
pub(crate) mod metal;
pub(crate) mod norm;
mod quantized;
pub(crate) mod random;
mod reduce;
mod scalar;
pub(crate) mod shape;
mod sort;
mod update;

pub(crate) use index::integers;
