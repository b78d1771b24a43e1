//! Hugging Face folders, as named files.

mod bitnet;
mod bitsandbytes;
mod compressed;
mod fp4;
mod fp8;
mod gptq;
mod grouped;
mod mlx;
mod parts;
pub(crate) mod pickled;
mod scheme;
pub(crate) mod sentence;
mod torchao;

use flambeau_tensor::{Bytes, DType};
use indexmap::IndexMap;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Map, Value};

use crate::{
    Checkpoint, CheckpointTensor, Error, Result, TokenizerSource,
    architecture::Architecture,
    ctranslate2,
    family::{self, Configs},
    fields::Fields,
    limits::MAX_JSON_BYTES,
    mistral,
    spec::DecoderConfig,
};

use self::scheme::Scheme;

const CONFIG: &str = "config.json";
const GENERATION: &str = "generation_config.json";
const PREPROCESSOR: &str = "preprocessor_config.json";
/// ModelOpt's description of the quantization.
const MODELOPT: &str = "hf_quant_config.json";
const TEKKEN: &str = "tekken.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Files that a tokenizer and its chat template may need.
const TOKENIZER: [&str; 12] = [
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    TEKKEN,
    "chat_template.jinja",
    "chat_template.json",
    GENERATION,
];

/// The files by their last path component, or by two components if needed to distinguish them.
struct Files(IndexMap<String, Bytes>);

impl Files {
    fn json(&self, name: &str) -> Result<Option<Map<String, Value>>> {
        match self.value(name)? {
            Some(Value::Object(map)) => Ok(Some(map)),
            Some(_) => Err(Error::file(name, "expected an object")),
            None => Ok(None),
        }
    }

    /// A JSON file with a value of any kind.
    fn value(&self, name: &str) -> Result<Option<Value>> {
        let Some(bytes) = self.0.get(name) else { return Ok(None) };
        if bytes.len() > MAX_JSON_BYTES {
            return Err(Error::limit("bytes of a JSON file", bytes.len() as u64, MAX_JSON_BYTES as u64));
        }
        parse_json(bytes).map(Some).map_err(|e| Error::file(name, e))
    }

    fn tokenizer(self) -> TokenizerSource {
        // The family determines the kind of a tokenizer whose class is not stated.
        let config = (!self.0.contains_key(TOKENIZER[0])).then_some(CONFIG);
        let is_part = |name: &str| TOKENIZER.contains(&name) || config == Some(name);
        TokenizerSource::Files(self.0.into_iter().filter(|(name, _)| is_part(name)).collect())
    }

    /// Whether the folder has Mistral's form, and no other form.
    fn is_mistrals(&self) -> bool {
        let has_weights = |begin: &str| self.0.keys().any(|name| name.starts_with(begin) && name.ends_with(".safetensors"));
        self.0.contains_key(mistral::PARAMS)
            && (!self.0.contains_key(CONFIG) || has_weights(mistral::WEIGHTS) && !has_weights("model"))
    }

    /// Files with weights: the files in the index, or the only file, or all files.
    fn weight_files(&self) -> Result<Vec<String>> {
        if let Some(files) = self.indexed(INDEX)? {
            return Ok(files);
        }
        if self.0.contains_key(WEIGHTS) {
            return Ok(vec![WEIGHTS.into()]);
        }
        let is_weights = |name: &&String| name.ends_with(".safetensors") && !name.contains('/');
        let files: Vec<String> = self.0.keys().filter(is_weights).cloned().collect();
        if !files.is_empty() {
            return Ok(files);
        }
        match self.indexed(pickled::INDEX)? {
            Some(files) => Ok(files),
            None if self.0.contains_key(pickled::WEIGHTS) => Ok(vec![pickled::WEIGHTS.into()]),
            None => Err(Error::MissingFile(WEIGHTS.into())),
        }
    }

    /// Files named by an index of weights, if the folder has it.
    fn indexed(&self, index: &str) -> Result<Option<Vec<String>>> {
        let Some(json) = self.json(index)? else { return Ok(None) };
        let map = json.get("weight_map").and_then(Value::as_object);
        let map = map.ok_or_else(|| Error::file(index, "expected an object `weight_map`"))?;
        let mut files: Vec<String> = map.values().filter_map(Value::as_str).map(str::to_owned).collect();
        files.sort();
        files.dedup();
        Ok(Some(files))
    }

