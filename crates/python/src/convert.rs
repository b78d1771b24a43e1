//! Conversion of Python values to a method's arguments, and of results to Python values.

use bytes::Bytes;
use flambeau::{
    runtime::{Value, ValueKind, ValueSpec},
    tensor::{AlignedBytes, DType, Tensor},
};
use pyo3::{
    exceptions::PyBufferError,
    intern,
    prelude::*,
    sync::PyOnceLock,
    types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple},
};

use crate::{
    dlpack::{self, Import},
    elements,
    errors::InputError,
    tensor::PyTensor,
};

/// PyTorch's type and functions, once the program has imported PyTorch.
struct Torch {
    tensor: Py<PyAny>,
    to_dlpack: Py<PyAny>,
    from_dlpack: Py<PyAny>,
}

static TORCH: PyOnceLock<Torch> = PyOnceLock::new();

/// PyTorch, if the program has imported it. It is not imported here, because an import takes
/// seconds.
fn torch(py: Python<'_>) -> PyResult<Option<&Torch>> {
    if let Some(torch) = TORCH.get(py) {
        return Ok(Some(torch));
    }
    let Some(module) = imported(py, "torch")? else { return Ok(None) };
    // While another thread imports PyTorch, attributes are missing.
    let (Ok(tensor), Ok(native)) = (module.getattr("Tensor"), module.getattr("_C")) else { return Ok(None) };
    let (Ok(to), Ok(from)) = (native.getattr("_to_dlpack"), native.getattr("_from_dlpack")) else { return Ok(None) };
    Ok(Some(TORCH.get_or_init(py, || Torch { tensor: tensor.unbind(), to_dlpack: to.unbind(), from_dlpack: from.unbind() })))
}

/// A module from `sys.modules`; `None` if the program has not imported it.
fn imported<'py>(py: Python<'py>, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
    let modules = py.import("sys")?.getattr("modules")?.cast_into::<PyDict>()?;
    Ok(modules.get_item(name)?.filter(|module| !module.is_none()))
}

/// Arguments of a method. A list or tuple has one item per input; any other object is the only
/// argument.
pub(crate) fn arguments(inputs: &Bound<'_, PyAny>, specs: &[ValueSpec], method: &str) -> PyResult<Vec<Value>> {
    let one =
        |(i, object): (usize, Bound<'_, PyAny>)| argument(&object, specs.get(i)).map_err(|error| placed(&object, i, method, error));
    if let Ok(list) = inputs.cast::<PyTuple>() {
        return list.iter().enumerate().map(one).collect();
    }
    if let Ok(list) = inputs.cast::<PyList>() {
        return list.iter().enumerate().map(one).collect();
    }
    if !is_array(inputs)? && inputs.hasattr(intern!(inputs.py(), "__getitem__"))? {
        return inputs.try_iter()?.enumerate().map(|(i, object)| one((i, object?))).collect();
    }
    Ok(vec![one((0, inputs.clone()))?])
}

/// Adds the input's index and the method's name to an error.
fn placed(object: &Bound<'_, PyAny>, index: usize, method: &str, error: PyErr) -> PyErr {
    let py = object.py();
    if error.is_instance_of::<InputError>(py) || error.is_instance_of::<PyBufferError>(py) {
        return InputError::new_err(format!("Input {index} for method {method} {}", error.value(py)));
    }
    error
}

/// Whether an object is a single array instead of a list of inputs.
fn is_array(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    Ok(object.is_instance_of::<PyTensor>()
        || object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyDict>()
        || object.hasattr(intern!(py, "__dlpack__"))?
        || object.hasattr(intern!(py, "__array_interface__"))?)
}

fn argument(object: &Bound<'_, PyAny>, spec: Option<&ValueSpec>) -> PyResult<Value> {
    if let Some(tensor) = tensor_of(object)? {
        return Ok(Value::Tensor(tensor));
    }
    let expected = spec.and_then(ValueSpec::tensor).map(|spec| spec.dtype);
    if object.is_none() {
        return Ok(Value::None);
    }
    if let (Some(dtype), true) = (expected, object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()) {
        return Ok(Value::Tensor(elements::from_nested(object, dtype)?));
    }
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(Value::Bool(value.is_true()));
    }
    if object.is_instance_of::<PyInt>() {
        return Ok(Value::Int(object.extract()?));
    }
    if object.is_instance_of::<PyFloat>() {
        return Ok(Value::Double(object.extract()?));
    }
    if let (Ok(text), Some(ValueKind::Fixed(_))) = (object.cast::<PyString>(), spec.map(|spec| &spec.kind)) {
        return Ok(Value::String(text.to_str()?.to_owned()));
    }
    Err(InputError::new_err(format!("has the Unsupported python type {}", object.get_type().str()?)))
}

