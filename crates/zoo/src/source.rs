//! Stored tensors of a checkpoint, and their conversion to weights of programs.

mod columns;
mod floats;
mod weights;

use std::sync::Arc;

use flambeau_pt2::{Storage, View, Weight};
use flambeau_tensor::{Bytes, DType, Tensor, cast, gguf::Block, numel};

use self::columns::Columns;
pub(crate) use self::weights::swapped;

use crate::{
    Error, Result,
    codes::{Codes, Mode, RowOrder},
    low_rank::LowRank,
    rows::{
        Blocks, CodedRows, FloatRows, Mxfp4Blocks, Nvfp4Blocks,
        codebooks::{self, Codebook, CodebookBlocks},
        numbers::Numbers,
        scaled::{Factors, ScaledFloats, ScaledRows},
        two_bits::{TwoBitBlocks, TwoBits},
    },
};

/// Storage of a tensor's elements.
#[derive(Clone, Debug)]
pub(crate) enum Data {
    /// Row-major elements.
    Plain { dtype: DType, bytes: Bytes },
    /// Tensors of one shape, row-major parts of this one.
    Stack(Arc<[CheckpointTensor]>),
    /// Codes along the last axis, in the file's layout.
    Coded(Arc<dyn CodedRows>),
    /// Computed floats along the last axis.
    Floats(Arc<dyn FloatRows>),
    /// MLX's packed form: `words [.., cols·bits/32]` u32, and `scales` and `biases [..,
    /// cols/group]` of one type. Only affine codes have biases.
    Packed { words: Bytes, scales: Bytes, biases: Option<Bytes>, dtype: DType, codes: Codes },
}

/// A named tensor of a checkpoint. Cloning shares the bytes.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointTensor {
    shape: Vec<usize>,
    data: Data,
    rows: RowOrder,
    form: ValueForm,
    /// Updates of adapters, which programs add at run time.
    updates: Vec<LowRank>,
}

/// Stored form of values in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueForm {
    Values,
    PlusOne,
    Exponentials,
    /// Negated exponentials of the values.
    NegatedExponentials,
}

