//! Tensors of a checkpoint as they are stored, and the weights that programs make of them.

use std::sync::Arc;

use flambeau_pt2::{Storage, View, Weight};
use flambeau_tensor::{AlignedBytes, Bytes, DType, Tensor, cast, gguf::Block, numel};

use crate::{
    Error, Result,
    affine::{BlockMatrix, Part},
};

/// In which order a file holds the rows of a matrix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowOrder {
    /// As the program takes them.
    Plain,
    /// Per head of that many rows, pairs of rotary partners side by side, where the program takes the first partners of all
    /// pairs and then the second.
    Interleaved(usize),
    /// The stored row of each row that the program takes, which may be fewer.
    Listed(Arc<[usize]>),
}

impl RowOrder {
    /// The stored row behind row `row` of the program.
    pub(crate) fn source(&self, row: usize) -> usize {
        match *self {
            RowOrder::Plain => row,
            RowOrder::Interleaved(head) => {
                let (start, at, pairs) = (row / head * head, row % head, head / 2);
                start + at % pairs * 2 + at / pairs
            }
            RowOrder::Listed(ref rows) => rows.get(row).copied().unwrap_or(row),
        }
    }
}

/// How a tensor's elements are stored.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// Row-major elements.
    Plain { dtype: DType, bytes: Bytes },
    /// Row-major elements in equal pieces, one for each index of the first axis.
    Pieces { dtype: DType, pieces: Arc<[Bytes]> },
    /// GGUF blocks along the last axis.
    Blocks { block: Block, bytes: Bytes },
    /// MLX's packed form: `words [.., cols·bits/32]` u32; `scales` and `biases [.., cols/group]` of one type, biases of affine
    /// codes alone.
    Packed { words: Bytes, scales: Bytes, biases: Option<Bytes>, dtype: DType, codes: Codes },
}

/// What packed codes mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Codes {
    pub(crate) mode: Mode,
    pub(crate) bits: usize,
    /// Codes that share a scale.
    pub(crate) group: usize,
}

/// How a code becomes a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// `scale * code + bias`, scales and biases being floats.
    Affine,
    /// Small floats with a scale of one byte.
    Mxfp4,
    Mxfp8,
    Nvfp4,
}

impl Mode {
    const ALL: [Mode; 4] = [Mode::Affine, Mode::Mxfp4, Mode::Mxfp8, Mode::Nvfp4];

    /// Its name in MLX's configs.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::Mxfp4 => "mxfp4",
            Mode::Mxfp8 => "mxfp8",
            Mode::Nvfp4 => "nvfp4",
        }
    }

    pub(crate) fn from_name(name: &str) -> Option<Mode> {
        Mode::ALL.into_iter().find(|mode| mode.name() == name)
    }
}

impl Codes {
    /// Whether MLX has such codes, with scales of that type.
    fn exist(self, scales: DType) -> bool {
        match self.mode {
            Mode::Affine => {
                let sizes = matches!(self.bits, 2 | 3 | 4 | 5 | 6 | 8) && matches!(self.group, 16 | 32 | 64 | 128);
                sizes && scales.is_float() && scales.size() > 1
            }
            Mode::Mxfp4 => (self.bits, self.group, scales) == (4, 32, DType::U8),
            Mode::Mxfp8 => (self.bits, self.group, scales) == (8, 32, DType::U8),
            Mode::Nvfp4 => (self.bits, self.group, scales) == (4, 16, DType::U8),
        }
    }
}

/// A named tensor of a checkpoint. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointTensor {
    shape: Vec<usize>,
    data: Data,
    rows: RowOrder,
    /// Whether the file holds the values plus 1.
    one_added: bool,
}

/// What a program reads for a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Read {
    Plain(Weight),
    Packed(Box<PackedWeight>),
}

/// The parts of a packed weight.
#[derive(Clone, Debug)]
pub(crate) struct PackedWeight {
    pub(crate) words: Weight,
    pub(crate) scales: Weight,
    pub(crate) biases: Option<Weight>,
    pub(crate) codes: Codes,
}

impl CheckpointTensor {
    /// Elements, row-major.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the bytes do not fill the shape.
    pub(crate) fn plain(name: &str, dtype: DType, shape: Vec<usize>, bytes: Bytes) -> Result<CheckpointTensor> {
        let want = numel(&shape).and_then(|n| n.checked_mul(dtype.size()));
        if want != Some(bytes.len()) {
            return Err(Error::tensor(name, format!("{dtype} elements of shape {shape:?}"), format!("{} bytes", bytes.len())));
        }
        Ok(CheckpointTensor { shape, data: Data::Plain { dtype, bytes }, rows: RowOrder::Plain, one_added: false })
    }

