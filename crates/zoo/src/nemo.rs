//! Reads NeMo's `.nemo` files: a tar archive with a config, weights pickled by PyTorch and a
//! SentencePiece model. The archive may be compressed.

mod config;
mod names;
mod yaml;

use std::io::{Cursor, Read};

use flambeau_pt2::{Weight, load_map};
use flambeau_tensor::Bytes;
use flambeau_text::GgufVocab;
use flate2::read::MultiGzDecoder;
use indexmap::IndexMap;

use crate::{
    Checkpoint, CheckpointTensor, Error, Result, TokenizerSource,
    architecture::Architecture,
    fields::Fields,
    limits::{MAX_NEMO_INFLATION, MAX_NEMO_MEMBERS, MAX_NEMO_PADDING},
};

const CONFIG: &str = "model_config.yaml";
const WEIGHTS: &str = "model_weights.ckpt";
/// End of a tokenizer's name, after a digest.
const TOKENIZER: &str = "tokenizer.model";
/// Magic number of compressed files.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads the checkpoint in a file. Its weights are slices of the file, or of its inflated contents.
pub(crate) fn checkpoint(bytes: &Bytes) -> Result<Checkpoint> {
    let members = if bytes.starts_with(&GZIP) { members(&inflated(bytes)?)? } else { members(bytes)? };
    let member = |name: &str| members.get(name).ok_or_else(|| Error::MissingFile(name.into()));
    let mut tensors = IndexMap::new();
    for (name, weight) in load_map(member(WEIGHTS)?.clone(), WEIGHTS)? {
        if let Some(published) = names::published(&name) {
            tensors.insert(published, tensor(&name, &weight)?);
        }
    }
    let map = yaml::read(CONFIG, member(CONFIG)?)?;
    let config = config::parakeet(&Fields::new(&map), &tensors)?;
    let tokenizer = match members.iter().find(|(name, _)| name.ends_with(TOKENIZER)) {
        Some((name, bytes)) => {
            let vocab = GgufVocab::from_sentence_piece(bytes).map_err(|e| Error::file(name, e))?;
            TokenizerSource::Pieces(Box::new(vocab))
        }
        None => TokenizerSource::Files(Vec::new()),
    };
    Ok(Checkpoint::new(Architecture::Parakeet(config), tensors, tokenizer))
}

/// Inflates a compressed file in memory.
fn inflated(bytes: &Bytes) -> Result<Bytes> {
    let most = (bytes.len() as u64).saturating_mul(MAX_NEMO_INFLATION).saturating_add(MAX_NEMO_PADDING);
    let mut out = Vec::new();
    let read = MultiGzDecoder::new(&bytes[..]).take(most.saturating_add(1)).read_to_end(&mut out);
    read.map_err(|error| Error::Nemo(format!("it is compressed, and cut short or damaged: {error}")))?;
    if out.len() as u64 > most {
        return Err(Error::limit("bytes of a compressed .nemo file's contents", out.len() as u64, most));
    }
    Ok(out.into())
}

/// The files of an archive by their last path component.
fn members(bytes: &Bytes) -> Result<IndexMap<String, Bytes>> {
    let damaged = |error: std::io::Error| Error::Nemo(error.to_string());
    let mut archive = tar::Archive::new(Cursor::new(&bytes[..]));
    let mut out = IndexMap::new();
    for entry in archive.entries_with_seek().map_err(damaged)? {
        let entry = entry.map_err(damaged)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let (start, end) = (entry.raw_file_position(), entry.raw_file_position().saturating_add(entry.size()));
        let path = entry.path().map_err(damaged)?;
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
        let range = usize::try_from(start).ok().zip(usize::try_from(end).ok()).filter(|&(_, end)| end <= bytes.len());
        let (start, end) = range.ok_or_else(|| Error::Nemo(format!("`{name}` passes the end of the file")))?;
        out.insert(name, bytes.slice(start..end));
        if out.len() > MAX_NEMO_MEMBERS {
            return Err(Error::limit("members of a .nemo file", out.len() as u64, MAX_NEMO_MEMBERS as u64));
        }
    }
    Ok(out)
}

fn tensor(name: &str, weight: &Weight) -> Result<CheckpointTensor> {
    let tensor = weight.tensor()?;
    CheckpointTensor::plain(name, tensor.dtype(), tensor.shape().to_vec(), tensor.bytes().clone())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    #[test]
    fn damaged_files_are_told() {
        let error = |bytes: &[u8]| checkpoint(&Bytes::copy_from_slice(bytes)).unwrap_err().to_string();
        assert!(error(b"\x1f\x8b....").contains("cut short or damaged"));
        assert!(error(b"").contains(WEIGHTS));
        assert!(error(&[b'a'; 2000]).contains(".nemo"));
        let mut header = tar::Header::new_ustar();
        header.set_path(WEIGHTS).unwrap();
        header.set_size(u64::MAX / 2);
        header.set_cksum();
        assert!(error(header.as_bytes()).contains("passes the end"));
    }

    #[test]
    fn compressed_files_have_a_bound() {
        let zeros = vec![0; (2 * MAX_NEMO_PADDING) as usize];
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&zeros).unwrap();
        let error = checkpoint(&encoder.finish().unwrap().into()).unwrap_err();
        assert!(matches!(error, Error::Limit { .. }), "{error}");
    }
}
