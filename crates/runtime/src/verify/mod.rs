//! Finds the first node with a different result: between two engines, two programs, or a program
//! and recorded tensors.
//!
//! [`NodeByNode`] runs every node of a program alone, so an [`Observer`] sees all results.
//! [`check`](fn@check) gives the operands of each node to a second engine. Errors of one node then
//! show without the errors of earlier nodes. It also compares whole runs. If only whole runs
//! differ, it finds the smallest group of nodes that differs. [`record`] keeps the results of all
//! nodes. [`compare`] compares two recordings. [`align`] finds corresponding nodes of two graphs.

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
