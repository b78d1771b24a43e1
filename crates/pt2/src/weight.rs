//! Weights: views of storages, and quantized tensors of several views.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use flambeau_tensor::{AlignedBytes, Bytes, DType, Tensor, numel};
use indexmap::IndexMap;

use crate::{
    Error, Limited, Result, ScalarType, TensorFault,
    container::{Container, Member},
    limits::{FREE_EXPANSION, MAX_EXPANSION_RATIO},
};

/// Bytes that tensors view. In one archive, equal ids mean the same memory, including writes by
/// tensors.
#[derive(Clone, Debug)]
pub struct Storage {
    id: Arc<str>,
    len: usize,
    backing: Backing,
}

#[derive(Clone)]
enum Backing {
    Bytes(Bytes),
    Deflated(Arc<Deflated>),
    Computed(Arc<Produce>),
    Absent,
}

/// Reason why a storage could not be computed.
pub type ComputeError = Box<dyn std::error::Error + Send + Sync>;

type Produce = dyn Fn() -> Result<Bytes, ComputeError> + Send + Sync;

impl fmt::Debug for Backing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backing::Bytes(_) => "Bytes",
            Backing::Deflated(_) => "Deflated",
            Backing::Computed(_) => "Computed",
            Backing::Absent => "Absent",
        })
    }
}

/// A compressed member, inflated at the first read.
#[derive(Debug)]
struct Deflated {
    container: Container,
    index: usize,
    bytes: OnceLock<Bytes>,
}

impl Storage {
    /// Creates a storage over `bytes`. Equal ids must mean the same storage within one program.
    pub fn new(id: impl Into<Arc<str>>, bytes: Bytes) -> Storage {
        Storage { id: id.into(), len: bytes.len(), backing: Backing::Bytes(bytes) }
    }

    /// Creates a storage of `len` bytes that `produce` computes from smaller or differently packed
    /// data. `produce` runs on every read, and nothing is cached. Equal ids must mean the same
    /// storage within one program.
    pub fn computed(
        id: impl Into<Arc<str>>,
        len: usize,
        produce: impl Fn() -> Result<Bytes, ComputeError> + Send + Sync + 'static,
    ) -> Storage {
        Storage { id: id.into(), len, backing: Backing::Computed(Arc::new(produce)) }
    }

    /// Creates a storage of `len` bytes that the archive lacks. Reading it is an error.
    pub(crate) fn absent(id: Arc<str>, len: usize) -> Storage {
        Storage { id, len, backing: Backing::Absent }
    }

    /// Whether the archive states only the size, as PyTorch writes of fake tensors.
    pub fn is_absent(&self) -> bool {
        matches!(self.backing, Backing::Absent)
    }

    /// Creates the storage of member `name` of `container`.
    pub(crate) fn member(container: &Container, name: &str, id: String) -> Result<Storage> {
        Ok(match container.member(name)? {
            Member::Stored(bytes) => Storage::new(id, bytes),
            Member::Deflated { index, len } => {
                let deflated = Deflated { container: container.clone(), index, bytes: OnceLock::new() };
                Storage { id: id.into(), len, backing: Backing::Deflated(Arc::new(deflated)) }
            }
        })
    }

