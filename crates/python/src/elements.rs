//! Conversion between tensors and nested lists of numbers.

use flambeau::tensor::{AlignedBytes, Bool, DType, Element, Tensor, bf16, cast, f16};
use pyo3::{
    prelude::*,
    types::{PyBool, PyComplex, PyFloat, PyList, PyTuple},
};

use crate::errors::InputError;

/// A number of any kind.
pub(crate) enum Scalar {
    Bool(bool),
    Int(i128),
    Float(f64),
    Complex(f64, f64),
}

/// PyTorch's and NumPy's names of element types.
const NAMES: [(DType, &str); 18] = [
    (DType::Bool, "bool"),
    (DType::U8, "uint8"),
    (DType::I8, "int8"),
    (DType::I16, "int16"),
    (DType::U16, "uint16"),
    (DType::I32, "int32"),
    (DType::U32, "uint32"),
    (DType::I64, "int64"),
    (DType::U64, "uint64"),
    (DType::F16, "float16"),
    (DType::BF16, "bfloat16"),
    (DType::F32, "float32"),
    (DType::F64, "float64"),
    (DType::F8E4M3, "float8_e4m3fn"),
    (DType::F8E5M2, "float8_e5m2"),
    (DType::F8E8M0, "float8_e8m0fnu"),
    (DType::C32, "complex32"),
    (DType::C64, "complex64"),
];

/// PyTorch's name of an element type.
pub(crate) fn name(dtype: DType) -> &'static str {
    NAMES.iter().find(|row| row.0 == dtype).map_or("", |row| row.1)
}

/// The element type with this name.
pub(crate) fn of_numpy(name: &str) -> Option<DType> {
    NAMES.iter().find(|row| row.1 == name).map(|row| row.0)
}

/// The name of a type that NumPy only has through ml_dtypes.
pub(crate) fn foreign_to_numpy(dtype: DType) -> Option<&'static str> {
    matches!(dtype, DType::BF16 | DType::F8E4M3 | DType::F8E5M2 | DType::F8E8M0).then(|| name(dtype))
}

/// Creates a tensor from a number, or from nested lists of numbers with equal lengths.
///
/// # Errors
/// Fails if lists differ in length, or if an item is not a number of the type.
pub(crate) fn from_nested(values: &Bound<'_, PyAny>, dtype: DType) -> PyResult<Tensor> {
    let mut shape = Vec::new();
    let mut first = Some(values.clone());
    while let Some(list) = first.filter(is_list) {
        let count = list.len()?;
        shape.push(count);
        first = if count == 0 { None } else { Some(list.get_item(0)?) };
    }
    let mut flat = Vec::new();
    flatten(values, &shape, &mut flat)?;
    match dtype {
        DType::F16 => of_floats(&flat, &shape, f16::from_f64),
        DType::BF16 => of_floats(&flat, &shape, bf16::from_f64),
        DType::F32 => of_floats(&flat, &shape, |v| v as f32),
        DType::F64 => of_floats(&flat, &shape, |v| v),
        DType::F8E4M3 | DType::F8E5M2 | DType::F8E8M0 | DType::C32 | DType::C64 => {
            Err(InputError::new_err(format!("is a list, which cannot become {} here; pass an array", name(dtype))))
        }
        DType::Bool => of_numbers(&flat, &shape, dtype, |v| v.is_truthy().map(Bool::from)),
        DType::U8 => of_numbers(&flat, &shape, dtype, |v| v.extract::<u8>()),
        DType::I8 => of_numbers(&flat, &shape, dtype, |v| v.extract::<i8>()),
        DType::I16 => of_numbers(&flat, &shape, dtype, |v| v.extract::<i16>()),
        DType::U16 => of_numbers(&flat, &shape, dtype, |v| v.extract::<u16>()),
        DType::I32 => of_numbers(&flat, &shape, dtype, |v| v.extract::<i32>()),
        DType::U32 => of_numbers(&flat, &shape, dtype, |v| v.extract::<u32>()),
        DType::I64 => of_numbers(&flat, &shape, dtype, |v| v.extract::<i64>()),
        DType::U64 => of_numbers(&flat, &shape, dtype, |v| v.extract::<u64>()),
    }
}

fn is_list(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>()
}

fn flatten<'py>(values: &Bound<'py, PyAny>, shape: &[usize], flat: &mut Vec<Bound<'py, PyAny>>) -> PyResult<()> {
    let Some((&count, shape)) = shape.split_first() else {
        if is_list(values) {
            return Err(InputError::new_err("has lists of different depths"));
        }
        flat.push(values.clone());
        return Ok(());
    };
    if !is_list(values) || values.len()? != count {
        return Err(InputError::new_err("has lists of different lengths"));
    }
    values.try_iter()?.try_for_each(|value| flatten(&value?, shape, flat))
}