    /// Blocks along the last axis.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the rows are not whole blocks or the bytes do not fill the shape.
    pub(crate) fn blocks(name: &str, block: Block, shape: Vec<usize>, bytes: Bytes) -> Result<CheckpointTensor> {
        let cols = shape.last().copied().unwrap_or(1);
        let n = numel(&shape).filter(|_| cols.is_multiple_of(block.elements()) && !shape.is_empty());
        let want = n.and_then(|n| (n / block.elements()).checked_mul(block.bytes()));
        if want != Some(bytes.len()) {
            return Err(Error::tensor(
                name,
                format!("whole {block:?} blocks of shape {shape:?}"),
                format!("{} bytes", bytes.len()),
            ));
        }
        Ok(CheckpointTensor { shape, data: Data::Blocks { block, bytes }, rows: RowOrder::Plain, one_added: false })
    }

    /// MLX's packed form of a tensor `[.., cols]`; `scales` and `biases` hold elements of `dtype`.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the codes are not MLX's, or the parts do not fit the shape.
    pub(crate) fn packed(
        name: &str,
        shape: Vec<usize>,
        [words, scales]: [Bytes; 2],
        biases: Option<Bytes>,
        dtype: DType,
        codes: Codes,
    ) -> Result<CheckpointTensor> {
        let Codes { mode, bits, group } = codes;
        let cols = shape.last().copied().unwrap_or(0);
        let whole = codes.exist(dtype) && cols.is_multiple_of(group) && (cols % 32 * bits).is_multiple_of(32);
        let fits = numel(&shape).filter(|_| whole).is_some_and(|n| {
            let part = n / group * dtype.size();
            let biased = biases.as_ref().map(Bytes::len) == (mode == Mode::Affine).then_some(part);
            n / 8 * bits == words.len() && part == scales.len() && biased
        });
        if !fits {
            let (words, scales, biases) = (words.len(), scales.len(), biases.map_or(0, |b| b.len()));
            let found = format!("{} {bits} bits in groups of {group} with {words}, {scales} and {biases} bytes", mode.name());
            return Err(Error::tensor(name, format!("words, {dtype} scales and biases of a packed {shape:?}"), found));
        }
        let data = Data::Packed { words, scales, biases, dtype, codes };
        Ok(CheckpointTensor { shape, data, rows: RowOrder::Plain, one_added: false })
    }

    /// Plain tensors of one shape and type as one, along a new first axis: the parts of each index one after the other.
    ///
    /// # Errors
    /// [`Error::Tensor`] if they differ or are not plain.
    pub(crate) fn stack(name: &str, parts: &[Vec<&CheckpointTensor>]) -> Result<CheckpointTensor> {
        let fault = |t: &CheckpointTensor| {
            Error::tensor(
                name,
                "plain matrices of one shape and type for each expert",
                format!("{} of shape {:?}", t.kind(), t.shape),
            )
        };
        let Some(first) = parts.iter().flatten().next() else { return Err(Error::MissingTensor(name.into())) };
        let (mut pieces, mut rows) = (Vec::new(), 0);
        for (i, list) in parts.iter().enumerate() {
            for part in list {
                let Data::Plain { dtype, bytes } = &part.data else { return Err(fault(part)) };
                if part.shape != first.shape || *dtype != first.dtype() || part.rows != RowOrder::Plain {
                    return Err(fault(part));
                }
                rows += if i == 0 { part.shape.first().copied().unwrap_or(1) } else { 0 };
                pieces.push(bytes.clone());
            }
        }
        let shape = [parts.len(), rows].into_iter().chain(first.shape.iter().skip(1).copied()).collect();
        let data = Data::Pieces { dtype: first.dtype(), pieces: pieces.into() };
        Ok(CheckpointTensor { shape, data, rows: RowOrder::Plain, one_added: false })
    }

    /// The same tensor, stored plus 1.
    pub(crate) fn plus_one(self) -> CheckpointTensor {
        CheckpointTensor { one_added: true, ..self }
    }

    /// Weights [channels, taps, 1] of a convolution as [channels, 1, taps]; `None` for others.
    pub(crate) fn with_taps_last(&self) -> Option<CheckpointTensor> {
        match self.shape[..] {
            [channels, taps, 1] if taps > 1 => Some(CheckpointTensor { shape: vec![channels, 1, taps], ..self.clone() }),
            _ => None,
        }
    }

