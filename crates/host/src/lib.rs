//! Kernels of the outer program: operators without graph nodes, computed by the host between
//! delegates.
//!
//! A family of kernels is a module with a table of rows, and a line in `FAMILIES`. A row names an
//! operator of the schema table and states which element types it is for. The compiler uses the
//! table to find calls that can stay outside of delegates; the runtime uses it to find their
//! kernels.
//!
//! ```
//! let schema = flambeau_aten::schema("aten.nonzero.default").unwrap();
//! assert!(flambeau_host::kernel_for(schema, &[flambeau_tensor::DType::F32]).is_some());
//! ```

#![forbid(unsafe_code)]

mod arrays;
mod bits;
mod call;
mod complex;
mod creation64;
mod data;
mod detection;
mod error;
mod fft;
mod float64;
mod functions;
mod linalg;
mod lines;
mod ranked;
mod unique;

use flambeau_aten::Schema;
use flambeau_tensor::{DType, Tensor};

pub use crate::{
    arrays::broadcast,
    call::{Argument, Call},
    data::mask_indices,
    error::Error,
};

/// The element types that a kernel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    /// All that its operator takes.
    Any,
    /// Calls that read or make complex numbers.
    Complex,
    /// Calls that read or make 64-bit floats.
    Float64,
}

/// A kernel: computes the results of a call from its operands.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Namespace and name of the operator, whose overloads all have this kernel: `aten::nonzero`.
    /// Or of one overload and its out variant: `aten::view_copy.dtype`.
    name: &'static str,
    on: For,
    run: fn(&Call<'_>) -> Result<Vec<Tensor>, Error>,
}

/// The tables, the more particular first.
const FAMILIES: [&[Kernel]; 11] = [
    data::KERNELS,
    bits::KERNELS,
    complex::KERNELS,
    fft::KERNELS,
    linalg::KERNELS,
    detection::KERNELS,
    float64::KERNELS,
    creation64::KERNELS,
    ranked::KERNELS,
    functions::KERNELS,
    unique::KERNELS,
];

/// Number of tables with kernels for complex numbers. They are the first ones.
const COMPLEX_FAMILIES: usize = 4;

impl Kernel {
    const fn new(name: &'static str, run: fn(&Call<'_>) -> Result<Vec<Tensor>, Error>) -> Kernel {
        Kernel { name, on: For::Any, run }
    }

    /// Namespace and name of the operator, and its overload if the kernel is for one alone.
    fn operator(&self) -> (Option<(&str, &str)>, Option<&str>) {
        let (name, overload) = self.name.split_once('.').map_or((self.name, None), |(name, overload)| (name, Some(overload)));
        (name.split_once("::"), overload)
    }

    const fn on(self, on: For) -> Kernel {
        Kernel { on, ..self }
    }

    /// Namespace and name of the operator.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The results of a call, in order. Their element types may be wider than those that the
    /// program declares: the caller converts.
    ///
    /// # Errors
    /// If the operator does not support the operands.
    pub fn run(&self, call: &Call<'_>) -> Result<Vec<Tensor>, Error> {
        (self.run)(call)
    }
}

impl For {
    fn admits(self, dtypes: &[DType]) -> bool {
        match self {
            For::Any => true,
            For::Complex => dtypes.iter().any(|d| d.part().is_some()),
            For::Float64 => dtypes.contains(&DType::F64),
        }
    }
}

/// The kernel of an operator, or of its variant that writes to an operand, for these element types
/// of operands and results.
pub fn kernel_for(schema: &Schema, dtypes: &[DType]) -> Option<&'static Kernel> {
    let is_named = |kernel: &&Kernel| {
        let (operator, overload) = kernel.operator();
        operator == Some((schema.namespace, schema.name))
            && overload.is_none_or(|overload| schema.overload.trim_end_matches("_out") == overload)
    };
    let families = if For::Complex.admits(dtypes) { &FAMILIES[..COMPLEX_FAMILIES] } else { &FAMILIES[..] };
    families.iter().copied().flatten().filter(is_named).find(|kernel| kernel.on.admits(dtypes))
}

/// Operators that only move elements: graphs run them on integers of the same bits, whatever the
/// element type.
const MOVES: [&str; 24] = [
    "_unsafe_view",
    "alias_copy",
    "cat",
    "clone",
    "expand_copy",
    "flip",
    "gather",
    "index",
    "index_select",
    "permute_copy",
    "repeat",
    "roll",
    "select_copy",
    "slice_copy",
    "split_copy",
    "split_with_sizes_copy",
    "squeeze_copy",
    "stack",
    "t_copy",
    "transpose_copy",
    "unbind_copy",
    "unsqueeze_copy",
    "view_copy",
    "where",
];

/// Whether an operator only moves elements.
pub fn moves(schema: &Schema) -> bool {
    MOVES.contains(&schema.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_has_an_operator_with_a_schema_and_is_the_only_one_for_its_types() {
        let kernels: Vec<&Kernel> = FAMILIES.into_iter().flatten().collect();
        for (i, kernel) in kernels.iter().enumerate() {
            let named = |o: flambeau_aten::Operator| Some((o.schema().namespace, o.schema().name)) == kernel.operator().0;
            assert!(flambeau_aten::all().any(named), "{} has no schema: run crates/aten/schemas.py", kernel.name);
            let same = |other: &&&Kernel| other.name == kernel.name && other.on == kernel.on;
            assert_eq!(kernels.iter().position(|k| same(&k)), Some(i), "{} has two kernels for {:?}", kernel.name, kernel.on);
        }
    }

    #[test]
    fn element_types_choose_the_kernel() {
        let check = |target: &str, dtypes: &[DType], found: bool| {
            let schema = flambeau_aten::schema(target).unwrap();
            assert_eq!(kernel_for(schema, dtypes).is_some(), found, "{target} {dtypes:?}");
        };
        check("aten.nonzero.out", &[DType::F32, DType::I64], true);
        check("aten.abs.default", &[DType::F32], false);
        check("aten.abs.out", &[DType::C64, DType::F32], true);
        check("aten.sum.dim_IntList", &[DType::F32, DType::F64], true);
        check("aten.sum.dim_IntList", &[DType::F32], false);
    }
}
