//! Bundled programs (`.bpte`): a program with inputs of its methods and the expected outputs.
//! Schema: `devtools/bundled_program/schema/bundled_program_schema.fbs` of ExecuTorch.

use flambeau_tensor::{Bytes, DType, Tensor, numel};

use crate::{
    error::Error,
    flat::{Flat, Table},
};

const FORMAT: &str = "a bundled program";
const IDENTIFIER: &str = "BP08";

crate::flat::schema! {
    root { version, method_test_suites, program }
    suite { method_name, test_cases }
    case { inputs, expected_outputs }
    value { val_type, val }
    scalar { val }
    tensor { scalar_type, sizes, data, dim_order }
}

/// Union tags of values.
mod tag {
    pub(super) const TENSOR: u8 = 1;
    pub(super) const INT: u8 = 2;
    pub(super) const BOOL: u8 = 3;
    pub(super) const DOUBLE: u8 = 4;
}

/// A program with its test cases.
#[derive(Clone, Debug, Default)]
pub struct BundledProgram {
    /// The `.pte` file, shared with the bundle.
    pub program: Bytes,
    pub suites: Vec<TestSuite>,
}

/// The test cases of a method.
#[derive(Clone, Debug, Default)]
pub struct TestSuite {
    pub method: String,
    pub cases: Vec<TestCase>,
}

/// Inputs of a method, and the outputs that a run with them must give.
#[derive(Clone, Debug, Default)]
pub struct TestCase {
    pub inputs: Vec<BundledValue>,
    /// Empty if the case has no expectation.
    pub expected_outputs: Vec<BundledValue>,
}

/// An input or output of a test case.
#[derive(Clone, Debug)]
pub enum BundledValue {
    Tensor(Tensor),
    Int(i64),
    Bool(bool),
    Double(f64),
}

/// Whether the bytes begin like a bundled program.
pub fn is_bundled(file: &[u8]) -> bool {
    file.get(4..8) == Some(IDENTIFIER.as_bytes())
}

/// Reads a bundled program. The program in it is not decoded.
///
/// # Errors
/// If the bytes are not a bundled program, are truncated, violate the encoding, or exceed a limit.
/// Tensors must be row-major, and their data must hold all elements.
pub fn read_bundled_program(file: &Bytes) -> Result<BundledProgram, Error> {
    if !is_bundled(file) {
        let found = format!("`{}`", file.get(4..8).unwrap_or_default().escape_ascii());
        return Err(Error::Unrecognized { format: FORMAT, found, expected: IDENTIFIER });
    }
    let flat = Flat::new(FORMAT, file, 0);
    let t = flat.root()?;
    let program = t.byte_range(root::program)?.ok_or_else(|| t.missing(root::program))?;
    let suites = t.tables(root::method_test_suites, |s| {
        let cases = s.tables(suite::test_cases, |c| {
            let values = |field| Ok::<_, Error>(c.tables(field, |v| read_value(file, &v))?.unwrap_or_default());
            Ok(TestCase { inputs: values(case::inputs)?, expected_outputs: values(case::expected_outputs)? })
        })?;
        Ok(TestSuite { method: s.need_string(suite::method_name)?.to_owned(), cases: cases.unwrap_or_default() })
    })?;
    Ok(BundledProgram { program: file.slice(program), suites: suites.unwrap_or_default() })
}

fn read_value(file: &Bytes, t: &Table<'_>) -> Result<BundledValue, Error> {
    match t.get_or(value::val_type, 0u8)? {
        tag::TENSOR => t.need_table(value::val, |v| read_tensor(file, &v)).map(BundledValue::Tensor),
        tag::INT => t.need_table(value::val, |v| v.get_or(scalar::val, 0i64)).map(BundledValue::Int),
        tag::BOOL => t.need_table(value::val, |v| v.get_or(scalar::val, 0u8)).map(|v| BundledValue::Bool(v != 0)),
        tag::DOUBLE => t.need_table(value::val, |v| v.get_or(scalar::val, 0f64)).map(BundledValue::Double),
        other => Err(t.bad(value::val_type, format!("unknown kind of value {other}"))),
    }
}

fn read_tensor(file: &Bytes, t: &Table<'_>) -> Result<Tensor, Error> {
    let code = t.get_or(tensor::scalar_type, 0i8)?;
    let dtype = DType::from_code(code).ok_or_else(|| t.bad(tensor::scalar_type, format!("unknown scalar type {code}")))?;
    let size = |d: i32| usize::try_from(d).map_err(|_| t.bad(tensor::sizes, format!("size {d} is negative")));
    let shape = t.scalars::<i32>(tensor::sizes)?.unwrap_or_default().into_iter().map(size).collect::<Result<Vec<_>, _>>()?;
    let order = t.scalars::<u8>(tensor::dim_order)?.unwrap_or_default();
    if !order.iter().enumerate().all(|(i, &axis)| i == usize::from(axis)) {
        return Err(t.unsupported(tensor::dim_order, format!("axes in the order {order:?} instead of row-major")));
    }
    let range = t.byte_range(tensor::data)?.unwrap_or_default();
    let bytes = numel(&shape).and_then(|n| n.checked_mul(dtype.size()));
    match bytes.filter(|&bytes| bytes <= range.len()) {
        Some(bytes) => {
            let data = file.slice(range.start..range.start + bytes);
            let tensor = Tensor::new(dtype, &shape, data).map_err(|e| t.bad(tensor::data, e.to_string()))?;
            Ok(tensor.aligned())
        }
        None => Err(t.bad(tensor::data, format!("{} bytes for {shape:?} elements of {dtype}", range.len()))),
    }
}
