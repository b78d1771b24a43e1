//! NumPy's array files: one array (`.npy`), or several in a zip file (`.npz`).

use std::io::{Cursor, Read, Write};

use anyhow::{Context, Result, bail};
use flambeau::tensor::{AlignedBytes, Bytes, DType, Tensor};

const MAGIC: &[u8] = b"\x93NUMPY";

/// Maximum number of arrays per archive.
const MAX_ARRAYS: usize = 65_536;
/// Maximum ratio of the arrays' size to the archive's size. Deflate cannot compress more, so
/// archives beyond it contain overlapping entries.
const MAX_INFLATION_RATIO: u64 = 1032;

/// NumPy's name of each type that it has.
const TYPES: [(&str, DType); 12] = [
    ("f4", DType::F32),
    ("f2", DType::F16),
    ("f8", DType::F64),
    ("i1", DType::I8),
    ("i2", DType::I16),
    ("i4", DType::I32),
    ("i8", DType::I64),
    ("u1", DType::U8),
    ("u2", DType::U16),
    ("u4", DType::U32),
    ("u8", DType::U64),
    ("b1", DType::Bool),
];

/// Reads a `.npy` file.
pub(crate) fn read(file: &Bytes) -> Result<Tensor> {
    let rest = file.strip_prefix(MAGIC).context("not a NumPy array file")?;
    let (head, start) = match rest {
        [1, _, a, b, ..] => (usize::from(u16::from_le_bytes([*a, *b])), 10),
        [2 | 3, _, a, b, c, d, ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, 12),
        _ => bail!("the NumPy header is truncated or of an unknown version"),
    };
    let end = start + head;
    let text = file.get(start..end).and_then(|h| std::str::from_utf8(h).ok()).context("the NumPy header is truncated")?;
    let (descr, fortran, shape) = (field(text, "descr")?, field(text, "fortran_order")?, field(text, "shape")?);
    let dtype = dtype_of(descr.trim_matches(['\'', '"']))?;
    if fortran != "False" {
        bail!("arrays in Fortran order are not read; save np.ascontiguousarray(x)");
    }
    let sizes = shape.trim_matches(['(', ')']).split(',').map(str::trim).filter(|s| !s.is_empty());
    let shape: Vec<usize> = sizes.map(|s| s.parse().with_context(|| format!("size `{s}`"))).collect::<Result<_>>()?;
    Ok(Tensor::new(dtype, &shape, file.slice(end..))?.aligned())
}

/// Value of an entry in the header's dictionary.
fn field<'a>(header: &'a str, key: &str) -> Result<&'a str> {
    let missing = || format!("the NumPy header lacks `{key}`");
    let at = header.find(&format!("'{key}'")).with_context(missing)? + key.len() + 2;
    let rest = header[at..].trim_start().strip_prefix(':').with_context(missing)?.trim_start();
    let end = if rest.starts_with('(') { rest.find(')').map(|e| e + 1) } else { rest.find([',', '}']) };
    Ok(rest[..end.with_context(missing)?].trim())
}

fn dtype_of(descr: &str) -> Result<DType> {
    let kind = descr.trim_start_matches(['<', '|', '=']);
    let found = TYPES.iter().find(|(name, _)| *name == kind).map(|row| row.1);
    found.with_context(|| format!("NumPy arrays of type `{}` are not read", descr.escape_debug()))
}

