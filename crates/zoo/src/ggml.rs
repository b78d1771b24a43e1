//! Reads Whisper in whisper.cpp's form: a `.bin` file with sizes, mel filters, a vocabulary and
//! tensors under OpenAI's names.
//!
//! Numbers are little-endian. Strings and tensors follow their sizes, without alignment.

mod vocab;

use flambeau_tensor::Bytes;
use indexmap::IndexMap;

use crate::{
    Checkpoint, CheckpointTensor, Error, Result, TokenizerSource,
    architecture::Architecture,
    gguf::TensorType,
    limits::{MAX_GGML_NAME_BYTES, MAX_GGML_TENSORS, MAX_LAYERS, MAX_POSITIONS, MAX_SIZE},
    speech::{decoder::EMBEDDING, encoder::Stack, whisper::WhisperConfig},
};

const FORMAT: &str = "ggml";
const MAGIC: u32 = 0x6767_6d6c;
/// Largest rank: the axes of a convolution's weight.
const MAX_RANK: u32 = 3;

/// Reads the checkpoint in a file. Its weights are slices of the file.
pub(crate) fn checkpoint(bytes: &Bytes) -> Result<Checkpoint> {
    let mut r = GgmlReader { bytes, at: 0 };
    if r.number()? != MAGIC {
        return Err(Error::file(FORMAT, "it does not begin as whisper.cpp's files do"));
    }
    let sizes = GgmlSizes::read(&mut r)?;
    let (mels, bins) = (r.size("mels of the filters", MAX_SIZE)?, r.size("bins of the filters", MAX_SIZE)?);
    // Filters are computed elsewhere.
    r.take(mels.saturating_mul(bins).saturating_mul(4))?;
    let (vocab, tokens) = vocab::read(&mut r, sizes.vocab)?;
    let tensors = tensors(&mut r)?;
    let first = "model.encoder.layers.0.fc1.weight";
    let feed_forward = tensors.get(first).and_then(|tensor| tensor.shape().first().copied());
    let feed_forward = feed_forward.ok_or_else(|| Error::MissingTensor(first.into()))?;
    let stack = |[layers, heads]: [usize; 2]| Stack { layers, heads, feed_forward };
    let config = WhisperConfig {
        mels: sizes.mels,
        width: sizes.width,
        audio_positions: sizes.audio_positions,
        text_positions: sizes.text_positions,
        encoder: stack(sizes.encoder),
        decoder: stack(sizes.decoder),
        vocab: sizes.vocab,
        tied: true,
        dtype: None,
        alignment_heads: alignment_heads(sizes.decoder),
        tokens,
    };
    Ok(Checkpoint::new(Architecture::Whisper(config), tensors, TokenizerSource::Gguf(Box::new(vocab))))
}

/// Heads of cross-attention that align words with the audio. The file does not name the best heads,
/// but heads in the later half of the layers work well.
fn alignment_heads([layers, heads]: [usize; 2]) -> Vec<[usize; 2]> {
    (layers / 2..layers).flat_map(|layer| (0..heads).map(move |head| [layer, head])).collect()
}

/// Sizes in the header of a file.
struct GgmlSizes {
    vocab: usize,
    audio_positions: usize,
    text_positions: usize,
    width: usize,
    /// Layers and heads.
    encoder: [usize; 2],
    decoder: [usize; 2],
    mels: usize,
}

impl GgmlSizes {
    fn read(r: &mut GgmlReader<'_>) -> Result<GgmlSizes> {
        let vocab = r.size("tokens", MAX_SIZE)?;
        let mut stack = |positions| -> Result<(usize, usize, [usize; 2])> {
            let (positions, width) = (r.size(positions, MAX_POSITIONS)?, r.size("width", MAX_SIZE)?);
            let (heads, layers) = (r.size("heads", MAX_SIZE)?, r.size("layers", MAX_LAYERS)?);
            if !width.is_multiple_of(heads) {
                return Err(r.error(format!("{heads} heads in a width of {width}")));
            }
            Ok((positions, width, [layers, heads]))
        };
        let (audio_positions, width, encoder) = stack("positions of audio")?;
        let (text_positions, text_width, decoder) = stack("positions of text")?;
        if width != text_width {
            return Err(r.error(format!("an encoder of width {width} and a decoder of width {text_width}")));
        }
        let mels = r.size("mels", MAX_SIZE)?;
        // Type of most weights. Each tensor states its own type.
        r.number()?;
        Ok(GgmlSizes { vocab, audio_positions, text_positions, width, encoder, decoder, mels })
    }
}

