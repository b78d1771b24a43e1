//! Function schemas of PyTorch's operators: parameters, defaults, results, aliases and writes.
//!
//! `pytorch.txt` holds one schema per line in PyTorch's notation, sorted by name; `schemas.py` in
//! the crate's folder writes it. `custom.txt` has the same notation and holds operators from
//! outside PyTorch. They come from ExecuTorch (`mlx::`), TorchAO, Python's `operator` module and
//! Flambeau.
//!
//! ```
//! let add = flambeau_aten::schema("aten.add_.Tensor").unwrap();
//! let text = "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)";
//! assert_eq!(add.to_string(), text);
//! assert_eq!(add.functional().unwrap().target(), "aten.add.Tensor");
//! ```

#![forbid(unsafe_code)]

mod parse;
mod schema;
mod table;
mod view;

pub use schema::{Alias, Kind, Literal, Param, Return, Schema, Type};
pub use table::{Operator, all, schema};
pub use view::Inverse;