/// Form of a tensor in the program.
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
    /// Creates a tensor from row-major elements.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the bytes do not fill the shape.
    pub(crate) fn plain(name: &str, dtype: DType, shape: Vec<usize>, bytes: Bytes) -> Result<CheckpointTensor> {
        let want = numel(&shape).and_then(|n| n.checked_mul(dtype.size()));
        if want != Some(bytes.len()) {
            return Err(Error::tensor(name, format!("{dtype} elements of shape {shape:?}"), format!("{} bytes", bytes.len())));
        }
        Ok(CheckpointTensor::of(shape, Data::Plain { dtype, bytes }))
    }

    /// Creates a tensor from GGUF blocks along the last axis.
    ///
    /// # Errors
    /// [`Error::Tensor`] if the rows are not whole blocks or the bytes do not fill the shape.
    pub(crate) fn blocks(name: &str, block: Block, shape: Vec<usize>, bytes: Bytes) -> Result<CheckpointTensor> {
        let size = (block.elements(), block.bytes());
        CheckpointTensor::in_blocks(name, size, shape, bytes, |bytes, cols| Blocks { block, bytes, cols })
    }

    /// Creates a tensor from GGUF blocks of a type with a codebook, along the last axis.
    ///
    /// # Errors
    /// As [`CheckpointTensor::blocks`].
    pub(crate) fn codebook_blocks(name: &str, kind: Codebook, shape: Vec<usize>, bytes: Bytes) -> Result<CheckpointTensor> {
        let size = (codebooks::ELEMENTS, kind.bytes());
        CheckpointTensor::in_blocks(name, size, shape, bytes, |bytes, cols| CodebookBlocks { kind, bytes, cols })
    }

    /// Creates a tensor from GGUF blocks of codes of at most two bits, along the last axis.
    ///
    /// # Errors
    /// As [`CheckpointTensor::blocks`].
    pub(crate) fn two_bit_blocks(name: &str, kind: TwoBits, shape: Vec<usize>, bytes: Bytes) -> Result<CheckpointTensor> {
        let size = (kind.elements(), kind.bytes());
        CheckpointTensor::in_blocks(name, size, shape, bytes, |bytes, cols| TwoBitBlocks { kind, bytes, cols })
    }

    /// Creates a tensor from GGUF's MXFP4 blocks along the last axis.
    ///
    /// # Errors
    /// As [`CheckpointTensor::blocks`].
    pub(crate) fn mxfp4_blocks(name: &str, shape: Vec<usize>, bytes: Bytes) -> Result<CheckpointTensor> {
        let size = (Mxfp4Blocks::ELEMENTS, Mxfp4Blocks::BYTES);
        CheckpointTensor::in_blocks(name, size, shape, bytes, |bytes, cols| Mxfp4Blocks { bytes, cols })
    }

    /// Creates a tensor from GGUF's NVFP4 blocks along the last axis.
    ///
    /// # Errors
    /// As [`CheckpointTensor::blocks`].
    pub(crate) fn nvfp4_blocks(name: &str, shape: Vec<usize>, bytes: Bytes) -> Result<CheckpointTensor> {
        let size = (Nvfp4Blocks::ELEMENTS, Nvfp4Blocks::BYTES);
        CheckpointTensor::in_blocks(name, size, shape, bytes, |bytes, cols| Nvfp4Blocks { bytes, cols })
    }

    /// Creates a tensor from blocks of `size` (elements, bytes). `rows` receives the bytes and the
    /// number of columns.
    fn in_blocks<R: CodedRows + 'static>(
        name: &str,
        size: (usize, usize),
        shape: Vec<usize>,
        bytes: Bytes,
        rows: impl FnOnce(Bytes, usize) -> R,
    ) -> Result<CheckpointTensor> {
        filled(name, &shape, size, &bytes)?;
        let cols = shape.last().copied().unwrap_or(1);
        Ok(CheckpointTensor::of(shape, Data::Coded(Arc::new(rows(bytes, cols)))))
    }

    /// Creates a matrix `[rows, cols]` of codes. The caller has checked the layout against the
    /// shape.
    ///
    /// # Errors
    /// [`Error::Tensor`] if MLX does not support the codes, or the rows are not whole groups and
    /// words.
    pub(crate) fn coded(name: &str, shape: [usize; 2], stored: impl CodedRows + 'static) -> Result<CheckpointTensor> {
        let codes = stored.codes();
        if !codes.exist(stored.exact_scales()) || !codes.fill(shape[1]) {
            return Err(Error::tensor(
                name,
                "rows of whole groups of 16, 32, 64 or 128 codes",
                format!("{} of shape {shape:?}", stored.kind()),
            ));
        }
        Ok(CheckpointTensor::of(shape.to_vec(), Data::Coded(Arc::new(stored))))
    }

    /// Creates a tensor with computed rows `[.., cols]`. The caller has checked the layout against
    /// the shape.
    pub(crate) fn floats(shape: Vec<usize>, stored: impl FloatRows + 'static) -> CheckpointTensor {
        CheckpointTensor::of(shape, Data::Floats(Arc::new(stored)))
    }

    fn of(shape: Vec<usize>, data: Data) -> CheckpointTensor {
        CheckpointTensor { shape, data, rows: RowOrder::Plain, form: ValueForm::Values, updates: Vec::new() }
    }

    /// Creates a tensor `[.., cols]` from MLX's packed form. `scales` and `biases` hold elements of
    /// `dtype`.
    ///
    /// # Errors
    /// [`Error::Tensor`] if MLX does not support the codes, or the parts do not match the shape.
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
        let whole = codes.exist(dtype) && codes.fill(cols);
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
        Ok(CheckpointTensor::of(shape, Data::Packed { words, scales, biases, dtype, codes }))
    }

    /// Stacks tensors of one shape along a new first axis. The parts of each index are
    /// concatenated.
    ///
    /// # Errors
    /// [`Error::Tensor`] if they differ in shape or storage.
    pub(crate) fn stack(name: &str, parts: &[Vec<&CheckpointTensor>]) -> Result<CheckpointTensor> {
        let Some(first) = parts.iter().flatten().next() else { return Err(Error::MissingTensor(name.into())) };
        let alike = |t: &CheckpointTensor| t.shape == first.shape && t.kind() == first.kind() && t.dtype() == first.dtype();
        if let Some(other) = parts.iter().flatten().find(|part| !alike(part)) {
            let found = format!("{} of shape {:?}", other.kind(), other.shape);
            return Err(Error::tensor(name, "matrices of one shape and type for each expert", found));
        }
        let rows = parts[0].len() * first.shape.first().copied().unwrap_or(1);
        let shape = [parts.len(), rows].into_iter().chain(first.shape.iter().skip(1).copied()).collect();
        let pieces: Vec<CheckpointTensor> = parts.iter().flatten().copied().cloned().collect();
        Ok(CheckpointTensor::of(shape, Data::Stack(pieces.into())))
    }

    /// Whether both are plain elements of one shape and type, and not the same ones.
    pub(crate) fn differs(&self, other: &CheckpointTensor) -> bool {
        match (&self.data, &other.data) {
            (Data::Plain { dtype: a, bytes }, Data::Plain { dtype: b, bytes: others }) => {
                self.shape == other.shape && a == b && bytes[..] != others[..]
            }
            _ => false,
        }
    }

    /// The same tensor, stored plus 1.
    pub(crate) fn plus_one(self) -> CheckpointTensor {
        CheckpointTensor { form: ValueForm::PlusOne, ..self }
    }

    /// The same tensor, stored as its exponential.
    pub(crate) fn exponential(self) -> CheckpointTensor {
        CheckpointTensor { form: ValueForm::Exponentials, ..self }
    }

    /// The same tensor, stored as minus its exponential.
    pub(crate) fn negated_exponential(self) -> CheckpointTensor {
        CheckpointTensor { form: ValueForm::NegatedExponentials, ..self }
    }

    /// The tensor times one factor, or times one factor for each index of its first axis.
    ///
    /// # Errors
    /// [`Error::Tensor`] for other numbers of factors, or values that are neither floats nor codes.
    pub(crate) fn scaled(self, name: &str, list: Vec<f32>) -> Result<CheckpointTensor> {
        let (rows, cols) = self.matrix();
        let first = self.shape.first().copied().unwrap_or(1);
        if list.len() != 1 && list.len() != first {
            return Err(Error::tensor(name, format!("1 or {first} numbers"), format!("{} numbers", list.len())));
        }
        if list.iter().all(|&factor| factor == 1.0) {
            return Ok(self);
        }
        let factors = Factors { rows: rows / list.len(), list };
        let data = match &self.data {
            Data::Coded(stored) => Data::Coded(Arc::new(ScaledRows { stored: Arc::clone(stored), factors })),
            &Data::Plain { dtype: dtype @ (DType::F16 | DType::BF16 | DType::F32), ref bytes } => {
                let numbers = Numbers { dtype, bytes: bytes.clone() };
                Data::Floats(Arc::new(ScaledFloats { numbers, cols, factors }))
            }
            _ => return Err(Error::tensor(name, "a scale of floats or codes", format!("a scale of {}", self.kind()))),
        };
        Ok(CheckpointTensor { data, ..self })
    }

    /// Reshapes the tensor. The number of elements and the last axis must not change.
    pub(crate) fn with_shape(self, shape: Vec<usize>) -> CheckpointTensor {
        CheckpointTensor { shape, ..self }
    }

    /// Weights [channels, taps, 1] of a convolution as [channels, 1, taps]; `None` for others.
    pub(crate) fn with_taps_last(&self) -> Option<CheckpointTensor> {
        match self.shape[..] {
            [channels, taps, 1] if taps > 1 => Some(CheckpointTensor { shape: vec![channels, 1, taps], ..self.clone() }),
            _ => None,
        }
    }

    /// The transposed matrix.
    ///
    /// # Errors
    /// [`Error::Tensor`] if it is no matrix of plain floats.
    pub(crate) fn transposed(&self, name: &str) -> Result<CheckpointTensor> {
        match (&self.data, &self.shape[..]) {
            (&Data::Plain { dtype: dtype @ (DType::F16 | DType::BF16 | DType::F32), ref bytes }, &[rows, cols])
                if self.rows == RowOrder::Plain =>
            {
                let numbers = Numbers { dtype, bytes: bytes.clone() };
                Ok(CheckpointTensor::floats(vec![cols, rows], Columns { numbers, cols }))
            }
            _ => Err(Error::tensor(name, "a matrix of floats", format!("{} of shape {:?}", self.kind(), self.shape))),
        }
    }

    /// The stored rows `list` as a separate tensor.
    ///
    /// # Errors
    /// [`Error::Tensor`] if rows are missing, or are already stored in another order.
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
        let updates = self.updates.iter().map(|update| update.rows(list.iter().copied())).collect();
        Ok(CheckpointTensor { shape, rows: RowOrder::Listed(list.into()), updates, ..self.clone() })
    }

    /// The same tensor, stored with interleaved rotary rows, `head` rows per head.
    ///
    /// # Errors
    /// [`Error::Tensor`] if its rows are not whole heads of even size, or it is packed.
    pub(crate) fn interleaved(self, name: &str, head: usize) -> Result<CheckpointTensor> {
        let whole = head > 0 && head.is_multiple_of(2) && self.shape.first().is_some_and(|rows| rows.is_multiple_of(head));
        match self.data {
            Data::Plain { .. } | Data::Coded(_) | Data::Floats(_)
                if whole && self.shape.len() <= 2 && self.rows == RowOrder::Plain =>
            {
                Ok(CheckpointTensor { rows: RowOrder::Interleaved(head), ..self })
            }
            _ => Err(Error::tensor(name, format!("rows in heads of {head}"), format!("{} of shape {:?}", self.kind(), self.shape))),
        }
    }

    /// Whether the elements are codes with shared scales.
    pub(crate) fn is_packed(&self) -> bool {
        match &self.data {
            Data::Coded(_) | Data::Packed { .. } => true,
            Data::Stack(parts) => parts.iter().any(CheckpointTensor::is_packed),
            Data::Plain { .. } | Data::Floats(_) => false,
        }
    }

    /// Updates of adapters to this matrix, which programs add at run time.
    pub(crate) fn updates(&self) -> &[LowRank] {
        &self.updates
    }

    /// Adds an update of an adapter.
    pub(crate) fn add_update(&mut self, update: LowRank) {
        self.updates.push(update);
    }

    /// Shape of the values, outermost first.
    pub(crate) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Element type, or type of the scales.
    pub(crate) fn dtype(&self) -> DType {
        match &self.data {
            Data::Plain { dtype, .. } | Data::Packed { dtype, .. } => *dtype,
            Data::Coded(stored) => stored.exact_scales(),
            Data::Floats(_) => DType::F32,
            Data::Stack(parts) => parts.first().map_or(DType::F32, CheckpointTensor::dtype),
        }
    }

    /// Name of the element type, for messages.
    pub(crate) fn kind(&self) -> String {
        match &self.data {
            Data::Plain { dtype, .. } => dtype.to_string(),
            Data::Coded(stored) => stored.kind(),
            Data::Floats(stored) => stored.kind(),
            Data::Stack(parts) => parts.first().map_or("nothing".into(), CheckpointTensor::kind),
            Data::Packed { codes, .. } => format!("packed {} {} bits in groups of {}", codes.mode.name(), codes.bits, codes.group),
        }
    }

    /// Rows and columns of the tensor as a matrix, with leading axes joined.
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
        let mut order = RowOrder::Plain;
        let data = match &self.data {
            Data::Plain { dtype, bytes } => Data::Plain { dtype: *dtype, bytes: cut(bytes) },
            Data::Stack(parts) => {
                let each = parts.len() / rows.max(1);
                Data::Stack(parts.get(from * each..end * each)?.into())
            }
            Data::Coded(_) | Data::Floats(_) => {
                let each: usize = self.shape[1..self.shape.len().max(2) - 1].iter().product();
                order = RowOrder::Listed((from * each..end * each).collect());
                self.data.clone()
            }
            Data::Packed { words, scales, biases, dtype, codes } => {
                let (words, scales, biases) = (cut(words), cut(scales), biases.as_ref().map(cut));
                Data::Packed { words, scales, biases, dtype: *dtype, codes: *codes }
            }
        };
        let shape = std::iter::once(n).chain(self.shape[1..].iter().copied()).collect();
        let updates = self.updates.iter().map(|update| update.rows(from..end)).collect();
        Some(CheckpointTensor { shape, data, rows: order, form: self.form, updates })
    }

    /// The values as `f32`, for small tensors that are read during the build.
    pub(crate) fn values(&self, name: &str) -> Result<Vec<f32>> {
        let fault = |e: &dyn ToString| Error::tensor(name, "readable float elements", e.to_string());
        let Data::Plain { dtype, bytes } = &self.data else { return Err(fault(&self.kind())) };
        let tensor = Tensor::new(*dtype, &self.shape, bytes.clone()).and_then(|t| cast(&t, DType::F32)).map_err(|e| fault(&e))?;
        Ok(tensor.as_slice::<f32>().map_err(|e| fault(&e))?.to_vec())
    }

    /// The value of an 8-bit or 16-bit integer stored as a tensor with one element.
    pub(crate) fn small_integer(&self) -> Option<i64> {
        match &self.data {
            Data::Plain { dtype: DType::I8, bytes } => Some(i64::from(i8::from_le_bytes((&bytes[..]).try_into().ok()?))),
            Data::Plain { dtype: DType::I16, bytes } => Some(i64::from(i16::from_le_bytes((&bytes[..]).try_into().ok()?))),
            _ => None,
        }
    }

    /// A weight of f32 values that `f` computes from the stored values, under the storage id `id`.
    ///
    /// # Errors
    /// [`Error::Tensor`] for elements that are not plain floats.
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

    /// Number to add to each stored element to get 1 plus the weight.
    pub(crate) fn missing_one(&self) -> f32 {
        if self.form == ValueForm::PlusOne { 0.0 } else { 1.0 }
    }

    /// Conversion of the stored element to minus the exponential of a value.
    pub(crate) fn to_negated_exponential(&self) -> fn(f32) -> f32 {
        match self.form {
            ValueForm::NegatedExponentials => |stored| stored,
            ValueForm::Exponentials => |stored| -stored,
            ValueForm::Values | ValueForm::PlusOne => |value| -value.exp(),
        }
    }
}

/// Checks that `found` holds exactly the blocks that fill a shape. A block has `elements` elements
/// in `bytes` bytes.
fn filled(name: &str, shape: &[usize], (elements, bytes): (usize, usize), found: &Bytes) -> Result<()> {
    let whole = shape.last().is_some_and(|cols| cols.is_multiple_of(elements));
    let want = numel(shape).filter(|_| whole).and_then(|n| (n / elements).checked_mul(bytes));
    if want == Some(found.len()) {
        return Ok(());
    }
    Err(Error::tensor(name, format!("whole blocks of {elements} in shape {shape:?}"), format!("{} bytes", found.len())))
}

#[cfg(test)]
mod tests;
