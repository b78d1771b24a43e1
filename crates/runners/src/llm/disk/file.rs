//! File format of a text with the snapshot of its caches.
//!
//! Numbers are little-endian. The file begins with [`MAGIC`], the length of its head (`u64`), and
//! the CRC-32 of the head and of all data (`u32` each). The head holds the model's fingerprint, the
//! number of tokens (`u64`), the tokens (`u32` each), and the number of tensors (`u64`). For each
//! tensor it holds the type and rank (`u8` each) and the sizes (`u64` each). The tensors' data
//! follows, each aligned to [`ALIGNMENT`].

use std::io::{self, Write};

use flambeau_tensor::{Bytes, DType, Shape, Tensor, numel};

use super::super::{adapters::Adapters, snapshot::Snapshot};

/// Hash of a program's bytes and of everything else that determines its caches' contents.
pub(super) type Fingerprint = [u8; 32];

/// Magic number; the last byte is the format's version.
const MAGIC: [u8; 8] = *b"FLMBTXT\x01";

/// Number of bytes before the head.
const START: usize = 24;

/// Alignment of tensor data in bytes; a tensor's own storage has the same alignment.
const ALIGNMENT: usize = 64;

/// Error of reading a file.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileError {
    #[error(transparent)]
    Map(#[from] flambeau_runtime::Error),
    #[error("it is no copy of a text that this version writes")]
    Foreign,
    #[error("it is of another model")]
    Model,
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// A file to be written.
pub(super) struct Encoded<'a> {
    head: Vec<u8>,
    state: &'a [Tensor],
}

impl<'a> Encoded<'a> {
    /// Encodes a text whose tokens the snapshot covers entirely.
    pub(super) fn new(model: &Fingerprint, ids: &[u32], snapshot: &'a Snapshot) -> Encoded<'a> {
        let mut head = model.to_vec();
        head.extend((ids.len() as u64).to_le_bytes());
        head.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
        head.extend((snapshot.state.len() as u64).to_le_bytes());
        for tensor in &snapshot.state {
            head.extend([tensor.dtype().code() as u8, tensor.rank() as u8]);
            head.extend(tensor.shape().iter().flat_map(|&size| (size as u64).to_le_bytes()));
        }
        Encoded { head, state: &snapshot.state }
    }

    /// Size of the file in bytes.
    pub(super) fn size(&self) -> u64 {
        let end = |at: usize, tensor: &Tensor| at.next_multiple_of(ALIGNMENT) + tensor.bytes().len();
        self.state.iter().fold(START + self.head.len(), end) as u64
    }

    /// Writes the file.
    ///
    /// # Errors
    /// Fails if writing fails.
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut data = crc32fast::Hasher::new();
        self.state.iter().for_each(|tensor| data.update(tensor.bytes()));
        out.write_all(&MAGIC)?;
        out.write_all(&(self.head.len() as u64).to_le_bytes())?;
        out.write_all(&crc32fast::hash(&self.head).to_le_bytes())?;
        out.write_all(&data.finalize().to_le_bytes())?;
        out.write_all(&self.head)?;
        let mut at = START + self.head.len();
        for tensor in self.state {
            let begin = at.next_multiple_of(ALIGNMENT);
            out.write_all(&[0; ALIGNMENT][..begin - at])?;
            out.write_all(tensor.bytes())?;
            at = begin + tensor.bytes().len();
        }
        Ok(())
    }
}

/// The parsed head of a file.
#[derive(Debug)]
struct Head {
    ids: Vec<u32>,
    tensors: Vec<(DType, Shape)>,
    /// CRC-32 of the data.
    data: u32,
    end: usize,
}

/// Reads the tokens of a file without its data.
///
/// # Errors
/// Fails if the head is damaged or belongs to another model.
pub(super) fn read_ids(file: &[u8], model: &Fingerprint) -> Result<Vec<u32>, FileError> {
    read_head(file, model).map(|head| head.ids)
}