fn of_floats<T: Element>(flat: &[Bound<'_, PyAny>], shape: &[usize], convert: impl Fn(f64) -> T) -> PyResult<Tensor> {
    of_numbers(flat, shape, T::DTYPE, |value| value.extract::<f64>().map(&convert))
}

fn of_numbers<T: Element>(
    flat: &[Bound<'_, PyAny>],
    shape: &[usize],
    dtype: DType,
    number: impl Fn(&Bound<'_, PyAny>) -> PyResult<T>,
) -> PyResult<Tensor> {
    let refused = |value: &Bound<'_, PyAny>| InputError::new_err(format!("holds {value:?}, which is no {}", name(dtype)));
    let values: Vec<T> = flat.iter().map(|value| number(value).map_err(|_| refused(value))).collect::<PyResult<_>>()?;
    Tensor::from_slice(&values, shape).map_err(|error| InputError::new_err(error.to_string()))
}

/// The elements of a tensor as numbers.
pub(crate) fn scalars(tensor: &Tensor) -> Vec<Scalar> {
    fn each<T: Element>(tensor: &Tensor, number: impl Fn(T) -> Scalar) -> Vec<Scalar> {
        let tensor = tensor.aligned();
        tensor.as_slice::<T>().map_or_else(|_| Vec::new(), |slice| slice.iter().map(|&v| number(v)).collect())
    }
    match tensor.dtype() {
        DType::Bool => each::<Bool>(tensor, |v| Scalar::Bool(v.get())),
        DType::U8 => each::<u8>(tensor, |v| Scalar::Int(v.into())),
        DType::I8 => each::<i8>(tensor, |v| Scalar::Int(v.into())),
        DType::I16 => each::<i16>(tensor, |v| Scalar::Int(v.into())),
        DType::U16 => each::<u16>(tensor, |v| Scalar::Int(v.into())),
        DType::I32 => each::<i32>(tensor, |v| Scalar::Int(v.into())),
        DType::U32 => each::<u32>(tensor, |v| Scalar::Int(v.into())),
        DType::I64 => each::<i64>(tensor, |v| Scalar::Int(v.into())),
        DType::U64 => each::<u64>(tensor, |v| Scalar::Int(v.into())),
        DType::F16 => each::<f16>(tensor, |v| Scalar::Float(v.into())),
        DType::BF16 => each::<bf16>(tensor, |v| Scalar::Float(v.into())),
        DType::F32 => each::<f32>(tensor, |v| Scalar::Float(v.into())),
        DType::F64 => each::<f64>(tensor, Scalar::Float),
        DType::F8E4M3 | DType::F8E5M2 | DType::F8E8M0 => {
            cast(tensor, DType::F32).map_or_else(|_| Vec::new(), |floats| each::<f32>(&floats, |v| Scalar::Float(v.into())))
        }
        DType::C32 | DType::C64 => {
            let (shape, bytes) = ([tensor.numel() * 2], AlignedBytes::copy_of(tensor.bytes()).into_bytes());
            let part = tensor.dtype().part().unwrap_or(DType::F32);
            let parts = Tensor::new(part, &shape, bytes).and_then(|parts| cast(&parts, DType::F32));
            let parts = parts.as_ref().map_or(&[][..], |parts| parts.as_slice::<f32>().unwrap_or_default());
            parts.chunks_exact(2).map(|p| Scalar::Complex(p[0].into(), p[1].into())).collect()
        }
    }
}

/// A number as a Python object.
fn number(py: Python<'_>, scalar: Scalar) -> PyResult<Py<PyAny>> {
    Ok(match scalar {
        Scalar::Bool(v) => PyBool::new(py, v).to_owned().into_any().unbind(),
        Scalar::Int(v) => v.into_pyobject(py)?.into_any().unbind(),
        Scalar::Float(v) => PyFloat::new(py, v).into_any().unbind(),
        Scalar::Complex(re, im) => PyComplex::from_doubles(py, re, im).into_any().unbind(),
    })
}

/// The elements as nested lists, or as a single number.
pub(crate) fn to_nested(py: Python<'_>, tensor: &Tensor) -> PyResult<Py<PyAny>> {
    let numbers = scalars(tensor).into_iter().map(|scalar| number(py, scalar));
    let mut level: Vec<Py<PyAny>> = numbers.collect::<PyResult<_>>()?;
    for (axis, &size) in tensor.shape().iter().enumerate().rev() {
        let lists: usize = tensor.shape()[..axis].iter().product();
        let mut rest = level.into_iter();
        let list = |_| PyList::new(py, rest.by_ref().take(size).collect::<Vec<_>>()).map(|list| list.into_any().unbind());
        level = (0..lists).map(list).collect::<PyResult<_>>()?;
    }
    level.pop().ok_or_else(|| InputError::new_err("has no elements"))
}

/// The default element type of a list of numbers.
pub(crate) fn natural(values: &Bound<'_, PyAny>) -> PyResult<DType> {
    let mut first = values.clone();
    while is_list(&first) && first.len()? > 0 {
        first = first.get_item(0)?;
    }
    Ok(match () {
        () if first.is_instance_of::<PyBool>() => DType::Bool,
        () if first.is_instance_of::<pyo3::types::PyInt>() => DType::I64,
        () => DType::F32,
    })
}
