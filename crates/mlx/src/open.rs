//! Integers that are known only at run time.
//!
//! A program's sizes depend on the call: a language model writes its cache at a given position and
//! reads it up to there. A run that is recorded for later runs keeps such integers open. An input
//! that is an integer tensor of one element has an [`Origin`], and so have integers computed from
//! it. A slice that ends at an open integer is [`Padded`]: its array is longer than the slice, by
//! less than [`BUCKET`], and attention masks the rest.

use flambeau_tensor::DType;

use crate::{
    error::{OpError, Result},
    ffi::{Api, Array, Binary},
};

/// Growth step of padded slices in positions. A sequence needs a new recording every `BUCKET`
/// positions.
pub(crate) const BUCKET: usize = 256;

/// An integer known only at run time: an input's value plus a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) input: usize,
    pub(crate) offset: i64,
}

/// Origins of value slots, beside their values.
pub(crate) type Origins = Vec<Option<Origin>>;

/// The array is longer on `axis` than the slot, whose length is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Padded {
    pub(crate) axis: usize,
    pub(crate) length: Origin,
}

/// The range of an open integer in which a recorded run is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) origin: Origin,
    pub(crate) low: i64,
    pub(crate) high: i64,
}

/// The open integers of the run that is recorded.
#[derive(Debug, Default)]
pub(crate) struct OpenIntegers {
    /// By input: MLX's placeholder, and the value in this run.
    pub(crate) inputs: Vec<Option<(Array, i64)>>,
    pub(crate) guards: Vec<Guard>,
}

impl OpenIntegers {
    /// The value in this run.
    pub(crate) fn value(&self, origin: Origin) -> Result<i64> {
        let open = self.inputs.get(origin.input).and_then(Option::as_ref);
        open.map(|(_, value)| value + origin.offset).ok_or_else(|| OpError::value("an open integer is unknown"))
    }

    /// The integer as an array of i32, of rank 0.
    pub(crate) fn array(&self, api: Api, origin: Origin) -> Result<Array> {
        let open = self.inputs.get(origin.input).and_then(Option::as_ref);
        let (array, _) = open.ok_or_else(|| OpError::value("an open integer is unknown"))?;
        let scalar = array.reshape(&[])?.cast(DType::I32)?;
        Ok(scalar.binary(Binary::Add, &Array::full(api, &[], origin.offset as f64, DType::I32)?)?)
    }

    /// Restricts the recorded run to integers in `low..=high`.
    pub(crate) fn guard(&mut self, origin: Origin, low: i64, high: i64) {
        let guard = Guard { origin, low, high };
        if !self.guards.contains(&guard) {
            self.guards.push(guard);
        }
    }
}
