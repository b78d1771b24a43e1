//! Function schemas of PyTorch's operators: their parameters, defaults and results, and what they alias and write.
//!
//! `pytorch.txt` holds them as PyTorch prints them, one a line in the order of their names; `schemas.py` beside the sources writes
//! it. `custom.txt` holds, in the same notation, operators that PyTorch alone does not know: ExecuTorch's `mlx::` operators, those of
//! TorchAO and of Python's `operator` module, and Flambeau's own.
//!
//! ```
//! let add = flambeau_aten::schema("aten.add_.Tensor").unwrap();
//! assert_eq!(add.to_string(), "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)");
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
