//! ExecuTorch programs: `.pte` files.

mod check;
mod encode;
mod header;
mod plan;
mod program;
mod read;
mod schema;
mod write;

pub use program::*;
pub use read::read_program;
pub use write::ProgramWriter;

#[cfg(test)]
mod tests;