/// Reads an object as a tensor; `None` if it is not one.
///
/// # Errors
/// Fails for a tensor that cannot be read here.
pub(crate) fn tensor_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    let py = object.py();
    if let Ok(tensor) = object.cast::<PyTensor>() {
        return Ok(Some(tensor.get().tensor.clone()));
    }
    if let Some(torch) = torch(py)? {
        let class = torch.tensor.bind(py);
        if object.get_type().is(class) || object.is_instance(class)? {
            return of_torch(object, torch).map(Some);
        }
    }
    if object.hasattr(intern!(py, "__dlpack__"))? {
        match capsule(object).and_then(|capsule| dlpack::import(&capsule)) {
            Ok(Import::Tensor(tensor)) => return Ok(Some(tensor)),
            Ok(Import::Elsewhere) => {
                return Err(InputError::new_err("lies on a device that the host cannot read; copy it to the CPU"));
            }
            Err(error) => {
                let array = of_array_interface(object)?;
                return array.map(Some).ok_or(error);
            }
        }
    }
    of_array_interface(object)
}

/// The DLPack capsule of an object, versioned if its library supports it. Only the versioned form
/// can mark elements as read-only.
fn capsule<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let options = PyDict::new(py);
    options.set_item("max_version", (1, 0))?;
    let name = intern!(py, "__dlpack__");
    match object.call_method(name, (), Some(&options)) {
        Err(error) if error.is_instance_of::<pyo3::exceptions::PyTypeError>(py) => object.call_method0(name),
        other => other,
    }
}

fn of_torch(object: &Bound<'_, PyAny>, torch: &Torch) -> PyResult<Tensor> {
    let py = object.py();
    let to_dlpack = torch.to_dlpack.bind(py);
    let is_lazy =
        object.call_method0(intern!(py, "is_neg"))?.is_truthy()? || object.call_method0(intern!(py, "is_conj"))?.is_truthy()?;
    if !is_lazy
        && let Ok(capsule) = to_dlpack.call1((object,))
        && let Import::Tensor(tensor) = dlpack::import(&capsule)?
    {
        return Ok(tensor);
    }
    // The tensor is on another device, has a lazy sign or conjugation, or has a layout or subclass
    // without its own elements.
    let device = object.getattr("device")?.str()?.to_string();
    if device == "meta" {
        let text = "is on device meta, which has no elements; only CPU and CUDA tensors, and others that can be copied to the CPU, can be read";
        return Err(InputError::new_err(text));
    }
    let plain = || -> PyResult<Bound<'_, PyAny>> {
        let plain = object.call_method0("detach")?.call_method0("cpu")?;
        let plain = if plain.getattr("layout")?.str()? == "torch.strided" { plain } else { plain.call_method0("to_dense")? };
        to_dlpack.call1((plain.call_method0("resolve_conj")?.call_method0("resolve_neg")?,))
    };
    let capsule = plain().map_err(|error| InputError::new_err(format!("cannot be read: {}", error.value(py))))?;
    match dlpack::import(&capsule)? {
        Import::Tensor(tensor) => Ok(tensor),
        Import::Elsewhere => Err(InputError::new_err(format!("is on device {device}; only CPU and CUDA tensors can be read"))),
    }
}

/// Reads an object by its `__array_interface__`. NumPy arrays of foreign types, such as
/// ml_dtypes, have one.
fn of_array_interface(object: &Bound<'_, PyAny>) -> PyResult<Option<Tensor>> {
    let py = object.py();
    if !object.hasattr(intern!(py, "__array_interface__"))? {
        return Ok(None);
    }
    let unknown = || -> PyResult<PyErr> {
        let dtype = object.getattr("dtype").and_then(|dtype| dtype.str().map(|text| text.to_string())).unwrap_or_default();
        Ok(InputError::new_err(format!("has elements of type {dtype}, which do not exist here")))
    };
    let name = object.getattr("dtype").and_then(|dtype| dtype.getattr("name")?.extract::<String>()).unwrap_or_default();
    let Some(dtype) = elements::of_numpy(&name) else { return Err(unknown()?) };
    let numpy = py.import("numpy")?;
    let array = numpy.call_method1("ascontiguousarray", (object,))?;
    let array = array.call_method1("reshape", (object.getattr("shape")?,))?;
    if !array.getattr("dtype")?.getattr("isnative")?.is_truthy()? {
        return Err(InputError::new_err("has bytes in the order of another machine"));
    }
    let interface = array.getattr("__array_interface__")?;
    let (address, _): (usize, bool) = interface.get_item("data")?.extract()?;
    let shape: Vec<usize> = interface.get_item("shape")?.extract()?;
    let len: usize = array.getattr("nbytes")?.extract()?;
    let bytes = if len == 0 { Bytes::new() } else { dlpack::borrowed(&array, address, len) };
    let tensor = Tensor::new(dtype, &shape, bytes).map_err(|error| InputError::new_err(error.to_string()))?;
    Ok(Some(tensor.aligned()))
}

