//! Converts a checkpoint's tensors to weights of programs.

use std::sync::Arc;

use flambeau_pt2::{Storage, View, Weight};
use flambeau_tensor::{AlignedBytes, Bytes, DType, Tensor, cast};

use super::{CheckpointTensor, Codes, Data, Mode, PackedWeight, Read, RowOrder};
use crate::{
    Error, Result,
    rows::{self, CodedMatrix, FloatRows, GroupParameter},
};

impl CheckpointTensor {
    /// The weights of a program with activations of type `dtype`, under storage ids that start with
    /// `id`. Plain elements are cast to `dtype`. Packed elements keep their codes, with scales of
    /// type `scales_type` (`None` means the exact type).
    ///
    /// # Errors
    /// [`Error::Tensor`] for elements that are not floats.
    pub(crate) fn read(&self, id: &str, dtype: DType, scales_type: Option<DType>) -> Result<Read> {
        match &self.data {
            Data::Plain { dtype: from, .. } if !from.is_float() || from.size() == 1 => {
                Err(Error::tensor(id, "elements of 16, 32 or 64 bit floats", from.to_string()))
            }
            Data::Plain { dtype: from, bytes } => Ok(Read::Plain(self.plain_weight(id, *from, bytes, dtype))),
            Data::Stack(parts) => self.stacked(id, parts, dtype, scales_type),
            Data::Coded(stored) => {
                let (rows, cols) = self.matrix();
                let matrix = CodedMatrix { stored: Arc::clone(stored), rows, cols, order: self.rows.clone() };
                let affine = stored.codes().mode == Mode::Affine;
                let scales = scales_type.filter(|_| affine).unwrap_or(stored.exact_scales());
                Ok(coded_weights(id, &self.shape, matrix, scales))
            }
            Data::Floats(stored) => Ok(Read::Plain(self.computed_weight(id, stored, dtype))),
            Data::Packed { words, scales, biases, dtype: from, codes } => {
                let to = scales_type.filter(|_| codes.mode == Mode::Affine).unwrap_or(*from);
                let part = |name: &str, last, from, to, bytes: &Bytes| {
                    let shape = with_last(&self.shape, last);
                    let data = Data::Plain { dtype: from, bytes: bytes.clone() };
                    let part = CheckpointTensor { rows: self.rows.clone(), ..CheckpointTensor::of(shape, data) };
                    part.plain_weight(&format!("{id}.{name}"), from, bytes, to)
                };
                let (cols, Codes { bits, group, .. }) = (self.matrix().1, *codes);
                let words = part("words", cols * bits / 32, DType::U32, DType::U32, words);
                let scales = part("scales", cols / group, *from, to, scales);
                let biases = biases.as_ref().map(|biases| part("biases", cols / group, *from, to, biases));
                Ok(Read::Packed(Box::new(PackedWeight { words, scales, biases, codes: *codes })))
            }
        }
    }

    fn plain_weight(&self, id: &str, from: DType, bytes: &Bytes, to: DType) -> Weight {
        let shape = self.shape.clone();
        if from == to && self.rows == RowOrder::Plain {
            return Weight::Strided(View::row_major(to, shape, Storage::new(id, bytes.clone())));
        }
        let (bytes, order) = (bytes.clone(), self.rows.clone());
        let len = shape.iter().product::<usize>() * to.size();
        let produce = move || {
            let row = shape.iter().skip(1).product::<usize>() * from.size();
            let bytes = reordered(&bytes, shape.first().copied().unwrap_or(1), row, &order);
            let tensor = cast(&Tensor::new(from, &shape, bytes)?, to)?;
            Ok(tensor.bytes().clone())
        };
        Weight::Strided(View::row_major(to, self.shape.clone(), Storage::computed(id, len, produce)))
    }

    fn computed_weight(&self, id: &str, stored: &Arc<dyn FloatRows>, to: DType) -> Weight {
        let (stored, shape, order, (rows, cols)) = (Arc::clone(stored), self.shape.clone(), self.rows.clone(), self.matrix());
        let produce = move || {
            let wide = rows::values(&*stored, [rows, cols], &order);
            Ok(cast(&Tensor::new(DType::F32, &shape, wide)?, to)?.bytes().clone())
        };
        Weight::Strided(View::row_major(to, self.shape.clone(), Storage::computed(id, rows * cols * to.size(), produce)))
    }

