//! The nodes, by family.

mod attention;
mod control;
mod conv;
mod create;
mod elementwise;
mod grouped;
mod index;
mod linalg;
mod metal;
pub(crate) mod norm;
mod quantized;
mod random;
mod reduce;
mod scalar;
pub(crate) mod shape;
mod sort;
mod update;