    fn tensors(&self) -> Result<IndexMap<String, Stored>> {
        let mut out = IndexMap::new();
        for name in self.weight_files()? {
            let bytes = self.0.get(&name).ok_or_else(|| Error::MissingFile(name.clone()))?;
            let read = if pickled::is_weights(&name) { pickled::tensors } else { stored_tensors };
            out.extend(read(&name, bytes)?);
        }
        Ok(out)
    }
}

/// The tensors of a safetensors file, which share its bytes.
fn stored_tensors(file: &str, bytes: &Bytes) -> Result<IndexMap<String, Stored>> {
    let mut out = IndexMap::new();
    let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(|e| Error::file(file, e))?;
    let start = header.saturating_add(8);
    for key in metadata.offset_keys() {
        let Some(info) = metadata.info(&key) else { continue };
        let (from, to) = info.data_offsets;
        let range = start.checked_add(from).zip(start.checked_add(to)).filter(|&(from, to)| from <= to && to <= bytes.len());
        let (from, to) = range.ok_or_else(|| Error::file(file, format!("tensor `{key}` passes the end of the file")))?;
        out.insert(key, Stored { dtype: info.dtype, shape: info.shape.clone(), bytes: bytes.slice(from..to) });
    }
    Ok(out)
}

/// The tensors of a safetensors file without quantization.
///
/// # Errors
/// [`Error::File`] for a damaged file, [`Error::Tensor`] for types that programs do not have.
pub(crate) fn plain_tensors(file: &str, bytes: &Bytes) -> Result<IndexMap<String, CheckpointTensor>> {
    let plain = |(name, stored): (String, Stored)| {
        let dtype = dtype(stored.dtype).ok_or_else(|| Error::tensor(&name, "plain elements", format!("{:?}", stored.dtype)))?;
        let tensor = CheckpointTensor::plain(&name, dtype, stored.shape, stored.bytes)?;
        Ok((name, tensor))
    };
    stored_tensors(file, bytes)?.into_iter().map(plain).collect()
}

/// Reads JSON in Python's form, with an optional byte order mark and non-finite numbers, also as
/// transformers writes them. `Infinity` becomes the largest finite number, and `NaN` becomes null.
///
/// # Errors
/// The text is not JSON.
pub fn parse_json(bytes: &[u8]) -> serde_json::Result<Value> {
    let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
    let mut value = serde_json::from_slice(bytes).or_else(|error| match std::str::from_utf8(bytes) {
        Ok(text) => serde_json::from_str(&finite(text)).map_err(|_| error),
        Err(_) => Err(error),
    })?;
    name_floats(&mut value);
    Ok(value)
}

/// Replaces objects `{"__float__": NAME}`, which transformers writes for non-finite numbers.
fn name_floats(value: &mut Value) {
    if let Value::Object(map) = value
        && let Some(Value::String(name)) = map.get("__float__")
    {
        *value = match &name[..] {
            "Infinity" => f64::MAX.into(),
            "-Infinity" => f64::MIN.into(),
            _ => Value::Null,
        };
    }
    match value {
        Value::Array(items) => items.iter_mut().for_each(name_floats),
        Value::Object(map) => map.values_mut().for_each(name_floats),
        _ => {}
    }
}

/// Replaces the words for non-finite numbers.
fn finite(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    // Every second piece is inside quotes. A quote after a backslash does not end a piece.
    let (mut rest, mut quoted) = (text, false);
    while let Some(at) = rest.find('"') {
        let (piece, behind) = rest.split_at(at);
        out.push_str(&if quoted { piece.to_owned() } else { unquoted(piece) });
        out.push('"');
        let escaped = quoted && piece.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1;
        quoted ^= !escaped;
        rest = &behind[1..];
    }
    out.push_str(&if quoted { rest.to_owned() } else { unquoted(rest) });
    out
}

fn unquoted(piece: &str) -> String {
    piece.replace("Infinity", "1.7976931348623157e308").replace("NaN", "null")
}

/// A tensor of a safetensors file.
struct Stored {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Bytes,
}

impl Stored {
    /// Number of elements.
    fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements of a tensor of 64-bit integers. Empty for other types.
    fn integers(&self) -> Vec<i64> {
        let words = self.bytes.as_chunks::<8>().0.iter();
        if self.dtype == Dtype::I64 { words.map(|word| i64::from_le_bytes(*word)).collect() } else { Vec::new() }
    }
}

