//! Finds the first node whose result differs: between two engines, two programs, or a program and
//! recorded tensors.
//!
//! [`NodeByNode`] runs every node of a program alone, so that an [`Observer`] sees all results.
//! [`check`](fn@check) gives the operands of each node to a second engine, which makes errors of
//! one node visible without those of the nodes before it. It also compares whole runs. Where only
//! these differ, it finds the smallest number of nodes that differ when they run together.
//! [`record`] keeps the results of all nodes, and [`compare`] compares two recordings. [`align`]
//! finds nodes of two graphs that correspond.

mod align;
mod check;
mod difference;
mod engine;
mod inputs;
mod part;
mod record;
mod walk;

pub use self::{
    align::align,
    check::{Verdict, check},
    difference::{Difference, rounding},
    engine::NodeByNode,
    inputs::{InputError, random_inputs},
    part::{Contents, Part},
    record::{RecordedNode, Recording, ResultPlace, compare, compare_outputs, compare_with_recorded, record},
    walk::{GraphRun, NodeRun, Observer, Walk, readers, run_part},
};
