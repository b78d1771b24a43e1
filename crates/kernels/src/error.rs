//! Errors of kernels: refused operands and parameters.

/// Reason why a kernel did not run. The output is then unchanged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Some index of a view would be outside its data.
    #[error("a view of shape {shape:?} reaches outside its {len} elements")]
    View {
        /// The view's sizes.
        shape: Vec<usize>,
        /// Elements in the slice.
        len: usize,
    },
    /// A writable view in which two indices may name one element.
    #[error("a writable view of shape {shape:?} may overlap itself")]
    Overlap {
        /// The view's sizes.
        shape: Vec<usize>,
    },
    /// A size differs from the size required by the other operands.
    #[error("{what}: expected {expected}, found {found}")]
    Size {
        /// Operand and quantity.
        what: &'static str,
        /// The size required by the other operands.
        expected: usize,
        /// The given size.
        found: usize,
    },
    /// A shape does not broadcast to another.
    #[error("{what}: shape {found:?} does not broadcast to {expected:?}")]
    Broadcast {
        /// The operand.
        what: &'static str,
        /// The target shape.
        expected: Vec<usize>,
        /// The operand's shape.
        found: Vec<usize>,
    },
    /// A parameter is outside its domain.
    #[error("{what} must not be {found}")]
    Parameter {
        /// The parameter.
        what: &'static str,
        /// Its value.
        found: i64,
    },
}

/// `Ok` where `expected == found`.
pub(crate) fn same(what: &'static str, expected: usize, found: usize) -> Result<(), Error> {
    if expected == found { Ok(()) } else { Err(Error::Size { what, expected, found }) }
}