    /// Identity within one program: the place in the archive.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Whether both are certainly the same bytes, without reading them. Works across programs and
    /// archives.
    pub fn is_same(&self, other: &Storage) -> bool {
        match (&self.backing, &other.backing) {
            (Backing::Bytes(a), Backing::Bytes(b)) => a.as_ptr() == b.as_ptr() && a.len() == b.len(),
            (Backing::Deflated(a), Backing::Deflated(b)) => Arc::ptr_eq(a, b),
            (Backing::Computed(a), Backing::Computed(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the storage is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes: a slice of the archive, unless they are compressed or computed.
    ///
    /// # Errors
    /// [`Error::Member`] if a compressed member is damaged, [`Error::Computed`] or
    /// [`Error::Tensor`] if computing fails or the archive lacks the bytes.
    pub fn bytes(&self) -> Result<Bytes> {
        match &self.backing {
            Backing::Bytes(bytes) => Ok(bytes.clone()),
            Backing::Deflated(deflated) => match deflated.bytes.get() {
                Some(bytes) => Ok(bytes.clone()),
                None => {
                    let bytes = deflated.container.inflate(&self.id, deflated.index, self.len)?;
                    Ok(deflated.bytes.get_or_init(|| bytes).clone())
                }
            },
            Backing::Computed(produce) => match produce() {
                Ok(bytes) if bytes.len() == self.len => Ok(bytes),
                Ok(bytes) => Err(Error::tensor(&self.id, TensorFault::Computed { expected: self.len, found: bytes.len() })),
                Err(reason) => Err(Error::Computed { name: self.id.to_string(), reason }),
            },
            Backing::Absent => Err(Error::tensor(&self.id, TensorFault::Absent)),
        }
    }
}

impl PartialEq for Storage {
    fn eq(&self, other: &Storage) -> bool {
        self.id == other.id
    }
}

impl Eq for Storage {}

impl std::hash::Hash for Storage {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// A strided view of a storage. Strides and offset count elements. Equal views are one tensor, so a
/// write to one changes the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    pub dtype: DType,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
    pub offset: usize,
    pub storage: Storage,
}

impl View {
    /// Creates a row-major view of a whole storage.
    pub fn row_major(dtype: DType, shape: Vec<usize>, storage: Storage) -> View {
        let strides = flambeau_tensor::row_major_strides(&shape).iter().map(|&s| s.unsigned_abs()).collect();
        View { dtype, shape, strides, offset: 0, storage }
    }

    /// Whether the elements are in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1usize;
        for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
            if size == 0 {
                return true;
            }
            if size != 1 && stride != expected {
                return false;
            }
            expected = expected.saturating_mul(size);
        }
        true
    }

    /// Returns the elements as a row-major tensor `[shape]`: a slice of the storage if contiguous,
    /// else a copy.
    ///
    /// # Errors
    /// [`Error::Tensor`] if elements are outside of the storage, [`Error::Limit`] if a repeating
    /// view is too large to expand.
    pub fn tensor(&self) -> Result<Tensor> {
        let size = self.dtype.size();
        let len = self.check_extent()?;
        let bytes = self.storage.bytes()?;
        let data = if len == 0 {
            Bytes::new()
        } else if self.is_contiguous() {
            let start = self.offset.saturating_mul(size);
            let end = start.saturating_add(len);
            if end > bytes.len() {
                return Err(self.outside(end));
            }
            bytes.slice(start..end)
        } else {
            let mut out = AlignedBytes::zeroed(len);
            match size {
                1 => self.gather::<1>(&bytes, out.as_mut_slice()),
                2 => self.gather::<2>(&bytes, out.as_mut_slice()),
                4 => self.gather::<4>(&bytes, out.as_mut_slice()),
                _ => self.gather::<8>(&bytes, out.as_mut_slice()),
            }
            out.into_bytes()
        };
        Tensor::new(self.dtype, &self.shape, data).map_err(|e| self.error(e.into()))
    }

    fn error(&self, fault: TensorFault) -> Error {
        Error::tensor(&self.storage.id, fault)
    }

    /// The error for a view that reaches byte `end` beyond the storage.
    fn outside(&self, end: usize) -> Error {
        let (dtype, offset, len) = (self.dtype, self.offset, self.storage.len);
        let (shape, strides) = (self.shape.clone(), self.strides.clone());
        self.error(TensorFault::Outside { dtype, shape, strides, offset, end, len })
    }

    /// Checks that every element is inside the storage. Returns the size of the row-major tensor in
    /// bytes.
    pub(crate) fn check_extent(&self) -> Result<usize> {
        let size = self.dtype.size();
        if self.shape.len() != self.strides.len() {
            return Err(self.error(TensorFault::Rank { sizes: self.shape.len(), strides: self.strides.len() }));
        }
        let too_large = || self.error(TensorFault::TooLarge(self.shape.clone()));
        let len =
            numel(&self.shape).and_then(|n| n.checked_mul(size)).filter(|&n| isize::try_from(n).is_ok()).ok_or_else(too_large)?;
        if len == 0 {
            return Ok(0);
        }
        let end = self.end().ok_or_else(too_large)?;
        if end > self.storage.len {
            return Err(self.outside(end));
        }
        let limit = self.storage.len.saturating_mul(MAX_EXPANSION_RATIO).saturating_add(FREE_EXPANSION);
        if len > limit {
            return Err(Error::limit(Limited::RepeatingBytes(self.storage.id.to_string()), len, limit));
        }
        Ok(len)
    }

    /// The storage's bytes up to the last element, for a view that has elements.
    pub(crate) fn end(&self) -> Option<usize> {
        let reach = |last: usize, (&n, &stride): (&usize, &usize)| last.checked_add((n - 1).checked_mul(stride)?);
        let last = self.shape.iter().zip(&self.strides).try_fold(self.offset, reach);
        last.and_then(|last| last.checked_add(1)?.checked_mul(self.dtype.size()))
    }

    /// Copies elements of `N` bytes in row-major order. The extent is already checked.
    fn gather<const N: usize>(&self, from: &[u8], to: &mut [u8]) {
        let (Some(&inner), Some(&step)) = (self.shape.last(), self.strides.last()) else { return };
        let outer = self.shape.len() - 1;
        let mut index = vec![0usize; outer];
        let mut base = self.offset;
        for row in to.chunks_exact_mut(inner * N) {
            for (i, element) in row.chunks_exact_mut(N).enumerate() {
                let at = (base + i * step) * N;
                element.copy_from_slice(&from[at..at + N]);
            }
            for d in (0..outer).rev() {
                index[d] += 1;
                // Past the end of an axis, the sum may leave the storage, but it returns before its
                // use.
                base = base.wrapping_add(self.strides[d]);
                if index[d] < self.shape[d] {
                    break;
                }
                base = base.wrapping_sub(self.strides[d].wrapping_mul(self.shape[d]));
                index[d] = 0;
            }
        }
    }
}

/// A scalar field of a tensor subclass.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// Text, a device or a layout.
    Text(String),
    /// PyTorch's name of an element type without `torch.`, including types below one byte such as
    /// `int4`.
    DType(String),
    List(Vec<Attribute>),
    /// An object of this class, such as the quantization of activations.
    Object(String),
}

/// A quantized tensor: named tensors and scalars, interpreted by its class.
#[derive(Clone, Debug, PartialEq)]
pub struct Subclass {
    /// The class without its module, such as `IntxUnpackedToInt8Tensor`.
    pub class: String,
    /// Element type after dequantization.
    pub dtype: ScalarType,
    /// Shape after dequantization.
    pub shape: Vec<usize>,
    pub tensors: IndexMap<String, View>,
    pub attributes: IndexMap<String, Attribute>,
}

/// A parameter, buffer or constant.
#[derive(Clone, PartialEq)]
pub enum Weight {
    Strided(View),
    Subclass(Box<Subclass>),
    /// A tensor with an unsupported element type, such as a complex one.
    Foreign {
        dtype: ScalarType,
        shape: Vec<usize>,
    },
}

impl fmt::Debug for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = match self {
            Weight::Subclass(s) => &s.class,
            _ => "Weight",
        };
        write!(f, "{class}({} {:?})", self.dtype(), self.shape())
    }
}