fn dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::U16 => DType::U16,
        Dtype::I16 => DType::I16,
        Dtype::U32 => DType::U32,
        Dtype::I32 => DType::I32,
        Dtype::U64 => DType::U64,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        _ => return None,
    })
}

/// The name of a tensor in a speech model, whose parts are under `model` or at the top.
fn speech_name(name: &str) -> String {
    const PARTS: [&str; 3] = ["audio_tower.", "multi_modal_projector.", "language_model."];
    let rest = name.strip_prefix("model.").filter(|rest| PARTS.iter().any(|part| rest.starts_with(part)));
    let name = rest.unwrap_or(name);
    match name.strip_prefix("language_model.") {
        // Under `model`, the language model has no separate module.
        Some(text) if rest.is_some() => format!("model.{text}"),
        Some(text) => text.to_owned(),
        None => name.to_owned(),
    }
}

/// The name of a tensor in a separate text model. Folders with several parts store it under
/// `language_model`. `None` for tensors of other parts.
fn text_name(name: &str) -> Option<String> {
    const OTHERS: [&str; 12] = [
        "audio_tower.",
        "connector.",
        "embed_audio.",
        "embed_vision.",
        "model.audio_tower.",
        "model.connector.",
        "model.embed_audio.",
        "model.embed_vision.",
        "model.vision_model.",
        "model.vision_tower.",
        "model.visual.",
        "mtp.",
    ];
    const MORE: [&str; 6] =
        ["model.multi_modal_projector.", "multi_modal_projector.", "mlp1.", "vision_model.", "vision_tower.", "visual."];
    if OTHERS.iter().chain(&MORE).any(|prefix| name.starts_with(prefix)) {
        return None;
    }
    const TEXT: [&str; 2] = ["model.language_model.", "model.text_model."];
    if let Some(rest) = TEXT.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        return Some(format!("model.{rest}"));
    }
    // A model saved without its head has no module above the layers.
    if ["embed_tokens.", "embedding_norm.", "final_layernorm.", "layers.", "norm."].iter().any(|part| name.starts_with(part)) {
        return Some(format!("model.{name}"));
    }
    Some(name.strip_prefix("language_model.").unwrap_or(name).to_owned())
}

/// The name of a model's tensor by its name in the folder. `None` for parts that the model lacks.
pub(crate) fn published_name(architecture: &Architecture, name: &str) -> Option<String> {
    match architecture {
        Architecture::Encoder(config) if config.is_decoder() => text_name(name).map(|name| renamed(name, config.renames)),
        Architecture::Encoder(config) => Some(config.tensor_name(name)),
        _ if architecture.listens() => Some(speech_name(name)),
        Architecture::Decoder(config) => text_name(name).map(|name| renamed(name, config.renames)),
        _ => text_name(name),
    }
}

/// The name after replacements in order.
fn renamed(name: String, renames: &[(&str, &str)]) -> String {
    renames.iter().fold(name, |name, (from, to)| name.replace(from, to))
}

/// Undoes changes by MLX's converter. Published convolutions have their taps last, and published
/// norms next to gated delta nets are stored minus 1.
fn undo_conversion(tensors: &mut IndexMap<String, CheckpointTensor>) {
    const NORMS: [&str; 5] = ["input_layernorm", "post_attention_layernorm", "model.norm", "q_norm", "k_norm"];
    let mut converted = false;
    for (name, tensor) in tensors.iter_mut() {
        let is_delta = name.ends_with(".conv1d.weight");
        if is_delta || name.ends_with(".conv.conv.weight") {
            let transposed = tensor.with_taps_last();
            converted |= is_delta && transposed.is_some();
            *tensor = transposed.unwrap_or_else(|| tensor.clone());
        }
    }
    for (name, tensor) in tensors.iter_mut().filter(|_| converted) {
        if name.strip_suffix(".weight").is_some_and(|module| NORMS.iter().any(|norm| module.ends_with(norm))) {
            *tensor = tensor.clone().plus_one();
        }
    }
}

