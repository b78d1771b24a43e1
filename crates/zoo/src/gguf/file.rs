//! The container.

use flambeau_tensor::{Bytes, numel};
use indexmap::IndexMap;

use super::{Array, MetadataValue, TensorType, reader::GgufReader};
use crate::{
    CheckpointTensor, Error, Result,
    limits::{MAX_GGUF_ALIGNMENT, MAX_GGUF_ENTRIES, MAX_GGUF_NAME_BYTES, MAX_GGUF_PARTS, MAX_GGUF_RANK, MAX_GGUF_TENSORS},
};

const ALIGNMENT: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Keys of a split file: the index of a part, the number of parts, and the number of tensors in all
/// parts.
const SPLIT_AT: &str = "split.no";
const SPLIT_OF: &str = "split.count";
const SPLIT_TENSORS: &str = "split.tensors.count";
/// Least size of a metadata entry and of a tensor's description, in bytes.
const LEAST_ENTRY: usize = 13;
const LEAST_TENSOR: usize = 24;

/// A parsed GGUF file. Tensors and numeric arrays are slices of its bytes.
#[derive(Clone, Debug)]
pub struct Gguf {
    pub version: u32,
    pub metadata: IndexMap<String, MetadataValue>,
    pub tensors: IndexMap<String, TensorInfo>,
}

/// A tensor of a GGUF file.
#[derive(Clone, Debug)]
pub struct TensorInfo {
    /// Sizes, outermost first as in PyTorch.
    pub shape: Vec<usize>,
    pub kind: TensorType,
    /// Byte offset in the file.
    pub offset: usize,
    /// The stored bytes. For types of unknown size, all bytes up to the end of the file.
    pub bytes: Bytes,
}

impl Gguf {
    /// Reads the header and checks that every tensor is inside the file.
    ///
    /// # Errors
    /// [`Error::Gguf`] with the offset of the format violation, [`Error::Limit`] for an excessive
    /// count.
    pub fn parse(bytes: Bytes) -> Result<Gguf> {
        let mut r = GgufReader::new(bytes.clone());
        let version = read_version(&mut r)?;
        let n_tensors = r.count("tensors", MAX_GGUF_TENSORS, LEAST_TENSOR)?;
        let n_entries = r.count("metadata entries", MAX_GGUF_ENTRIES, LEAST_ENTRY)?;
        let mut metadata = IndexMap::new();
        for _ in 0..n_entries {
            let at = r.offset();
            let key = r.text("metadata key", MAX_GGUF_NAME_BYTES)?;
            let value = MetadataValue::read(&mut r)?;
            if let Some(_first) = metadata.insert(key.clone(), value) {
                return Err(Error::Gguf { offset: at, what: format!("metadata key `{key}` occurs twice") });
            }
        }
        let described = (0..n_tensors).map(|_| Described::read(&mut r)).collect::<Result<Vec<_>>>()?;
        let alignment = alignment(&metadata)?;
        let start = (r.offset() as u64).next_multiple_of(alignment);
        let mut tensors = IndexMap::with_capacity(described.len());
        for tensor in described {
            let (at, name) = (tensor.at, tensor.name.clone());
            let info = tensor.locate(&bytes, start, alignment)?;
            if let Some(_first) = tensors.insert(name.clone(), info) {
                return Err(Error::Gguf { offset: at, what: format!("tensor `{name}` occurs twice") });
            }
        }
        Ok(Gguf { version, metadata, tensors })
    }

    /// Joins the parts of a split file, in order. A single part is the whole file unless it states
    /// more parts.
    ///
    /// # Errors
    /// [`Error::Part`] for parts of different files.
    pub fn join(parts: Vec<Gguf>) -> Result<Gguf> {
        let (n, mut all) = (parts.len(), None::<Gguf>);
        for (i, part) in parts.into_iter().enumerate() {
            let fault = |what: String| Error::Part { part: i + 1, what };
            let (at, of) = (part.int(SPLIT_AT)?.unwrap_or(0), part.int(SPLIT_OF)?.unwrap_or(1).max(1));
            if at != i as i64 || of != n as i64 {
                return Err(fault(format!("it says that it is number {} of {of}, expected {} of {n}", at + 1, i + 1)));
            }
            let Some(all) = &mut all else {
                all = Some(part);
                continue;
            };
            for (name, tensor) in part.tensors {
                if let Some(_first) = all.tensors.insert(name.clone(), tensor) {
                    return Err(fault(format!("tensor `{name}` is in an earlier part, too")));
                }
            }
        }
        let all = all.ok_or_else(|| Error::Part { part: 1, what: "it is missing".into() })?;
        match all.int(SPLIT_TENSORS)? {
            Some(stated) if stated != all.tensors.len() as i64 => {
                let what = format!("it says that all parts hold {stated} tensors, and they hold {}", all.tensors.len());
                Err(Error::Part { part: 1, what })
            }
            _ => Ok(all),
        }
    }

