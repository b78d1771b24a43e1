//! Reads Whisper in CTranslate2's form: `model.bin` with `config.json` and `tokenizer.json`.

use flambeau_tensor::{Bytes, DType};
use indexmap::IndexMap;
use serde_json::{Map, Value};

use crate::{
    CheckpointTensor, Error, Result,
    family::alignment_heads,
    fields::Fields,
    limits::{MAX_CT2_NAME_BYTES, MAX_CT2_RANK, MAX_CT2_VARIABLES, MAX_LAYERS, MAX_SIZE},
    speech::{
        decoder::EMBEDDING,
        encoder::Stack,
        whisper::{Tokens, WhisperConfig},
    },
};

/// File that identifies such folders.
pub(crate) const MODEL: &str = "model.bin";
const VERSIONS: std::ops::RangeInclusive<u32> = 5..=6;
/// Number of tokens of English-only models. Others have more.
const ENGLISH: usize = 51_864;

type Tensors = IndexMap<String, CheckpointTensor>;

/// The config and the tensors of a Whisper model, under the names of Hugging Face checkpoints.
///
/// # Errors
/// [`Error::File`] for a damaged file, another model, or integer codes.
pub(crate) fn whisper(
    model: &Bytes,
    config: &Map<String, Value>,
    tokenizer: Option<&Map<String, Value>>,
) -> Result<(WhisperConfig, Tensors)> {
    let variables = variables(model)?;
    let tokenizer = tokenizer.ok_or_else(|| Error::MissingFile("tokenizer.json".into()))?;
    let [width, mels, _] = shape(&variables, "encoder/conv1/weight")?;
    let [vocab, _] = shape(&variables, "decoder/embeddings/weight")?;
    let stack = |side: &str| -> Result<Stack> {
        let feed_forward = |layer: usize| format!("{side}/layer_{layer}/ffn/linear_0/weight");
        let layers = (0..MAX_LAYERS).take_while(|&layer| variables.contains_key(&feed_forward(layer))).count();
        let heads = integer(&variables, &format!("{side}/num_heads"))?;
        if !width.is_multiple_of(heads) {
            return Err(Error::file(MODEL, format!("{heads} heads in a width of {width}")));
        }
        Ok(Stack { layers, heads, feed_forward: shape::<2>(&variables, &feed_forward(0))?[0] })
    };
    let positions =
        |side: &str| -> Result<usize> { Ok(shape::<2>(&variables, &format!("{side}/position_encodings/encodings"))?[0]) };
    let (encoder, decoder, fields) = (stack("encoder")?, stack("decoder")?, Fields::new(config));
    let config = WhisperConfig {
        mels,
        width,
        audio_positions: positions("encoder")?,
        text_positions: positions("decoder")?,
        encoder,
        decoder,
        vocab,
        tied: true,
        dtype: Some(DType::F32),
        alignment_heads: alignment_heads(&fields, decoder)?,
        tokens: tokens(&fields, tokenizer, vocab > ENGLISH)?,
    };
    let mut renamed = Renamed { variables: &variables, width, out: Tensors::new() };
    renamed.both("encoder/conv1", "model.encoder.conv1", LINEAR)?;
    renamed.both("encoder/conv2", "model.encoder.conv2", LINEAR)?;
    renamed.one("decoder/embeddings/weight", EMBEDDING.to_owned())?;
    renamed.stack("encoder", encoder.layers)?;
    renamed.stack("decoder", decoder.layers)?;
    Ok((config, renamed.out))
}

fn missing(name: &str) -> Error {
    Error::MissingTensor(name.to_owned())
}

/// The shape of a variable, with all sizes above 0.
fn shape<const N: usize>(variables: &Tensors, name: &str) -> Result<[usize; N]> {
    let found = variables.get(name).ok_or_else(|| missing(name))?.shape();
    let shape = <[usize; N]>::try_from(found).ok().filter(|shape| shape.iter().all(|size| (1..=MAX_SIZE).contains(size)));
    shape.ok_or_else(|| Error::tensor(name, format!("{N} sizes from 1 to {MAX_SIZE}"), format!("{found:?}")))
}

/// An integer stored as a tensor.
fn integer(variables: &Tensors, name: &str) -> Result<usize> {
    let tensor = variables.get(name).ok_or_else(|| missing(name))?;
    let value = tensor.small_integer().and_then(|value| usize::try_from(value).ok()).filter(|value| (1..=MAX_SIZE).contains(value));
    value.ok_or_else(|| Error::tensor(name, format!("an integer from 1 to {MAX_SIZE}"), tensor.kind()))
}

