//! The tensor-list file of ExecuTorch's op tests: `u32` count, then per tensor `u32` dtype, `u32`
//! rank, `i32` dims, raw data.
//!
//! Everything is little-endian. The dtype numbers are the format's own: 0 f32, 1 f16, 2 i32, 3 i64,
//! 4 bf16, 5 bool, 6 u8.

use bytes::Bytes;

use crate::{DType, Error, Shape, Tensor, numel};

const DTYPES: [DType; 7] = [DType::F32, DType::F16, DType::I32, DType::I64, DType::BF16, DType::Bool, DType::U8];

/// No tensor has more dims than this.
const MAX_RANK: u32 = 16;

/// Reads a whole file.
///
/// # Errors
/// [`Error::TensorList`] with the offset at which the bytes break the format.
pub fn read(file: &Bytes) -> Result<Vec<Tensor>, Error> {
    let mut at = 0;
    let mut word = || -> Result<u32, Error> {
        let bytes = file.get(at..at + 4).ok_or(Error::TensorList { offset: at, what: "the file ends inside a header" })?;
        at += 4;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    let count = word()?;
    let mut offset = 4;
    let mut tensors = Vec::new();
    for _ in 0..count {
        let (tensor, next) = read_one(file, offset)?;
        tensors.push(tensor);
        offset = next;
    }
    if offset != file.len() {
        return Err(Error::TensorList { offset, what: "bytes follow the last tensor" });
    }
    Ok(tensors)
}

fn read_one(file: &Bytes, start: usize) -> Result<(Tensor, usize), Error> {
    let fail = |offset, what| Error::TensorList { offset, what };
    let word = |i: usize| -> Result<[u8; 4], Error> {
        let at = start + 4 * i;
        let bytes = file.get(at..at + 4).ok_or(fail(at, "the file ends inside a header"))?;
        Ok([bytes[0], bytes[1], bytes[2], bytes[3]])
    };
    let dtype = *DTYPES.get(u32::from_le_bytes(word(0)?) as usize).ok_or(fail(start, "unknown dtype number"))?;
    let rank = u32::from_le_bytes(word(1)?);
    if rank > MAX_RANK {
        return Err(fail(start + 4, "the rank is over 16"));
    }
    let shape = (0..rank as usize)
        .map(|i| usize::try_from(i32::from_le_bytes(word(2 + i)?)).map_err(|_| fail(start + 8 + 4 * i, "a size is negative")))
        .collect::<Result<Shape, Error>>()?;
    let data = start + 8 + 4 * shape.len();
    let end = numel(&shape)
        .and_then(|n| n.checked_mul(dtype.size()))
        .and_then(|n| n.checked_add(data))
        .filter(|&end| end <= file.len())
        .ok_or(fail(data, "the file ends inside a tensor"))?;
    Ok((Tensor::new(dtype, &shape, file.slice(data..end))?.aligned(), end))
}

/// Writes a whole file.
///
/// # Errors
/// [`Error::Cast`] for a dtype that the format has no number for.
pub fn write(tensors: &[Tensor]) -> Result<Vec<u8>, Error> {
    let mut out = (tensors.len() as u32).to_le_bytes().to_vec();
    for t in tensors {
        let number = DTYPES.iter().position(|&d| d == t.dtype());
        let number = number.ok_or(Error::Cast { from: t.dtype(), to: DType::F32 })? as u32;
        out.extend(number.to_le_bytes());
        out.extend((t.rank() as u32).to_le_bytes());
        out.extend(t.shape().iter().flat_map(|&d| (d as i32).to_le_bytes()));
        out.extend_from_slice(t.bytes());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let a = Tensor::from_slice(&[1.0f32, 2.0], &[1, 2]).unwrap();
        let b = Tensor::from_slice(&[7i64], &[]).unwrap();
        write(&[a, b]).unwrap()
    }

    #[test]
    fn what_is_written_reads_back() {
        let tensors = read(&Bytes::from(sample())).unwrap();
        assert_eq!(tensors[0].as_slice::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!((tensors[1].shape(), tensors[1].as_slice::<i64>().unwrap()), (&[][..], &[7][..]));
    }

    #[test]
    fn every_truncation_is_an_error() {
        let file = sample();
        for n in 0..file.len() {
            assert!(read(&Bytes::from(file[..n].to_vec())).is_err(), "{n} bytes");
        }
    }
}
