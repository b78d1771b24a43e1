//! Random inputs that a method accepts.

use flambeau_tensor::{DType, Tensor, cast};

use crate::{DimSpec, Method, TensorSpec, Value, ValueKind};

/// Size of axes whose size the caller chooses, where the method's bound allows it.
const FREE_SIZE: usize = 4;

/// An input for which no random value exists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("input {index} cannot be drawn: {what}")]
pub struct InputError {
    pub index: usize,
    pub what: String,
}

/// Inputs of a method from a seed. Floats have a normal distribution, and integers are below
/// `bound`. Integers that are no tensors are 0, such as the position in a cache. Axes of variable
/// size have the size 4, or less where the method bounds them.
///
/// # Errors
/// A type has no random elements, or the sizes are too large.
pub fn random_inputs(method: &Method, seed: u64, bound: u32) -> Result<Vec<Value>, InputError> {
    let mut random = Random(seed);
    let draw = |(index, spec): (usize, &crate::ValueSpec)| match &spec.kind {
        ValueKind::Fixed(value) => Ok(value.clone()),
        ValueKind::Int => Ok(Value::Int(0)),
        ValueKind::Tensor(spec) => {
            random.tensor(spec, bound).map(Value::Tensor).ok_or_else(|| InputError { index, what: spec.to_string() })
        }
    };
    method.inputs().iter().enumerate().map(draw).collect()
}

/// The generator SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in (0, 1].
    fn uniform(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f32 {
        let (radius, angle) = (self.uniform(), self.uniform());
        ((-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()) as f32
    }

    fn tensor(&mut self, spec: &TensorSpec, bound: u32) -> Option<Tensor> {
        let size = |dim: &DimSpec| match *dim {
            DimSpec::Fixed(size) => size,
            DimSpec::UpTo(max) => max.map_or(FREE_SIZE, |max| max.min(FREE_SIZE)),
        };
        let shape: Vec<usize> = spec.dims.iter().map(size).collect();
        let count = flambeau_tensor::numel(&shape)?;
        if spec.dtype.is_float() {
            let values: Vec<f32> = (0..count).map(|_| self.normal()).collect();
            return cast(&Tensor::from_slice(&values, &shape).ok()?, spec.dtype).ok();
        }
        let bound = if spec.dtype == DType::Bool { 2 } else { u64::from(bound.max(1)) };
        let values: Vec<i32> = (0..count).map(|_| (self.next() % bound) as i32).collect();
        cast(&Tensor::from_slice(&values, &shape).ok()?, spec.dtype).ok()
    }
}
