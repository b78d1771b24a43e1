//! The MLX delegate payload: a 24-byte header, and a FlatBuffer with one [`Graph`].

mod field;
mod graph;
mod header;
mod node;
mod schema;

use flambeau_ir::{Checked, Graph};

use crate::{
    error::Error,
    flat::{Flat, FlatWriter},
};

const FORMAT: &str = "MLX payload";

/// Reads a payload. [`flambeau_ir::check()`] verifies the graph's indices later.
///
/// # Errors
/// If the bytes are not a payload, violate the encoding, or exceed a limit. Offsets count from the
/// payload's first byte.
pub fn decode(payload: &[u8]) -> Result<Graph, Error> {
    let flat = Flat::new(FORMAT, header::strip(payload)?, header::SIZE as u64);
    graph::read(flat.root()?)
}

/// Writes a payload. Its length is a multiple of 16.
pub fn encode(graph: &Checked) -> Vec<u8> {
    encode_unchecked(graph)
}

fn encode_unchecked(graph: &Graph) -> Vec<u8> {
    let mut out = FlatWriter::default();
    let root = graph::write(&mut out, graph);
    header::wrap(&out.finish(root, None))
}

#[cfg(test)]
mod tests;