/// Token ids, found by name in the tokenizer.
fn tokens(config: &Fields<'_>, tokenizer: &Map<String, Value>, is_multilingual: bool) -> Result<Tokens> {
    let added = tokenizer.get("added_tokens").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let named = |token: &Value| Some((token.get("content")?.as_str()?.to_owned(), token.get("id")?.as_i64()?));
    let ids: IndexMap<String, i64> = added.iter().filter_map(named).collect();
    let id = |name: &str| {
        let id = ids.get(name).copied();
        id.ok_or_else(|| Error::file("tokenizer.json", format!("there is no token {name}")))
    };
    let list = |key: &str| -> Result<Vec<i64>> { Ok(config.ints(key)?.into_iter().filter(|&id| id >= 0).collect()) };
    let no_timestamps = id("<|notimestamps|>")?;
    let mut languages = Vec::new();
    for language in list("lang_ids")?.into_iter().filter(|_| is_multilingual) {
        let token = ids.iter().find_map(|(name, id)| (*id == language).then_some(name));
        let code = token.and_then(|token| token.strip_prefix("<|")?.strip_suffix("|>"));
        let code = code.ok_or_else(|| config.error("lang_ids", "ids of languages in tokenizer.json"))?;
        languages.push((code.to_owned(), language));
    }
    let task = |name: &str| if is_multilingual { id(name).map(Some) } else { Ok(None) };
    Ok(Tokens {
        end: id("<|endoftext|>")?,
        start: id("<|startoftranscript|>")?,
        previous: id("<|startofprev|>")?,
        no_speech: no_timestamps - 1,
        no_timestamps,
        translate: task("<|translate|>")?,
        transcribe: task("<|transcribe|>")?,
        languages,
        suppressed: list("suppress_ids")?,
        suppressed_at_begin: list("suppress_ids_begin")?,
        last_initial_timestamp: 50,
    })
}

/// Renames tensors to their names in Hugging Face checkpoints.
struct Renamed<'a> {
    variables: &'a Tensors,
    width: usize,
    out: Tensors,
}

/// Tensors of linear layers and norms, in both naming schemes.
const LINEAR: [&str; 2] = ["weight", "bias"];
const NORM: [&str; 2] = ["gamma", "beta"];

impl Renamed<'_> {
    fn one(&mut self, from: &str, to: String) -> Result<()> {
        let tensor = self.variables.get(from).cloned().ok_or_else(|| missing(from))?;
        self.out.insert(to, tensor);
        Ok(())
    }

    fn both(&mut self, from: &str, to: &str, parts: [&str; 2]) -> Result<()> {
        parts.iter().zip(LINEAR).try_for_each(|(part, name)| self.one(&format!("{from}/{part}"), format!("{to}.{name}")))
    }

    /// Projections whose rows are joined. The key projection has no bias: zeros replace it.
    fn projections(&mut self, from: &str, to: &str, names: &[&str]) -> Result<()> {
        for part in LINEAR {
            let from = format!("{from}/{part}");
            let whole = self.variables.get(&from).ok_or_else(|| missing(&from))?;
            for (i, name) in names.iter().enumerate().filter(|(_, name)| part != "bias" || **name != "k") {
                let rows = whole.slice(i * self.width, self.width);
                let expected = || format!("{} rows", names.len() * self.width);
                let rows = rows.ok_or_else(|| Error::tensor(&from, expected(), format!("shape {:?}", whole.shape())))?;
                self.out.insert(format!("{to}.{name}_proj.{part}"), rows);
            }
        }
        Ok(())
    }

    fn stack(&mut self, side: &str, layers: usize) -> Result<()> {
        self.one(&format!("{side}/position_encodings/encodings"), format!("model.{side}.embed_positions.weight"))?;
        self.both(&format!("{side}/layer_norm"), &format!("model.{side}.layer_norm"), NORM)?;
        for layer in 0..layers {
            let (from, to) = (format!("{side}/layer_{layer}"), format!("model.{side}.layers.{layer}"));
            self.both(&format!("{from}/self_attention/layer_norm"), &format!("{to}.self_attn_layer_norm"), NORM)?;
            self.projections(&format!("{from}/self_attention/linear_0"), &format!("{to}.self_attn"), &["q", "k", "v"])?;
            self.both(&format!("{from}/self_attention/linear_1"), &format!("{to}.self_attn.out_proj"), LINEAR)?;
            if side == "decoder" {
                self.both(&format!("{from}/attention/layer_norm"), &format!("{to}.encoder_attn_layer_norm"), NORM)?;
                self.both(&format!("{from}/attention/linear_0"), &format!("{to}.encoder_attn.q_proj"), LINEAR)?;
                self.projections(&format!("{from}/attention/linear_1"), &format!("{to}.encoder_attn"), &["k", "v"])?;
                self.both(&format!("{from}/attention/linear_2"), &format!("{to}.encoder_attn.out_proj"), LINEAR)?;
            }
            self.both(&format!("{from}/ffn/layer_norm"), &format!("{to}.final_layer_norm"), NORM)?;
            self.both(&format!("{from}/ffn/linear_0"), &format!("{to}.fc1"), LINEAR)?;
            self.both(&format!("{from}/ffn/linear_1"), &format!("{to}.fc2"), LINEAR)?;
        }
        Ok(())
    }
}