/// Reads the snapshot in a file of these adapters; the tensors share the file's bytes.
///
/// # Errors
/// Fails if the file is damaged or belongs to another model.
pub(super) fn read_snapshot(file: &Bytes, (model, adapters): (&Fingerprint, &Adapters)) -> Result<Snapshot, FileError> {
    let head = read_head(file, model)?;
    let (mut at, mut check) = (head.end, crc32fast::Hasher::new());
    let mut state = Vec::with_capacity(head.tensors.len());
    for (dtype, shape) in head.tensors {
        let begin = at.next_multiple_of(ALIGNMENT);
        let end = numel(&shape).and_then(|n| n.checked_mul(dtype.size())).and_then(|n| n.checked_add(begin));
        at = end.filter(|&end| end <= file.len()).ok_or(FileError::Damaged("it ends too early"))?;
        check.update(&file[begin..at]);
        let tensor = Tensor::new(dtype, &shape, file.slice(begin..at));
        state.push(tensor.map_err(|_| FileError::Damaged("a tensor has no such shape"))?);
    }
    match () {
        () if at != file.len() => Err(FileError::Damaged("bytes follow its last tensor")),
        () if check.finalize() != head.data => Err(FileError::Damaged("the checksum of its data is wrong")),
        () => Ok(Snapshot { position: head.ids.len(), adapters: adapters.clone(), state }),
    }
}

/// Reads a file of whatever model, with its data.
///
/// # Errors
/// Fails if the file is damaged.
pub(super) fn read_any(file: &Bytes) -> Result<Snapshot, FileError> {
    let model = file.get(START..).and_then(|head| head.first_chunk()).ok_or(FileError::Damaged("it ends too early"))?;
    read_snapshot(file, (model, &Adapters::default()))
}

fn read_head(file: &[u8], model: &Fingerprint) -> Result<Head, FileError> {
    const SHORT: FileError = FileError::Damaged("it ends too early");
    let mut start = HeaderReader(file);
    if start.take::<8>() != Some(MAGIC) {
        return Err(FileError::Foreign);
    }
    let length = start.number().ok_or(SHORT)?;
    let [head, data] = [start.take(), start.take()].map(|word| word.map(u32::from_le_bytes));
    let (check, data) = head.zip(data).ok_or(SHORT)?;
    let head = start.0.get(..length).ok_or(SHORT)?;
    if crc32fast::hash(head) != check {
        return Err(FileError::Damaged("the checksum of its head is wrong"));
    }
    let mut head = HeaderReader(head);
    if head.take().ok_or(SHORT)? != *model {
        return Err(FileError::Model);
    }
    let (ids, tensors) = head.ids().zip(head.tensors()).ok_or(FileError::Damaged("its head says less than it has to"))?;
    Ok(Head { ids, tensors, data, end: START + length })
}

/// A reader over the unread rest of a byte slice.
struct HeaderReader<'a>(&'a [u8]);

