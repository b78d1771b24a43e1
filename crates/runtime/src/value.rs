//! Arguments and results of methods, and their specifications.

use std::fmt;

use flambeau_tensor::{DType, Tensor};

/// An argument or result of a method.
#[derive(Clone, Debug)]
pub enum Value {
    Tensor(Tensor),
    Int(i64),
    Bool(bool),
    Double(f64),
    String(String),
    None,
}

impl Value {
    /// The tensor, if the value is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        match self {
            Value::Tensor(tensor) => Some(tensor),
            _ => None,
        }
    }

    /// The integer, if the value is a whole number of any kind. Some exporters write counts as
    /// floats.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Value::Int(v) => Some(*v),
            Value::Bool(b) => Some(i64::from(*b)),
            Value::Double(v) if v.fract() == 0.0 && v.abs() < 9e15 => Some(*v as i64),
            _ => None,
        }
    }

    /// Describes kind, type and shape in words.
    pub fn describe(&self) -> String {
        match self {
            Value::Tensor(t) => {
                let dims: Vec<String> = t.shape().iter().map(usize::to_string).collect();
                format!("{}[{}]", t.dtype(), dims.join(", "))
            }
            Value::Int(v) => format!("the integer {v}"),
            Value::Bool(v) => format!("the boolean {v}"),
            Value::Double(v) => format!("the number {v}"),
            Value::String(v) => format!("the string `{}`", v.escape_debug()),
            Value::None => "none".into(),
        }
    }
}

impl From<Tensor> for Value {
    fn from(tensor: Tensor) -> Value {
        Value::Tensor(tensor)
    }
}

/// Allowed sizes of one axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DimSpec {
    Fixed(usize),
    /// Any size up to this bound; `None` means unbounded. Lower bounds are ignored, because
    /// exporters often record wrong ones.
    UpTo(Option<usize>),
}

impl DimSpec {
    /// Whether the size is allowed.
    pub fn admits(self, size: usize) -> bool {
        match self {
            DimSpec::Fixed(n) => size == n,
            DimSpec::UpTo(max) => max.is_none_or(|max| size <= max),
        }
    }

    /// The largest allowed size, if bounded.
    pub fn max(self) -> Option<usize> {
        match self {
            DimSpec::Fixed(n) => Some(n),
            DimSpec::UpTo(max) => max,
        }
    }
}

impl fmt::Display for DimSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DimSpec::Fixed(n) => write!(f, "{n}"),
            DimSpec::UpTo(Some(max)) => write!(f, "..{max}"),
            DimSpec::UpTo(None) => f.write_str(".."),
        }
    }
}

/// Element type and sizes of a tensor argument or result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    pub dtype: DType,
    /// Axes, outermost first.
    pub dims: Vec<DimSpec>,
}

impl TensorSpec {
    /// Whether the tensor matches.
    pub fn admits(&self, tensor: &Tensor) -> bool {
        let sizes = tensor.shape();
        tensor.dtype() == self.dtype && sizes.len() == self.dims.len() && self.dims.iter().zip(sizes).all(|(d, &s)| d.admits(s))
    }
}

impl fmt::Display for TensorSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.dims.iter().map(DimSpec::to_string).collect();
        write!(f, "{}[{}]", self.dtype, dims.join(", "))
    }
}

/// Kind of an argument or result.
#[derive(Clone, Debug)]
pub enum ValueKind {
    Tensor(TensorSpec),
    /// Any integer.
    Int,
    /// Exactly this value, which capture fixed. Results of constant methods also have this kind.
    Fixed(Value),
}

/// Specification of an argument or result.
#[derive(Clone, Debug)]
pub struct ValueSpec {
    /// Name in the exported program, if the file records it.
    pub name: Option<String>,
    pub kind: ValueKind,
}

impl ValueSpec {
    /// The tensor's specification, if it is a tensor.
    pub fn tensor(&self) -> Option<&TensorSpec> {
        match &self.kind {
            ValueKind::Tensor(spec) => Some(spec),
            _ => None,
        }
    }

    /// Whether the value matches.
    pub fn admits(&self, value: &Value) -> bool {
        match (&self.kind, value) {
            (ValueKind::Tensor(spec), Value::Tensor(tensor)) => spec.admits(tensor),
            (ValueKind::Int, Value::Int(_)) => true,
            (ValueKind::Fixed(fixed), value) => same(fixed, value),
            _ => false,
        }
    }
}

impl fmt::Display for ValueSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            ValueKind::Tensor(spec) => spec.fmt(f),
            ValueKind::Int => f.write_str("an integer"),
            ValueKind::Fixed(value) => f.write_str(&value.describe()),
        }
    }
}

/// Compares values like ExecuTorch: numbers within 1e-4 and a relative 1e-5, everything else
/// exactly.
fn same(fixed: &Value, value: &Value) -> bool {
    match (fixed, value) {
        (Value::Int(a), Value::Int(b)) => a == b,
        (Value::Bool(a), Value::Bool(b)) => a == b,
        (Value::String(a), Value::String(b)) => a == b,
        (Value::None, Value::None) => true,
        (Value::Double(a), Value::Double(b)) => (a.is_nan() && b.is_nan()) || a == b || (a - b).abs() <= 1e-4 + 1e-5 * b.abs(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_fit_by_type_rank_and_bounds() {
        let spec = TensorSpec { dtype: DType::I64, dims: vec![DimSpec::Fixed(1), DimSpec::UpTo(Some(4))] };
        let check = |dtype, shape: &[usize]| spec.admits(&Tensor::zeros(dtype, shape).unwrap());
        assert!(check(DType::I64, &[1, 4]) && check(DType::I64, &[1, 1]));
        assert!(
            !check(DType::I64, &[1, 5]) && !check(DType::I64, &[2, 4]) && !check(DType::I64, &[4]) && !check(DType::I32, &[1, 4])
        );
        assert_eq!(spec.to_string(), "i64[1, ..4]");
    }

    #[test]
    fn fixed_numbers_fit_within_a_tolerance() {
        let fits = |a, b| ValueSpec { name: None, kind: ValueKind::Fixed(a) }.admits(&b);
        assert!(fits(Value::Double(1.0), Value::Double(1.00005)) && !fits(Value::Double(1.0), Value::Double(1.01)));
        assert!(
            fits(Value::Int(3), Value::Int(3)) && !fits(Value::Int(3), Value::Int(4)) && !fits(Value::Int(1), Value::Bool(true))
        );
    }
}