/// Writes a `.npy` file.
pub(crate) fn write(tensor: &Tensor, out: &mut dyn Write) -> Result<()> {
    let dtype = tensor.dtype();
    let Some((name, _)) = TYPES.iter().find(|row| row.1 == dtype) else {
        bail!("NumPy has no type {dtype}; write a .safetensors or .bin file");
    };
    let order = if dtype.size() == 1 { '|' } else { '<' };
    let shape: String = tensor.shape().iter().map(|d| format!("{d}, ")).collect();
    let shape = if tensor.rank() > 1 { shape.trim_end_matches(", ") } else { shape.trim_end() };
    let mut header = format!("{{'descr': '{order}{name}', 'fortran_order': False, 'shape': ({shape}), }}");
    let padded = (10 + header.len() + 1).next_multiple_of(64);
    header.extend(std::iter::repeat_n(' ', padded - 11 - header.len()));
    header.push('\n');
    out.write_all(MAGIC)?;
    out.write_all(&[1, 0])?;
    out.write_all(&u16::try_from(header.len())?.to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    Ok(out.write_all(tensor.bytes())?)
}

/// Reads a `.npz` file; arrays come in the file's order.
pub(crate) fn read_archive(file: &Bytes) -> Result<Vec<(String, Tensor)>> {
    let mut archive = zip::ZipArchive::new(Cursor::new(file.clone())).context("not a zip file")?;
    if archive.len() > MAX_ARRAYS {
        bail!("the archive has {} arrays, at most {MAX_ARRAYS} are read", archive.len());
    }
    let limit = (file.len() as u64).saturating_mul(MAX_INFLATION_RATIO);
    let (mut tensors, mut total) = (Vec::new(), 0u64);
    for i in 0..archive.len() {
        let member = archive.by_index(i)?;
        let name = member.name()?.trim_end_matches(".npy").to_owned();
        total = total.saturating_add(member.size());
        if total > limit {
            bail!("the archive's arrays take over {limit} bytes, more than its {} can hold", file.len());
        }
        let (mut bytes, size) = (Vec::new(), member.size());
        member.take(size).read_to_end(&mut bytes).with_context(|| format!("array `{}`", name.escape_debug()))?;
        let bytes = AlignedBytes::copy_of(&bytes).into_bytes();
        let tensor = read(&bytes).with_context(|| format!("array `{}`", name.escape_debug()))?;
        tensors.push((name, tensor));
    }
    Ok(tensors)
}

/// Writes a `.npz` file.
pub(crate) fn write_archive(tensors: &[(String, Tensor)], out: &mut dyn Write) -> Result<()> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let options = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored).large_file(true);
    for (name, tensor) in tensors {
        archive.start_file(format!("{name}.npy"), options)?;
        write(tensor, &mut archive)?;
    }
    Ok(out.write_all(archive.finish()?.get_ref())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(tensor: &Tensor) -> Bytes {
        let mut out = Vec::new();
        write(tensor, &mut out).unwrap();
        Bytes::from(out)
    }

    #[test]
    fn what_is_written_reads_back() {
        for shape in [&[][..], &[3], &[1, 3], &[0, 2]] {
            let n: usize = shape.iter().product();
            let values: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let tensor = Tensor::from_slice(&values, shape).unwrap();
            let back = read(&written(&tensor)).unwrap();
            assert_eq!((back.shape(), back.bytes()), (tensor.shape(), tensor.bytes()));
            let mut out = Vec::new();
            write_archive(&[("a".into(), tensor.clone())], &mut out).unwrap();
            let archive = read_archive(&Bytes::from(out)).unwrap();
            assert_eq!((&*archive[0].0, archive[0].1.shape()), ("a", tensor.shape()));
        }
    }

    #[test]
    fn archives_cannot_hold_more_than_deflation_does() {
        let (mut out, tensor) = (Vec::new(), Tensor::zeros(DType::U8, &[1_000_003]).unwrap());
        write_archive(&[("a".into(), tensor)], &mut out).unwrap();
        let size = (read_archive(&Bytes::from(out.clone())).unwrap()[0].1.numel() as u32 + 128).to_le_bytes();
        for at in 0..out.len() - 4 {
            if out[at..at + 4] == size {
                out[at..at + 4].copy_from_slice(&0xffff_fffe_u32.to_le_bytes());
            }
        }
        let error = read_archive(&Bytes::from(out)).unwrap_err().to_string();
        assert!(error.contains("more than its"), "{error}");
    }

    #[test]
    fn damaged_files_are_refused() {
        let file = written(&Tensor::from_slice(&[1i64, 2], &[2]).unwrap());
        for n in 0..file.len() {
            assert!(read(&file.slice(..n)).is_err(), "{n} bytes");
        }
        let edit = |from: &str, to: &str| {
            let text: Vec<u8> = file.to_vec();
            let at = text.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
            Bytes::from([&text[..at], to.as_bytes(), &text[at + from.len()..]].concat())
        };
        for (from, to) in [("<i8", ">i8"), ("False", "True "), ("(2,)", "(3,)"), ("descr", "desxr"), ("(2,)", "(-,)")] {
            assert!(read(&edit(from, to)).is_err(), "{to}");
        }
        assert!(write(&Tensor::zeros(DType::BF16, &[1]).unwrap(), &mut Vec::new()).is_err());
    }
}