    /// The stored rows `list` as a tensor of their own.
    ///
    /// # Errors
    /// [`Error::Tensor`] if there are no such rows, or they are stored in another order already.
    pub(crate) fn rows(&self, name: &str, list: Vec<usize>) -> Result<CheckpointTensor> {
        let count = self.shape.first().copied().unwrap_or(0);
        if self.rows != RowOrder::Plain || list.iter().any(|&row| row >= count) {
            return Err(Error::tensor(
                name,
                format!("{} plain rows", list.len()),
                format!("{} of shape {:?}", self.kind(), self.shape),
            ));
        }
        let mut shape = self.shape.clone();
        shape[0] = list.len();
        Ok(CheckpointTensor { shape, rows: RowOrder::Listed(list.into()), ..self.clone() })
    }

    /// The same tensor, stored with interleaved rotary rows, `head` of them a head.
    ///
    /// # Errors
    /// [`Error::Tensor`] if its rows are not whole heads of even size, or it is packed.
    pub(crate) fn interleaved(self, name: &str, head: usize) -> Result<CheckpointTensor> {
        let whole = head > 0 && head.is_multiple_of(2) && self.shape.first().is_some_and(|rows| rows.is_multiple_of(head));
        match self.data {
            Data::Plain { .. } | Data::Blocks { .. } if whole && self.shape.len() <= 2 && self.rows == RowOrder::Plain => {
                Ok(CheckpointTensor { rows: RowOrder::Interleaved(head), ..self })
            }
            _ => Err(Error::tensor(name, format!("rows in heads of {head}"), format!("{} of shape {:?}", self.kind(), self.shape))),
        }
    }

    /// Shape of the values, outermost first.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element type, or that of the scales.
    pub(crate) fn dtype(&self) -> DType {
        match &self.data {
            Data::Plain { dtype, .. } | Data::Pieces { dtype, .. } | Data::Packed { dtype, .. } => *dtype,
            Data::Blocks { block, .. } => block.exact_scales(),
        }
    }

    /// What the elements are, for messages.
    pub(crate) fn kind(&self) -> String {
        match &self.data {
            Data::Plain { dtype, .. } | Data::Pieces { dtype, .. } => dtype.to_string(),
            Data::Blocks { block, .. } => format!("{block:?}"),
            Data::Packed { codes, .. } => format!("packed {} {} bits in groups of {}", codes.mode.name(), codes.bits, codes.group),
        }
    }

    /// Rows and columns of the matrix that it is, leading axes joined.
    fn matrix(&self) -> (usize, usize) {
        let cols = self.shape.last().copied().unwrap_or(1);
        (self.shape[..self.shape.len().saturating_sub(1)].iter().product(), cols)
    }

    /// Rows `from..from + n` of the first axis. They share the bytes.
    pub(crate) fn slice(&self, from: usize, n: usize) -> Option<CheckpointTensor> {
        let rows = *self.shape.first()?;
        let end = from.checked_add(n).filter(|&end| end <= rows && self.rows == RowOrder::Plain)?;
        let cut = |bytes: &Bytes| {
            let stride = bytes.len() / rows.max(1);
            bytes.slice(from * stride..end * stride)
        };
        let data = match &self.data {
            Data::Plain { dtype, bytes } => Data::Plain { dtype: *dtype, bytes: cut(bytes) },
            Data::Pieces { dtype, pieces } => {
                let each = pieces.len() / rows.max(1);
                Data::Pieces { dtype: *dtype, pieces: pieces.get(from * each..end * each)?.into() }
            }
            Data::Blocks { block, bytes } => Data::Blocks { block: *block, bytes: cut(bytes) },
            Data::Packed { words, scales, biases, dtype, codes } => {
                let (words, scales, biases) = (cut(words), cut(scales), biases.as_ref().map(cut));
                Data::Packed { words, scales, biases, dtype: *dtype, codes: *codes }
            }
        };
        let shape = std::iter::once(n).chain(self.shape[1..].iter().copied()).collect();
        Some(CheckpointTensor { shape, data, rows: RowOrder::Plain, one_added: self.one_added })
    }

    /// The values as `f32`, for small tensors that the build itself reads.
    pub(crate) fn values(&self, name: &str) -> Result<Vec<f32>> {
        let fault = |e: &dyn ToString| Error::tensor(name, "readable float elements", e.to_string());
        let Data::Plain { dtype, bytes } = &self.data else { return Err(fault(&self.kind())) };
        let tensor = Tensor::new(*dtype, &self.shape, bytes.clone()).and_then(|t| cast(&t, DType::F32)).map_err(|e| fault(&e))?;
        Ok(tensor.as_slice::<f32>().map_err(|e| fault(&e))?.to_vec())
    }