impl HeaderReader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// Reads a `u64` as a `usize`; `None` if it does not fit.
    fn number(&mut self) -> Option<usize> {
        self.take().and_then(|bytes| u64::from_le_bytes(bytes).try_into().ok())
    }

    fn ids(&mut self) -> Option<Vec<u32>> {
        let count = self.number()?;
        let bytes = self.0.split_off(..count.checked_mul(4)?)?;
        Some(bytes.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect())
    }

    fn tensors(&mut self) -> Option<Vec<(DType, Shape)>> {
        let count = self.number()?;
        let mut tensor = || {
            let [dtype, rank] = self.take()?;
            let shape: Option<Shape> = (0..rank).map(|_| self.number()).collect();
            Some((DType::from_code(dtype as i8)?, shape?))
        };
        (0..count).map(|_| tensor()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &Bytes) -> Result<Snapshot, FileError> {
        read_snapshot(file, (&MODEL, &Adapters::default()))
    }

    const MODEL: Fingerprint = [7; 32];

    fn file() -> Vec<u8> {
        let state = vec![
            Tensor::from_slice(&[1.5f32, -2.0, 0.25], &[3, 1]).unwrap(),
            Tensor::from_slice(&[1u8, 2, 3, 4, 5], &[5]).unwrap(),
            Tensor::zeros(DType::BF16, &[0, 2]).unwrap(),
        ];
        let snapshot = Snapshot { position: 2, adapters: Adapters::default(), state };
        let encoded = Encoded::new(&MODEL, &[3, 70_000], &snapshot);
        let mut out = Vec::new();
        encoded.write(&mut out).unwrap();
        assert_eq!(out.len() as u64, encoded.size());
        out
    }

    #[test]
    fn what_is_written_reads_back() {
        let file = Bytes::from(file());
        assert_eq!(read_ids(&file, &MODEL).unwrap(), [3, 70_000]);
        let snapshot = read(&file).unwrap();
        assert_eq!((snapshot.position(), snapshot.state.len()), (2, 3));
        assert_eq!(read_any(&file).unwrap().state.len(), 3);
        let [floats, bytes, empty] = [0, 1, 2].map(|at| snapshot.state[at].aligned());
        assert_eq!((floats.as_slice::<f32>().unwrap(), floats.shape()), (&[1.5, -2.0, 0.25][..], &[3, 1][..]));
        assert_eq!(bytes.as_slice::<u8>().unwrap(), [1, 2, 3, 4, 5]);
        assert_eq!((empty.dtype(), empty.shape()), (DType::BF16, &[0, 2][..]));
    }

    #[test]
    fn no_damage_goes_unnoticed() {
        let good = file();
        for length in 0..good.len() {
            assert!(read(&good[..length].to_vec().into()).is_err(), "{length} bytes");
        }
        let mut unnoticed = Vec::new();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            if read(&bad.into()).is_ok() {
                unnoticed.push(at);
            }
        }
        // Padding between the parts is never read.
        let head = START + u64::from_le_bytes(good[8..16].try_into().unwrap()) as usize;
        let first = head.next_multiple_of(ALIGNMENT);
        assert_eq!(unnoticed, (head..first).chain(first + 12..first + 64).chain(first + 69..good.len()).collect::<Vec<_>>());
        let longer = [&good[..], &[0]].concat();
        assert!(matches!(read(&longer.into()), Err(FileError::Damaged(_))));
    }

    #[test]
    fn files_of_others_are_told_apart() {
        assert!(matches!(read_ids(&file(), &[8; 32]), Err(FileError::Model)));
        assert!(matches!(read_ids(b"PK\x03\x04 and so on", &MODEL), Err(FileError::Foreign)));
    }

    #[test]
    fn heads_with_right_checksums_are_not_trusted() {
        let good = file();
        let head = START..START + u64::from_le_bytes(good[8..16].try_into().unwrap()) as usize;
        for at in head.clone() {
            for value in [0, 1, 2, 6, 8, 44, 127, 128, 255] {
                let mut bad = good.clone();
                bad[at] = value;
                let check = crc32fast::hash(&bad[head.clone()]);
                bad[16..20].copy_from_slice(&check.to_le_bytes());
                if let Ok(snapshot) = read(&bad.into()) {
                    assert!(snapshot.bytes() <= good.len(), "byte {at} as {value}");
                }
            }
        }
    }

    #[test]
    fn counts_beyond_the_file_are_refused() {
        for counts in [[u64::MAX, 0], [0, u64::MAX], [1 << 40, 1], [0, 1]] {
            let head = [&MODEL[..], &counts[0].to_le_bytes(), &counts[1].to_le_bytes()].concat();
            let mut bad = [&MAGIC[..], &(head.len() as u64).to_le_bytes(), &crc32fast::hash(&head).to_le_bytes(), &[0; 4]].concat();
            bad.extend(head);
            assert!(matches!(read_ids(&bad, &MODEL), Err(FileError::Damaged(_))), "{counts:?}");
        }
    }
}
