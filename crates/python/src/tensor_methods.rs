//! Python's methods of [`PyTensor`].

use pyo3::{exceptions::PyValueError, prelude::*, types::PyTuple};

use crate::{convert, dlpack, elements, errors::InputError, tensor::PyTensor};

#[pymethods]
impl PyTensor {
    #[new]
    #[pyo3(signature = (values, dtype=None))]
    fn new(values: &Bound<'_, PyAny>, dtype: Option<&str>) -> PyResult<PyTensor> {
        let unknown = |name: &str| PyValueError::new_err(format!("no element type is called {name}"));
        let wanted = dtype.map(|name| elements::of_numpy(name).ok_or_else(|| unknown(name))).transpose()?;
        if let Some(tensor) = convert::tensor_of(values)? {
            let cast = |dtype| flambeau::tensor::cast(&tensor, dtype).map_err(|error| InputError::new_err(error.to_string()));
            return Ok(PyTensor { tensor: wanted.map_or_else(|| Ok(tensor.clone()), cast)? });
        }
        let dtype = wanted.map_or_else(|| elements::natural(values), Ok)?;
        Ok(PyTensor { tensor: elements::from_nested(values, dtype)? })
    }

    /// Sizes, outermost first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor.shape())
    }

    /// Name of the element type, such as `float32` or `bfloat16`.
    #[getter]
    fn dtype(&self) -> &'static str {
        elements::name(self.tensor.dtype())
    }

    /// Size of all elements in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.tensor.bytes().len()
    }

    /// The elements as nested lists, or as a single number.
    fn tolist(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        elements::to_nested(py, &self.tensor)
    }

    /// The elements as a NumPy array. Types that NumPy lacks, such as `bfloat16`, need the package
    /// ml_dtypes.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let missing =
            || PyValueError::new_err(format!("{} needs NumPy, and types that it lacks the package ml_dtypes", slf.get().dtype()));
        convert::to_numpy(slf.as_any())?.ok_or_else(missing)
    }

    /// The elements as a PyTorch tensor.
    fn torch<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        convert::to_torch(py, &self.tensor)
    }

    #[pyo3(signature = (dtype=None, copy=None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let array = PyTensor::numpy(slf)?;
        match dtype {
            Some(dtype) => array.call_method1("astype", (dtype,)),
            None if copy == Some(true) => array.call_method0("copy"),
            None => Ok(array),
        }
    }

    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<&Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = (stream, dl_device);
        let versioned = max_version.is_some_and(|(major, _)| major >= 1);
        match copy {
            Some(true) => dlpack::export(py, &convert::exclusive(self.tensor.clone(), &[]), versioned),
            _ => dlpack::export(py, &self.tensor, versioned),
        }
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        (1, 0)
    }

    fn __len__(&self) -> PyResult<usize> {
        let first = self.tensor.shape().first().copied();
        first.ok_or_else(|| pyo3::exceptions::PyTypeError::new_err("a tensor without dimensions has no length"))
    }

    fn __repr__(&self) -> String {
        format!("Tensor(shape={:?}, dtype={})", self.tensor.shape(), self.dtype())
    }
}