    /// The weights of all parts, joined.
    fn stacked(&self, id: &str, parts: &[CheckpointTensor], dtype: DType, scales: Option<DType>) -> Result<Read> {
        let (mut floats, mut packed) = (Vec::new(), Vec::new());
        for (i, part) in parts.iter().enumerate() {
            match part.read(&format!("{id}.{i}"), dtype, scales)? {
                Read::Plain(weight) => floats.push(weight),
                Read::Packed(parts) => packed.push(*parts),
            }
        }
        let Some(codes) = packed.first().map(|first| first.codes) else { return Ok(Read::Plain(joined(id, &self.shape, floats))) };
        let join = |name: &str, weights: Vec<Weight>| {
            let last = weights.first().and_then(|weight| weight.shape().last().copied()).unwrap_or(0);
            joined(&format!("{id}.{name}"), &with_last(&self.shape, last), weights)
        };
        let biases: Option<Vec<Weight>> = packed.iter().map(|parts| parts.biases.clone()).collect();
        let (words, numbers) = packed.into_iter().map(|parts| (parts.words, parts.scales)).unzip();
        let (words, scales) = (join("words", words), join("scales", numbers));
        Ok(Read::Packed(Box::new(PackedWeight { words, scales, biases: biases.map(|biases| join("biases", biases)), codes })))
    }
}

/// Extracts `rows` rows of `stride` bytes from `bytes`, in the program's order.
fn reordered(bytes: &Bytes, rows: usize, stride: usize, order: &RowOrder) -> Bytes {
    if *order == RowOrder::Plain || stride == 0 {
        return bytes.clone();
    }
    let mut out = AlignedBytes::zeroed(rows * stride);
    for (row, out) in out.as_mut_slice().chunks_exact_mut(stride).enumerate() {
        let at = order.source(row) * stride;
        out.copy_from_slice(&bytes[at..at + stride]);
    }
    out.into_bytes()
}

/// Exchanges the last two axes of a weight, over the same bytes.
pub(crate) fn swapped(weight: Weight) -> Weight {
    match weight {
        Weight::Strided(mut view) if view.shape.len() >= 2 => {
            let last = view.shape.len() - 1;
            view.shape.swap(last - 1, last);
            view.strides.swap(last - 1, last);
            Weight::Strided(view)
        }
        other => other,
    }
}

fn with_last(shape: &[usize], last: usize) -> Vec<usize> {
    let lead = &shape[..shape.len().saturating_sub(1)];
    lead.iter().copied().chain(std::iter::once(last)).collect()
}

/// Concatenates weights of one type to a weight of `shape`.
fn joined(id: &str, shape: &[usize], weights: Vec<Weight>) -> Weight {
    let dtype = weights.first().and_then(|weight| weight.dtype().dtype()).unwrap_or(DType::F32);
    let len = shape.iter().product::<usize>() * dtype.size();
    let produce = move || {
        let mut joined = AlignedBytes::zeroed(len);
        let mut at = 0;
        for weight in &weights {
            let tensor = weight.tensor()?;
            let bytes = tensor.bytes();
            joined.as_mut_slice()[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
        Ok(joined.into_bytes())
    };
    Weight::Strided(View::row_major(dtype, shape.to_vec(), Storage::computed(id, len, produce)))
}

fn coded_weights(id: &str, shape: &[usize], matrix: CodedMatrix, scales: DType) -> Read {
    let (words, groups, rows) = (matrix.words_per_row(), matrix.groups_per_row(), matrix.rows);
    let codes = matrix.stored.codes();
    let weight = |dtype, last, storage| Weight::Strided(View::row_major(dtype, with_last(shape, last), storage));
    let number = |name: &str, part: GroupParameter| {
        let matrix = matrix.clone();
        let produce = move || Ok(matrix.numbers(part, scales)?);
        weight(scales, groups, Storage::computed(format!("{id}.{name}"), rows * groups * scales.size(), produce))
    };
    let biases = (codes.mode == Mode::Affine).then(|| number("biases", GroupParameter::Bias));
    let scales = number("scales", GroupParameter::Scale);
    let storage = Storage::computed(format!("{id}.words"), rows * words * 4, move || Ok(matrix.words()));
    let words = weight(DType::U32, words, storage);
    Read::Packed(Box::new(PackedWeight { words, scales, biases, codes }))
}