/// Exchanges the axes of matrices that a family stores as [inputs, outputs]. MLX's converter stores
/// rows, which the first of these matrices shows.
fn turn_columns(tensors: &mut IndexMap<String, CheckpointTensor>, config: &DecoderConfig) -> Result<()> {
    let Some(first) = config.columns.first() else { return Ok(()) };
    let weight = |module: &&str| format!(".{module}.weight");
    let shape = tensors.iter().find(|(name, _)| name.ends_with(&weight(first))).map(|(_, tensor)| tensor.shape());
    if shape.is_none_or(|shape| shape.first() != Some(&config.hidden)) {
        return Ok(());
    }
    let is_turned = |name: &String| config.columns.iter().any(|module| name.ends_with(&weight(module)));
    for (name, tensor) in tensors.iter_mut().filter(|(name, _)| is_turned(name)) {
        *tensor = tensor.transposed(name)?;
    }
    Ok(())
}

/// The tensors of a module of sentence-transformers, under the name of its folder.
fn module_tensors(files: &Files, module: &str) -> Result<Vec<(String, CheckpointTensor)>> {
    let name = format!("{module}/{WEIGHTS}");
    let bytes = files.0.get(&name).ok_or_else(|| Error::MissingFile(name.clone()))?;
    Ok(plain_tensors(&name, bytes)?.into_iter().map(|(name, tensor)| (format!("{module}.{name}"), tensor)).collect())
}

/// Reads the checkpoint in these files.
pub(crate) fn checkpoint(files: Vec<(String, Bytes)>) -> Result<Checkpoint> {
    let base = |name: &str| name.rsplit(['/', '\\']).next().unwrap_or(name).to_owned();
    let own = |name: &str| sentence::module_file(name).map_or_else(|| base(name), str::to_owned);
    let model = Files(files.into_iter().map(|(name, bytes)| (own(&name), bytes)).collect());
    let params = if model.is_mistrals() { model.json(mistral::PARAMS)? } else { None };
    let params = params.map(|params| mistral::Params::read(&params)).transpose()?;
    let map = match &params {
        Some(params) => params.config.clone(),
        None => model.json(CONFIG)?.ok_or_else(|| Error::MissingFile(CONFIG.into()))?,
    };
    if let Some(bytes) = model.0.get(ctranslate2::MODEL) {
        let (config, tensors) = ctranslate2::whisper(bytes, &map, model.json(TOKENIZER[0])?.as_ref())?;
        return Ok(Checkpoint::new(Architecture::Whisper(config), tensors, model.tokenizer()));
    }
    let files = [model.json(GENERATION)?, model.json(PREPROCESSOR)?, model.json(TEKKEN)?, model.json(MODELOPT)?];
    let [generation, preprocessor, tekken, modelopt] = files.each_ref().map(|map| map.as_ref().map(Fields::new));
    let configs = Configs { model: Fields::new(&map), generation, preprocessor, tekken, sentence: &|| sentence::read(&model) };
    let architecture = family::architecture(&configs)?;
    let stored = model.tensors()?;
    let is_bundle = stored.keys().any(|name| name.ends_with(torchao::BUNDLED));
    let scheme = if is_bundle { Scheme::Bundle } else { Scheme::new(&configs.model, modelopt.as_ref())? };
    let published = |name: &str| {
        // ExecuTorch's bundles name the modules below `model`.
        let whole = is_bundle && !["lm_head.", "model."].iter().any(|start| name.starts_with(start));
        let name = if whole { format!("model.{name}") } else { name.to_owned() };
        if params.is_some() { Some(name) } else { published_name(&architecture, &name) }
    };
    let mut tensors = IndexMap::with_capacity(stored.len());
    for (name, tensor) in stored.iter().filter(|(name, _)| published(name).is_some()) {
        let source = match (scheme.read(name, tensor, &stored)?, dtype(tensor.dtype)) {
            (Some(quantized), _) => Some(quantized),
            (None, Some(dtype)) => {
                let plain = CheckpointTensor::plain(name, dtype, tensor.shape.clone(), tensor.bytes.clone())?;
                Some((name.clone(), plain))
            }
            (None, None) => None,
        };
        tensors.extend(source.and_then(|(name, source)| Some((published(&name)?, source))));
    }
    if let Some(params) = params {
        tensors = params.published(tensors)?;
    }
    undo_conversion(&mut tensors);
    if let Architecture::Decoder(config) = &architecture {
        turn_columns(&mut tensors, config)?;
    }
    if let Architecture::Encoder(config) = &architecture {
        for dense in config.sentence.layers() {
            tensors.extend(module_tensors(&model, &dense.module)?);
        }
    }
    let mut checkpoint = Checkpoint::new(architecture, tensors, model.tokenizer());
    checkpoint.attach_tasks()?;
    Ok(checkpoint)
}