/// Reads the tensors up to the end of the file, under the names of Hugging Face checkpoints.
fn tensors(r: &mut GgmlReader<'_>) -> Result<IndexMap<String, CheckpointTensor>> {
    let mut out = IndexMap::new();
    while r.at < r.bytes.len() {
        if out.len() >= MAX_GGML_TENSORS {
            return Err(Error::limit("tensors of a ggml file", out.len() as u64 + 1, MAX_GGML_TENSORS as u64));
        }
        let (rank, length, kind) = (r.number()?, r.number()? as usize, r.number()?);
        if rank > MAX_RANK || length > MAX_GGML_NAME_BYTES {
            return Err(r.error(format!("a tensor of {rank} axes, and a name of {length} bytes")));
        }
        let mut shape = (0..rank).map(|_| r.size("elements along an axis", MAX_SIZE)).collect::<Result<Vec<usize>>>()?;
        shape.reverse();
        let name = String::from_utf8(r.take(length)?.to_vec()).map_err(|_| r.error("a name that is no text"))?;
        let tensor = tensor(r, &name, TensorType::from_number(kind), shape)?;
        let published = published(&name).ok_or_else(|| r.error(format!("a tensor `{}`", name.escape_debug())))?;
        if out.insert(published, tensor).is_some() {
            return Err(r.error(format!("a second tensor `{name}`")));
        }
    }
    Ok(out)
}

fn tensor(r: &mut GgmlReader<'_>, name: &str, kind: TensorType, mut shape: Vec<usize>) -> Result<CheckpointTensor> {
    let unknown = || Error::tensor(name, "floats or quantized blocks", kind.name());
    let (elements, bytes) = kind.block().ok_or_else(unknown)?;
    let count = shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
    let length = count.and_then(|n| n.div_ceil(elements).checked_mul(bytes));
    let data = r.take(length.ok_or_else(|| r.error("a tensor beyond all memory"))?)?;
    // The bias of a convolution is stored as a column.
    if name.contains("conv") && name.ends_with(".bias") && shape.last() == Some(&1) {
        shape.pop();
    }
    match kind {
        TensorType::Plain(dtype) => CheckpointTensor::plain(name, dtype, shape, data),
        TensorType::Blocks(block) => CheckpointTensor::blocks(name, block, shape, data),
        TensorType::Codebook(kind) => CheckpointTensor::codebook_blocks(name, kind, shape, data),
        TensorType::TwoBits(_) | TensorType::Mxfp4 | TensorType::Nvfp4 | TensorType::Other(_) => Err(unknown()),
    }
}

/// Modules of a layer, by OpenAI's name and by Hugging Face's.
const MODULES: [(&str, &str); 13] = [
    ("attn.query", "self_attn.q_proj"),
    ("attn.key", "self_attn.k_proj"),
    ("attn.value", "self_attn.v_proj"),
    ("attn.out", "self_attn.out_proj"),
    ("attn_ln", "self_attn_layer_norm"),
    ("cross_attn.query", "encoder_attn.q_proj"),
    ("cross_attn.key", "encoder_attn.k_proj"),
    ("cross_attn.value", "encoder_attn.v_proj"),
    ("cross_attn.out", "encoder_attn.out_proj"),
    ("cross_attn_ln", "encoder_attn_layer_norm"),
    ("mlp.0", "fc1"),
    ("mlp.2", "fc2"),
    ("mlp_ln", "final_layer_norm"),
];

/// A tensor's name in Hugging Face's checkpoints.
fn published(name: &str) -> Option<String> {
    let (side, rest) = name.split_once('.').filter(|(side, _)| ["encoder", "decoder"].contains(side))?;
    match rest {
        "positional_embedding" => return Some(format!("model.{side}.embed_positions.weight")),
        "token_embedding.weight" => return Some(EMBEDDING.to_owned()),
        _ => {}
    }
    let (module, part) = rest.rsplit_once('.').filter(|(_, part)| ["weight", "bias"].contains(part))?;
    if let Some((layer, module)) = module.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) {
        let (_, theirs) = MODULES.iter().find(|(ours, _)| *ours == module)?;
        let layer: usize = layer.parse().ok()?;
        return Some(format!("model.{side}.layers.{layer}.{theirs}.{part}"));
    }
    match module {
        "conv1" | "conv2" => Some(format!("model.{side}.{module}.{part}")),
        "ln" | "ln_post" => Some(format!("model.{side}.layer_norm.{part}")),
        _ => None,
    }
}

/// Reads numbers, and slices bytes without copying.
struct GgmlReader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl GgmlReader<'_> {
    fn error(&self, what: impl Into<String>) -> Error {
        Error::file(FORMAT, format!("byte {}: {}", self.at, what.into()))
    }

    fn take(&mut self, length: usize) -> Result<Bytes> {
        let end = self.at.checked_add(length).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| self.error(format!("the file ends before {length} more bytes")))?;
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u32> {
        let bytes = self.take(4)?;
        Ok(bytes.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)))
    }

    /// A number from 1 to `most`.
    fn size(&mut self, what: &str, most: usize) -> Result<usize> {
        let found = self.number()?;
        usize::try_from(found)
            .ok()
            .filter(|size| (1..=most).contains(size))
            .ok_or_else(|| self.error(format!("{what}: {found}, expected 1 to {most}")))
    }
}
