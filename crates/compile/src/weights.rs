//! The stored weights of a program, by number.

use std::collections::HashMap;

use flambeau_pt2::View;
use flambeau_tensor::Tensor;

use crate::Error;

/// Views of an archive's storages; a recipe names one by its number. Equal views are one weight.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weights<'a> {
    views: Vec<&'a View>,
    numbers: HashMap<&'a View, usize>,
}

impl<'a> Weights<'a> {
    /// The number of a view.
    pub(crate) fn add(&mut self, view: &'a View) -> usize {
        let next = self.views.len();
        let number = *self.numbers.entry(view).or_insert(next);
        if number == next {
            self.views.push(view);
        }
        number
    }

    /// Reads a weight: a slice of the archive where its elements lie in row-major order.
    pub(crate) fn read(&self, number: usize) -> Result<Tensor, Error> {
        let view = self.views.get(number).ok_or_else(|| Error::Program(format!("weight {number} does not exist")))?;
        Ok(view.tensor()?.aligned())
    }

    /// What makes the weight's contents unique within its archive.
    pub(crate) fn identity(&self, number: usize) -> String {
        self.views.get(number).map_or_else(String::new, |v| {
            format!("{} {} {:?} {:?} {}", v.storage.id(), v.dtype, v.shape, v.strides, v.offset)
        })
    }
}