    /// A weight of f32 values that `f` makes of the stored ones, under a storage of that id.
    ///
    /// # Errors
    /// [`Error::Tensor`] for elements that are no plain floats.
    pub(crate) fn mapped(&self, id: &str, f: impl Fn(f32) -> f32 + Send + Sync + 'static) -> Result<Weight> {
        if !matches!(self.data, Data::Plain { dtype, .. } if dtype.is_float()) || self.rows != RowOrder::Plain {
            return Err(Error::tensor(id, "plain floats", self.kind()));
        }
        let (source, name) = (self.clone(), id.to_owned());
        let len = self.shape.iter().product::<usize>() * DType::F32.size();
        let produce = move || {
            let values: Vec<f32> = source.values(&name)?.into_iter().map(&f).collect();
            Ok(Tensor::from_slice(&values, &source.shape)?.bytes().clone())
        };
        Ok(Weight::Strided(View::row_major(DType::F32, self.shape.clone(), Storage::computed(id, len, produce))))
    }

    /// A number to add to each element for the value that was meant less 1.
    pub(crate) fn missing_one(&self) -> f32 {
        if self.one_added { 0.0 } else { 1.0 }
    }

    /// The weights of a program whose activations are `dtype`, under storage ids that start with `id`. Plain elements become
    /// `dtype`; packed ones keep their codes, with scales of type `scales_type` (`None`: the exact one).
    ///
    /// # Errors
    /// [`Error::Tensor`] for elements that are no floats.
    pub(crate) fn read(&self, id: &str, dtype: DType, scales_type: Option<DType>) -> Result<Read> {
        match &self.data {
            Data::Plain { dtype: from, .. } | Data::Pieces { dtype: from, .. } if !from.is_float() || from.size() == 1 => {
                Err(Error::tensor(id, "elements of 16, 32 or 64 bit floats", from.to_string()))
            }
            Data::Plain { dtype: from, bytes } => Ok(Read::Plain(self.plain_weight(id, *from, bytes, dtype))),
            Data::Pieces { dtype: from, pieces } => Ok(Read::Plain(self.joined_weight(id, *from, pieces, dtype))),
            Data::Blocks { block, bytes } => {
                let (rows, cols) = self.matrix();
                let matrix = BlockMatrix { block: *block, bytes: bytes.clone(), rows, cols, order: self.rows.clone() };
                Ok(block_weights(id, &self.shape, matrix, scales_type.unwrap_or(block.exact_scales())))
            }
            Data::Packed { words, scales, biases, dtype: from, codes } => {
                let to = scales_type.filter(|_| codes.mode == Mode::Affine).unwrap_or(*from);
                let part = |name: &str, last, from, to, bytes: &Bytes| {
                    let shape = with_last(&self.shape, last);
                    let data = Data::Plain { dtype: from, bytes: bytes.clone() };
                    let part = CheckpointTensor { shape, data, rows: self.rows.clone(), one_added: false };
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

    fn joined_weight(&self, id: &str, from: DType, pieces: &Arc<[Bytes]>, to: DType) -> Weight {
        let (pieces, shape) = (Arc::clone(pieces), self.shape.clone());
        let len = shape.iter().product::<usize>() * to.size();
        let produce = move || {
            let mut joined = AlignedBytes::zeroed(pieces.iter().map(Bytes::len).sum());
            let mut rest = joined.as_mut_slice();
            for piece in &*pieces {
                let (here, after) = rest.split_at_mut(piece.len());
                here.copy_from_slice(piece);
                rest = after;
            }
            let tensor = cast(&Tensor::new(from, &shape, joined.into_bytes())?, to)?;
            Ok(tensor.bytes().clone())
        };
        Weight::Strided(View::row_major(to, self.shape.clone(), Storage::computed(id, len, produce)))
    }
}

/// `rows` rows of `stride` bytes out of `bytes`, in the program's order.
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

/// A weight with its last two axes exchanged, over the same bytes.
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

fn block_weights(id: &str, shape: &[usize], matrix: BlockMatrix, scales: DType) -> Read {
    let (words, groups) = (matrix.words_per_row(), matrix.groups_per_row());
    let (bits, group, rows) = (matrix.block.bits(), matrix.block.group(), matrix.rows);
    let weight = |dtype, last, storage| Weight::Strided(View::row_major(dtype, with_last(shape, last), storage));
    let param = |name: &str, part: Part| {
        let matrix = matrix.clone();
        let produce = move || Ok(matrix.params(part, scales)?);
        weight(scales, groups, Storage::computed(format!("{id}.{name}"), rows * groups * scales.size(), produce))
    };
    let (scales, biases) = (param("scales", Part::Scale), param("biases", Part::Bias));
    let storage = Storage::computed(format!("{id}.words"), rows * words * 4, move || Ok(matrix.words()));
    let words = weight(DType::U32, words, storage);
    Read::Packed(Box::new(PackedWeight { words, scales, biases: Some(biases), codes: Codes { mode: Mode::Affine, bits, group } }))
}

#[cfg(test)]
mod tests;