    /// The names of all parts of a split file, from the name of one part such as
    /// `model-00001-of-00003.gguf`. `None` for other names.
    pub fn part_names(name: &str) -> Option<Vec<String>> {
        let (start, of) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, at) = start.rsplit_once('-')?;
        let number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse::<usize>().ok()).flatten();
        let (n, at, width) = (number(of)?, number(at)?, of.len());
        let is_known = (1..=n).contains(&at) && n <= MAX_GGUF_PARTS && width >= 5;
        is_known.then(|| (1..=n).map(|part| format!("{stem}-{part:0width$}-of-{of}.gguf")).collect())
    }

    /// The tensor with this name, if the file has it.
    ///
    /// # Errors
    /// [`Error::Tensor`] for a type without an affine form.
    pub(crate) fn source(&self, name: &str) -> Result<Option<CheckpointTensor>> {
        let Some(info) = self.tensors.get(name) else { return Ok(None) };
        let (shape, bytes) = (info.shape.clone(), info.bytes.clone());
        match info.kind {
            TensorType::Plain(dtype) => CheckpointTensor::plain(name, dtype, shape, bytes).map(Some),
            TensorType::Blocks(block) => CheckpointTensor::blocks(name, block, shape, bytes).map(Some),
            TensorType::Codebook(kind) => CheckpointTensor::codebook_blocks(name, kind, shape, bytes).map(Some),
            TensorType::TwoBits(kind) => CheckpointTensor::two_bit_blocks(name, kind, shape, bytes).map(Some),
            TensorType::Mxfp4 => CheckpointTensor::mxfp4_blocks(name, shape, bytes).map(Some),
            TensorType::Nvfp4 => CheckpointTensor::nvfp4_blocks(name, shape, bytes).map(Some),
            TensorType::Other(_) => {
                let expected = "a plain type, Q1_0 to Q8_0, IQ1_S to IQ4_XS, TQ1_0, TQ2_0, MXFP4 or NVFP4";
                Err(Error::tensor(name, expected, info.kind.name()))
            }
        }
    }

    /// Rows of a tensor, if the file has it.
    pub(crate) fn rows(&self, name: &str) -> Option<usize> {
        self.tensors.get(name)?.shape.first().copied()
    }

    /// Whether any decoder layer has a tensor with this name.
    pub(crate) fn has_in_blocks(&self, name: &str) -> bool {
        self.tensors
            .keys()
            .any(|key| key.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).is_some_and(|(_, part)| part == name))
    }

    fn typed<T>(&self, key: &str, expected: &str, get: impl Fn(&MetadataValue) -> Option<T>) -> Result<Option<T>> {
        let Some(value) = self.metadata.get(key) else { return Ok(None) };
        get(value).map(Some).ok_or_else(|| Error::key(key, expected, value.describe()))
    }

    /// The integer under a key, if there is one.
    ///
    /// # Errors
    /// [`Error::Key`] for a value of another kind. The other readers return the same error.
    pub fn int(&self, key: &str) -> Result<Option<i64>> {
        self.typed(key, "an integer", |v| if let MetadataValue::Int(v) = v { Some(*v) } else { None })
    }

    /// The number under a key.
    pub fn float(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |v| match v {
            MetadataValue::Float(v) => Some(*v),
            MetadataValue::Int(v) => Some(*v as f64),
            _ => None,
        })
    }

    /// The boolean under a key.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        // Some writers store booleans as integers.
        self.typed(key, "a boolean", |v| match v {
            MetadataValue::Bool(v) => Some(*v),
            MetadataValue::Int(v @ (0 | 1)) => Some(*v == 1),
            _ => None,
        })
    }

    /// The text under a key.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        match self.metadata.get(key) {
            None => Ok(None),
            Some(MetadataValue::Text(text)) => Ok(Some(text)),
            Some(other) => Err(Error::key(key, "a text", other.describe())),
        }
    }

    /// The strings under a key. Empty if the key is missing.
    pub fn texts(&self, key: &str) -> Result<&[String]> {
        match self.metadata.get(key) {
            None => Ok(&[]),
            Some(MetadataValue::Array(Array::Texts(texts))) => Ok(texts),
            Some(MetadataValue::Array(array)) if array.is_empty() => Ok(&[]),
            Some(other) => Err(Error::key(key, "an array of texts", other.describe())),
        }
    }

    /// The numbers under a key, converted by `get`. Empty if the key is missing.
    pub fn numbers<T>(&self, key: &str, get: impl Fn(MetadataValue) -> Option<T>) -> Result<Vec<T>> {
        match self.metadata.get(key) {
            None => Ok(Vec::new()),
            Some(MetadataValue::Array(Array::Numbers(numbers))) => {
                let all: Option<Vec<T>> = numbers.iter().map(get).collect();
                all.ok_or_else(|| Error::key(key, "numbers of another type", "an array with others"))
            }
            Some(MetadataValue::Array(array)) if array.is_empty() => Ok(Vec::new()),
            Some(other) => Err(Error::key(key, "an array of numbers", other.describe())),
        }
    }
}

