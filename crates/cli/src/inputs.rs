//! Fitting tensors to a method's inputs.

use anyhow::{Result, bail};
use flambeau::{
    runtime::{Value, ValueKind, ValueSpec},
    tensor::{DType, Tensor, cast},
};

use crate::tensors::NamedTensor;

/// The arguments of a call: fixed values are filled in, the rest comes from `tensors`, by name if
/// all names fit, else in order.
pub(crate) fn arguments(specs: &[ValueSpec], tensors: Vec<NamedTensor>) -> Result<Vec<Value>> {
    let open: Vec<&ValueSpec> = specs.iter().filter(|s| !matches!(s.kind, ValueKind::Fixed(_))).collect();
    if open.len() != tensors.len() {
        let listed: Vec<String> = open.iter().map(|s| s.to_string()).collect();
        bail!("the method takes {} inputs ({}), found {}", open.len(), listed.join(", "), tensors.len());
    }
    let mut tensors = ordered(&open, tensors).into_iter();
    specs
        .iter()
        .map(|spec| match &spec.kind {
            ValueKind::Fixed(value) => Ok(value.clone()),
            ValueKind::Int => tensors.next().map_or(Ok(Value::None), |n| integer(&n.tensor)),
            ValueKind::Tensor(_) => Ok(tensors.next().map_or(Value::None, |n| Value::Tensor(n.tensor))),
        })
        .collect()
}

fn ordered(specs: &[&ValueSpec], mut tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    let place = |named: &NamedTensor| specs.iter().position(|s| s.name.is_some() && s.name == named.name);
    let mut places: Vec<usize> = tensors.iter().filter_map(place).collect();
    places.sort_unstable();
    places.dedup();
    if places.len() == tensors.len() {
        tensors.sort_by_key(|named| place(named));
    }
    tensors
}

fn integer(tensor: &Tensor) -> Result<Value> {
    if tensor.numel() == 1
        && let Ok(wide) = cast(tensor, DType::I64)
        && let Ok(&[value]) = wide.as_slice::<i64>()
    {
        return Ok(Value::Int(value));
    }
    bail!("an input is an integer, found a tensor {}", Value::Tensor(tensor.clone()).describe())
}

#[cfg(test)]
mod tests {
    use flambeau::runtime::{DimSpec, TensorSpec};

    use super::*;

    fn spec(name: &str, kind: ValueKind) -> ValueSpec {
        ValueSpec { name: Some(name.into()), kind }
    }

    fn named(name: &str, value: i64) -> NamedTensor {
        NamedTensor { name: Some(name.into()), tensor: Tensor::from_slice(&[value], &[1]).unwrap() }
    }

    #[test]
    fn inputs_are_matched_by_name_and_else_by_place() {
        let one = || ValueKind::Tensor(TensorSpec { dtype: DType::I64, dims: vec![DimSpec::Fixed(1)] });
        let specs = [spec("a", one()), spec("fixed", ValueKind::Fixed(Value::Bool(true))), spec("b", ValueKind::Int)];
        let check = |tensors: Vec<NamedTensor>, expected: [i64; 2]| {
            let values = arguments(&specs, tensors).unwrap();
            let first = values[0].as_tensor().unwrap().as_slice::<i64>().unwrap()[0];
            assert_eq!([first, values[2].as_int().unwrap()], expected);
        };
        check(vec![named("b", 2), named("a", 1)], [1, 2]);
        check(vec![named("x", 2), named("a", 1)], [2, 1]);
        assert!(arguments(&specs, vec![named("a", 1)]).unwrap_err().to_string().contains("takes 2 inputs"));
    }
}