/// Results as Python values. No tensor shares elements with `inputs`, with another result or with
/// the method.
pub(crate) fn results(py: Python<'_>, outputs: Vec<Value>, inputs: &[(usize, usize)]) -> PyResult<Vec<Py<PyAny>>> {
    outputs.into_iter().map(|value| result(py, value, inputs)).collect()
}

fn result(py: Python<'_>, value: Value, inputs: &[(usize, usize)]) -> PyResult<Py<PyAny>> {
    Ok(match value {
        Value::Tensor(tensor) => lend(py, exclusive(tensor, inputs))?.unbind(),
        Value::Int(v) => v.into_pyobject(py)?.into_any().unbind(),
        Value::Bool(v) => PyBool::new(py, v).to_owned().into_any().unbind(),
        Value::Double(v) => PyFloat::new(py, v).into_any().unbind(),
        Value::String(v) => PyString::new(py, &v).into_any().unbind(),
        Value::None => py.None(),
    })
}

/// Memory ranges of tensors: addresses of the first byte and after the last byte.
pub(crate) fn ranges(values: &[Value]) -> Vec<(usize, usize)> {
    let tensors = values.iter().filter_map(Value::as_tensor);
    tensors.map(|t| (t.bytes().as_ptr().addr(), t.bytes().as_ptr().addr() + t.bytes().len())).collect()
}

/// A tensor with exclusive elements: the same tensor if its elements are unshared, else a copy.
pub(crate) fn exclusive(tensor: Tensor, others: &[(usize, usize)]) -> Tensor {
    let start = tensor.bytes().as_ptr().addr();
    let overlaps = others.iter().any(|&(from, to)| start < to && from < start + tensor.bytes().len());
    if tensor.bytes().is_unique() && !overlaps {
        return tensor;
    }
    let bytes = AlignedBytes::copy_of(tensor.bytes()).into_bytes();
    Tensor::new(tensor.dtype(), tensor.shape(), bytes).unwrap_or(tensor)
}

/// A tensor with exclusive elements as a PyTorch tensor if the program has imported PyTorch.
/// Otherwise as a NumPy array if NumPy is installed and supports the type, or else as a
/// [`PyTensor`].
fn lend(py: Python<'_>, tensor: Tensor) -> PyResult<Bound<'_, PyAny>> {
    if let Some(torch) = torch(py)? {
        return torch.from_dlpack.bind(py).call1((dlpack::export(py, &tensor, false)?,));
    }
    let ours = Bound::new(py, PyTensor { tensor })?.into_any();
    match to_numpy(&ours)? {
        Some(array) => Ok(array),
        None => Ok(ours),
    }
}

/// A NumPy array over the elements of a [`PyTensor`]. `None` if NumPy, or the package with its
/// element type, is not installed.
pub(crate) fn to_numpy<'py>(ours: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyAny>>> {
    let py = ours.py();
    let tensor = &ours.cast::<PyTensor>()?.get().tensor;
    let Ok(numpy) = py.import("numpy") else { return Ok(None) };
    let words = match elements::foreign_to_numpy(tensor.dtype()) {
        None => return numpy.call_method1("from_dlpack", (ours,)).map(Some),
        Some(name) => match py.import("ml_dtypes") {
            Ok(types) => (types.getattr(name)?, if tensor.dtype() == DType::BF16 { DType::U16 } else { DType::U8 }),
            Err(_) => return Ok(None),
        },
    };
    let (kind, dtype) = words;
    let raw = Tensor::new(dtype, tensor.shape(), tensor.bytes().clone()).map_err(|error| InputError::new_err(error.to_string()))?;
    let raw = numpy.call_method1("from_dlpack", (Bound::new(py, PyTensor { tensor: raw })?,))?;
    raw.call_method1("view", (kind,)).map(Some)
}

/// A PyTorch tensor over the elements of a tensor; imports PyTorch.
pub(crate) fn to_torch<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    py.import("torch")?;
    let torch = torch(py)?.ok_or_else(|| InputError::new_err("PyTorch is not whole"))?;
    torch.from_dlpack.bind(py).call1((dlpack::export(py, tensor, false)?,))
}