/// All variables of the file, and its aliases.
fn variables(model: &Bytes) -> Result<Tensors> {
    let mut r = Ct2Reader { bytes: model, at: 0 };
    let version = r.u32()?;
    if !VERSIONS.contains(&version) {
        return Err(r.error(format!("version {version}, expected {} or {}", VERSIONS.start(), VERSIONS.end())));
    }
    let spec = r.text()?;
    if spec != "WhisperSpec" {
        return Err(r.error(format!("a model of the kind {}, expected WhisperSpec", spec.escape_debug())));
    }
    r.u32()?;
    let mut out = Tensors::new();
    for _ in 0..r.count("variables")? {
        let name = r.text()?;
        let (rank, mut shape) = (r.u8()?, Vec::new());
        if u64::from(rank) > MAX_CT2_RANK {
            return Err(Error::limit("axes of a variable", rank.into(), MAX_CT2_RANK));
        }
        for _ in 0..rank {
            shape.push(r.u32()? as usize);
        }
        let dtype = match r.u8()? {
            0 => DType::F32,
            1 => DType::I8,
            2 => DType::I16,
            3 => DType::I32,
            4 => DType::F16,
            5 => DType::BF16,
            other => return Err(r.error(format!("element type {other} of `{}`", name.escape_debug()))),
        };
        let len = r.u32()? as usize;
        let tensor = CheckpointTensor::plain(&name, dtype, shape, r.take(len)?)?;
        out.insert(name, tensor);
    }
    for _ in 0..r.count("aliases")? {
        let (alias, target) = (r.text()?, r.text()?);
        let tensor = out.get(&target).cloned().ok_or_else(|| missing(&target))?;
        out.insert(alias, tensor);
    }
    Ok(out)
}

/// Reads little-endian numbers, and slices bytes without copying.
struct Ct2Reader<'a> {
    bytes: &'a Bytes,
    at: usize,
}

impl Ct2Reader<'_> {
    fn error(&self, what: impl Into<String>) -> Error {
        Error::file(MODEL, format!("byte {}: {}", self.at, what.into()))
    }

    fn take(&mut self, len: usize) -> Result<Bytes> {
        let end = self.at.checked_add(len).filter(|&end| end <= self.bytes.len());
        let end = end.ok_or_else(|| self.error(format!("the file ends before {len} more bytes")))?;
        let taken = self.bytes.slice(self.at..end);
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(&self.take(N)?);
        Ok(array)
    }

    fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn count(&mut self, what: &'static str) -> Result<u64> {
        match u64::from(self.u32()?) {
            count if count <= MAX_CT2_VARIABLES => Ok(count),
            count => Err(Error::limit(what, count, MAX_CT2_VARIABLES)),
        }
    }

    /// A string after its length, terminated by a zero.
    fn text(&mut self) -> Result<String> {
        let len = usize::from(u16::from_le_bytes(self.array()?));
        if len as u64 > MAX_CT2_NAME_BYTES {
            return Err(Error::limit("bytes of a name", len as u64, MAX_CT2_NAME_BYTES));
        }
        let bytes = self.take(len)?;
        let text = bytes.strip_suffix(&[0]).and_then(|text| std::str::from_utf8(text).ok());
        text.map(str::to_owned).ok_or_else(|| self.error("a name that is no text"))
    }
}
