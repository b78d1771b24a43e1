//! The stored weights of a program, by number.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use flambeau_lower::{Constant, Scheme};
use flambeau_pt2::{Storage, View};
use flambeau_tensor::Tensor;
use sha2::{Digest, Sha256};

use crate::{Error, InputStatistics, Statistics, error::ProgramError, quantize::Parts};

/// The parts of a quantized weight, with the weight and the scheme.
type Quantized = (Arc<Constant>, Scheme, Parts);

/// Views of an archive's storages, which constant expressions name by number. Equal views are one
/// weight.
#[derive(Debug, Default)]
pub(crate) struct Weights<'a> {
    views: Vec<&'a View>,
    numbers: HashMap<&'a View, usize>,
    /// Labels that identify storages across the methods of a file, by the storage's id in its
    /// archive.
    labels: HashMap<&'a str, String>,
    /// Threads that work on a weight; `None` means one per core.
    threads: Option<usize>,
    /// Statistics of the inputs of weights.
    statistics: Arc<Statistics>,
    /// The last quantized weight. Its codes, scales and biases are requested one after another.
    last: Mutex<Option<Quantized>>,
}

impl<'a> Weights<'a> {
    /// No weights yet. `threads` work on a weight, and `statistics` decide how it is quantized.
    pub(crate) fn new(threads: Option<usize>, statistics: Arc<Statistics>) -> Weights<'a> {
        Weights { threads, statistics, ..Weights::default() }
    }

    /// How many threads work on a weight.
    pub(crate) fn threads(&self) -> usize {
        self.threads.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
    }

    /// Statistics of the inputs of a weight.
    pub(crate) fn inputs_of(&self, weight: &str) -> Option<&InputStatistics> {
        self.statistics.get(weight)
    }

    /// The parts of a weight that `compute` quantizes, from statistics of its inputs and a number
    /// of threads, unless they are known from the last call.
    ///
    /// # Errors
    /// As `compute`.
    pub(crate) fn quantized(
        &self,
        weight: &Arc<Constant>,
        scheme: Scheme,
        compute: impl FnOnce(Option<&InputStatistics>, usize) -> Result<Parts, Error>,
    ) -> Result<Parts, Error> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, _, parts)) = last.as_ref().filter(|(known, of, _)| Arc::ptr_eq(known, weight) && *of == scheme) {
            return Ok(parts.clone());
        }
        *last = None;
        let parts = compute(self.inputs_of(&weight.name), self.threads())?;
        *last = Some((weight.clone(), scheme, parts.clone()));
        Ok(parts)
    }

    /// The number of a view.
    pub(crate) fn add(&mut self, view: &'a View) -> usize {
        let next = self.views.len();
        let number = *self.numbers.entry(view).or_insert(next);
        if number == next {
            self.views.push(view);
        }
        number
    }

    /// Reads a weight. Row-major elements are a slice of the archive.
    pub(crate) fn read(&self, number: usize) -> Result<Tensor, Error> {
        let view = self.views.get(number).ok_or(ProgramError::NoWeight(number))?;
        Ok(view.tensor()?.aligned())
    }

    /// A text that identifies the weight's contents within a file.
    pub(crate) fn identity(&self, number: usize) -> String {
        self.views.get(number).map_or_else(String::new, |v| {
            let storage = self.labels.get(v.storage.id()).map_or_else(|| v.storage.id(), String::as_str);
            format!("{storage} {} {:?} {:?} {}", v.dtype, v.shape, v.strides, v.offset)
        })
    }
}

/// A storage seen before.
struct Known<'a> {
    storage: &'a Storage,
    method: usize,
    label: String,
    digest: Option<[u8; 32]>,
}

/// Labels the storages of several methods. Equal labels mean equal bytes.
///
/// Storages of one archive are identified directly. Storages of different archives with equal
/// length are read and compared by digest.
///
/// # Errors
/// If a storage cannot be read.
pub(crate) fn unify<'a>(methods: &mut [&mut Weights<'a>]) -> Result<(), Error> {
    if methods.len() < 2 {
        return Ok(());
    }
    let mut known: HashMap<usize, Vec<Known<'a>>> = HashMap::new();
    for (method, weights) in methods.iter_mut().enumerate() {
        for view in weights.views.clone() {
            let storage = &view.storage;
            if weights.labels.contains_key(storage.id()) {
                continue;
            }
            let alike = known.entry(storage.len()).or_default();
            let label = label(storage, method, alike)?;
            weights.labels.insert(storage.id(), label);
        }
    }
    Ok(())
}

/// The label of a storage, given the known storages of the same length.
fn label<'a>(storage: &'a Storage, method: usize, alike: &mut Vec<Known<'a>>) -> Result<String, Error> {
    if let Some(same) = alike.iter().find(|k| k.storage.is_same(storage)) {
        return Ok(same.label.clone());
    }
    let mut own = None;
    for other in alike.iter_mut().filter(|k| k.method != method) {
        let mine = match own {
            Some(digest) => digest,
            None => *own.insert(digest(storage)?),
        };
        let theirs = match other.digest {
            Some(digest) => digest,
            None => *other.digest.insert(digest(other.storage)?),
        };
        if mine == theirs {
            return Ok(other.label.clone());
        }
    }
    let label = format!("{method}:{}", storage.id());
    alike.push(Known { storage, method, label: label.clone(), digest: own });
    Ok(label)
}

fn digest(storage: &Storage) -> Result<[u8; 32], Error> {
    Ok(Sha256::digest(storage.bytes()?).into())
}

#[cfg(test)]
mod tests {
    use flambeau_tensor::DType;

    use super::*;

    fn view(id: &str, bytes: Vec<u8>) -> View {
        let n = bytes.len();
        View { dtype: DType::U8, shape: vec![n], strides: vec![1], offset: 0, storage: Storage::new(id, bytes.into()) }
    }

    #[test]
    fn weights_of_several_archives_are_one_only_if_their_bytes_are() {
        let (a, b) = (view("w0", vec![1, 2, 3]), view("w1", vec![4, 5]));
        let check = |other: View, same_as_a: bool| {
            let (mut first, mut second) = (Weights::default(), Weights::default());
            first.add(&a);
            first.add(&b);
            second.add(&other);
            unify(&mut [&mut first, &mut second]).unwrap();
            assert_eq!(second.identity(0) == first.identity(0), same_as_a, "{other:?}");
            assert_ne!(second.identity(0), first.identity(1));
        };
        check(a.clone(), true);
        check(view("another", vec![1, 2, 3]), true);
        check(view("w0", vec![1, 2, 4]), false);
        check(view("w0", vec![1, 2]), false);
    }
}
