//! Tensors for programs without PyTorch and NumPy.

use flambeau::tensor::Tensor;
use pyo3::prelude::*;

/// A tensor in host memory.
///
/// `Tensor(values, dtype=None)` copies nested lists of numbers, and shares the elements of arrays.
/// `numpy()` and `torch()` return the same elements without a copy. Any library with DLPack support
/// can import a tensor.
#[pyclass(frozen, name = "Tensor", module = "flambeau")]
pub(crate) struct PyTensor {
    pub(crate) tensor: Tensor,
}