impl Weight {
    /// Creates a weight over a row-major tensor. `id` must differ from the ids of all other
    /// storages of the program.
    pub fn from_tensor(id: impl Into<Arc<str>>, tensor: &Tensor) -> Weight {
        Weight::Strided(View::row_major(tensor.dtype(), tensor.shape().to_vec(), Storage::new(id, tensor.bytes().clone())))
    }

    /// Element type in the graph: for a quantized tensor, the type after dequantization.
    pub fn dtype(&self) -> ScalarType {
        match self {
            Weight::Strided(view) => view.dtype.into(),
            Weight::Subclass(subclass) => subclass.dtype,
            Weight::Foreign { dtype, .. } => *dtype,
        }
    }

    /// Shape in the graph: for a quantized tensor, the shape after dequantization.
    pub fn shape(&self) -> &[usize] {
        match self {
            Weight::Strided(view) => &view.shape,
            Weight::Subclass(subclass) => &subclass.shape,
            Weight::Foreign { shape, .. } => shape,
        }
    }

    /// Returns the elements of an ordinary tensor in row-major order.
    ///
    /// # Errors
    /// As [`View::tensor`]. [`Error::NoElements`] for a quantized tensor, [`Error::ElementType`]
    /// for an unsupported element type.
    pub fn tensor(&self) -> Result<Tensor> {
        match self {
            Weight::Strided(view) => view.tensor(),
            Weight::Subclass(s) => Err(Error::NoElements(s.class.clone())),
            Weight::Foreign { dtype, shape } => {
                Err(Error::ElementType { name: format!("tensor of shape {shape:?}"), dtype: *dtype })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn view(shape: &[usize], strides: &[usize], offset: usize, elements: usize) -> View {
        let bytes: Vec<u8> = (0..elements as u16).flat_map(u16::to_le_bytes).collect();
        View {
            dtype: DType::U16,
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            offset,
            storage: Storage::new("s", bytes.into()),
        }
    }

    fn elements(v: &View) -> Result<Vec<u16>> {
        let t = v.tensor()?;
        Ok(t.bytes().chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect())
    }

    #[test]
    fn strided_views_become_row_major() {
        let check = |v: View, want: &[u16]| assert_eq!(elements(&v).unwrap(), want);
        check(view(&[2, 3], &[3, 1], 0, 6), &[0, 1, 2, 3, 4, 5]);
        check(view(&[3, 2], &[1, 3], 0, 6), &[0, 3, 1, 4, 2, 5]);
        check(view(&[2, 2], &[3, 1], 1, 6), &[1, 2, 4, 5]);
        check(view(&[2, 3], &[0, 1], 0, 3), &[0, 1, 2, 0, 1, 2]);
        check(view(&[2, 1, 2], &[2, 77, 1], 0, 4), &[0, 1, 2, 3]);
        check(view(&[], &[], 3, 4), &[3]);
        check(view(&[0, 4], &[9, 9], 50, 4), &[]);
    }

    #[test]
    fn contiguous_views_share_the_bytes() {
        let v = view(&[2, 2], &[2, 1], 1, 6);
        assert_eq!(v.tensor().unwrap().bytes().as_ptr(), v.storage.bytes().unwrap()[2..].as_ptr());
    }

    #[test]
    fn views_outside_of_the_storage_are_refused() {
        let check = |v: View, want: &str| assert!(elements(&v).unwrap_err().to_string().contains(want), "{want}");
        check(view(&[2, 3], &[3, 1], 1, 6), "reaches byte 14 of a storage of 12");
        check(view(&[2], &[usize::MAX], 1, 6), "too large");
        check(view(&[usize::MAX, usize::MAX], &[0, 0], 0, 6), "too large");
        check(view(&[1 << 40], &[0], 0, 1), "exceeds the limit");
        check(view(&[2, 2], &[1], 0, 6), "2 sizes but 1 strides");
    }

    proptest! {
        #[test]
        fn any_view_is_read_or_refused(shape in prop::collection::vec(0usize..5, 0..4), strides in prop::collection::vec(0usize..9, 0..4), offset in 0usize..9) {
            let v = view(&shape, &strides, offset, 20);
            if let Ok(values) = elements(&v) {
                prop_assert_eq!(values.len(), shape.iter().product::<usize>());
                let at = |i: usize| (0..shape.len()).rev().fold((i, offset), |(rest, at), d| (rest / shape[d], at + rest % shape[d] * strides[d])).1;
                prop_assert!(values.iter().enumerate().all(|(i, &v)| usize::from(v) == at(i)));
            }
        }
    }
}