fn read_version(r: &mut GgufReader) -> Result<u32> {
    let magic = r.take(4, "magic")?;
    if magic[..] != *b"GGUF" {
        return Err(Error::Gguf { offset: 0, what: format!("expected the magic `GGUF`, found {:?}", &magic[..]) });
    }
    match r.u32("version")? {
        version @ (2 | 3) => Ok(version),
        version if (2..=3).contains(&version.swap_bytes()) => {
            Err(Error::Gguf { offset: 4, what: "expected a little-endian file, found a big-endian one".into() })
        }
        version => Err(Error::Gguf { offset: 4, what: format!("expected version 2 or 3, found {version}") }),
    }
}

fn alignment(metadata: &IndexMap<String, MetadataValue>) -> Result<u64> {
    match metadata.get(ALIGNMENT) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(&MetadataValue::Int(v)) if v > 0 && v as u64 <= MAX_GGUF_ALIGNMENT && v % 8 == 0 => Ok(v as u64),
        Some(other) => Err(Error::key(ALIGNMENT, format!("a multiple of 8 up to {MAX_GGUF_ALIGNMENT}"), other.describe())),
    }
}

/// A tensor as the header describes it.
struct Described {
    /// Offset of the description in the header.
    at: usize,
    name: String,
    shape: Vec<usize>,
    kind: TensorType,
    offset: u64,
}

impl Described {
    fn read(r: &mut GgufReader) -> Result<Described> {
        let at = r.offset();
        let name = r.text("tensor name", MAX_GGUF_NAME_BYTES)?;
        let rank = r.u32("tensor rank")?;
        if rank > MAX_GGUF_RANK {
            return Err(Error::limit("dims of a tensor", u64::from(rank), u64::from(MAX_GGUF_RANK)));
        }
        let mut shape = Vec::with_capacity(rank as usize);
        for _ in 0..rank {
            let size = r.u64("tensor size")?;
            shape.push(usize::try_from(size).map_err(|_| r.error(format!("size {size} of tensor `{name}` is too large")))?);
        }
        shape.reverse();
        let kind = TensorType::from_number(r.u32("tensor type")?);
        Ok(Described { at, name, shape, kind, offset: r.u64("tensor offset")? })
    }

    fn locate(self, file: &Bytes, start: u64, alignment: u64) -> Result<TensorInfo> {
        let fault = |what: String| Error::Gguf { offset: self.at, what: format!("tensor `{}`: {what}", self.name) };
        if !self.offset.is_multiple_of(alignment) {
            return Err(fault(format!("expected an offset at a multiple of {alignment}, found {}", self.offset)));
        }
        let offset = start.checked_add(self.offset).and_then(|o| usize::try_from(o).ok()).filter(|&o| o <= file.len());
        let offset = offset.ok_or_else(|| fault(format!("offset {} is past the end of the file", self.offset)))?;
        let len = match self.kind.block() {
            None => file.len() - offset,
            Some((elements, bytes)) => {
                let whole = elements == 1 || self.shape.last().is_some_and(|cols| cols.is_multiple_of(elements));
                let len = numel(&self.shape).filter(|_| whole).and_then(|n| (n / elements).checked_mul(bytes));
                len.ok_or_else(|| fault(format!("shape {:?} is not whole blocks of {}", self.shape, self.kind.name())))?
            }
        };
        let end = offset.checked_add(len).filter(|&end| end <= file.len());
        let end = end.ok_or_else(|| fault(format!("its {len} bytes pass the end of the file of {}", file.len())))?;
        Ok(TensorInfo { shape: self.shape, kind: self.kind, offset, bytes: file.slice(offset..end) })
    }
}
