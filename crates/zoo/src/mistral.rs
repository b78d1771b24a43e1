//! Reads folders in Mistral's form: `params.json` and `consolidated.safetensors`.
//!
//! The folder is translated to the form of Hugging Face. Keys and names are replaced, and adjacent
//! rows of rotary pairs are separated.

mod names;

use indexmap::IndexMap;
use serde_json::{Map, Value, json};

use crate::{CheckpointTensor, Error, Result, fields::Fields, limits::MAX_POSITIONS, rows::FloatRows};

use self::names::LayerStack;

/// File that identifies such folders.
pub(crate) const PARAMS: &str = "params.json";
/// Prefix of the names of weight files.
pub(crate) const WEIGHTS: &str = "consolidated";

type Object = Map<String, Value>;

/// Sizes of a stack of layers, with their names in `config.json`.
const SIZES: [(&str, &str); 7] = [
    ("dim", "hidden_size"),
    ("n_layers", "num_hidden_layers"),
    ("hidden_dim", "intermediate_size"),
    ("n_heads", "num_attention_heads"),
    ("n_kv_heads", "num_key_value_heads"),
    ("head_dim", "head_dim"),
    ("vocab_size", "vocab_size"),
];
/// Keys without effect on the results.
const HARMLESS: [&str; 6] =
    ["chunk_length_s", "frame_rate", "model_parallel", "transcription_format", "use_cache", "ada_rms_norm_t_cond_dim"];
/// Tokens at the start and end of every text.
const BOS: i64 = 1;
const EOS: i64 = 2;
/// Fixed maximum of the log spectrogram for streamed audio.
const LOG_MEL_MAX: f64 = 1.5;
/// Base of the wavelengths of Whisper's table of positions.
const POSITION_BASE: f64 = 10_000.0;

/// A parsed `params.json`.
#[derive(Debug)]
pub(crate) struct Params {
    /// The equivalent `config.json`.
    pub(crate) config: Object,
    /// Elements of a head of the language model.
    text_head: usize,
    /// Elements of a head of the encoder, if it has rotary positions.
    encoder_head: Option<usize>,
    /// Shape of the encoder's position table, if it has one.
    table: Option<[usize; 2]>,
}

impl Params {
    /// Reads `params.json`.
    ///
    /// # Errors
    /// [`Error::Key`] for a missing, invalid or unknown key.
    pub(crate) fn read(params: &Object) -> Result<Params> {
        let f = Fields::new(params);
        let whisper = f.child("multimodal")?.map(|parts| parts.object("whisper_model_args")).transpose()?;
        let read = match whisper {
            None => Params { config: text(&f, "mistral")?, text_head: head(&f)?, encoder_head: None, table: None },
            Some(whisper) if f.bool_or("ada_rms_norm_t_cond", false)? => realtime(&f, &whisper)?,
            Some(whisper) => voxtral(&f, &whisper)?,
        };
        f.finish(&|key| HARMLESS.contains(&key))?;
        Ok(read)
    }

    /// The tensors under the names of Hugging Face checkpoints, including computed tensors.
    ///
    /// # Errors
    /// [`Error::Tensor`] for queries or keys that do not consist of whole heads.
    pub(crate) fn published(&self, stored: IndexMap<String, CheckpointTensor>) -> Result<IndexMap<String, CheckpointTensor>> {
        let mut out = IndexMap::with_capacity(stored.len() + 1);
        for (name, tensor) in stored {
            let Some((part, published)) = names::published(&name, self.encoder_head.is_some()) else { continue };
            let head = match part {
                LayerStack::Text => Some(self.text_head),
                LayerStack::Encoder => self.encoder_head,
            };
            let tensor = match head.filter(|_| names::is_rotary(&published)) {
                Some(head) => tensor.interleaved(&name, head)?,
                None => tensor,
            };
            out.insert(published, tensor);
        }
        if let Some(shape) = self.table {
            out.insert("audio_tower.embed_positions.weight".into(), CheckpointTensor::floats(shape.to_vec(), Sinusoids));
        }
        Ok(out)
    }
}

/// Elements of an attention head.
fn head(f: &Fields<'_>) -> Result<usize> {
    let (width, heads) = (f.size("dim")?, f.size("n_heads")?);
    f.size_or("head_dim", width / heads)
}

/// The sizes of a stack of layers, under the names of `config.json`.
fn sizes(f: &Fields<'_>) -> Object {
    SIZES.iter().filter_map(|(from, to)| Some(((*to).to_owned(), f.get(from)?.clone()))).collect()
}

/// Settings of layers with rotary positions. A missing window means none.
fn rotary(f: &Fields<'_>) -> Result<Object> {
    let mut out = sizes(f);
    if let Some(eps) = f.positive_opt("norm_eps")? {
        out.insert("rms_norm_eps".into(), json!(eps));
    }
    // Some files state it as a string.
    let stated =
        f.get("rope_theta").map(|theta| theta.as_str().and_then(|text| text.parse().ok()).map_or(theta.clone(), |n: f64| json!(n)));
    out.extend(stated.map(|theta| ("rope_theta".to_owned(), theta)));
    out.insert("sliding_window".into(), f.get("sliding_window").cloned().unwrap_or_default());
    f.expect_bool("causal", true)?;
    Ok(out)
}

/// The language model.
fn text(f: &Fields<'_>, model_type: &str) -> Result<Object> {
    f.expect_bool("use_biases", false)?;
    let mut out = rotary(f)?;
    let lengths = ["max_position_embeddings", "max_seq_len", "model_max_length"].map(|key| f.get(key));
    if let Some(length) = lengths.into_iter().flatten().next() {
        out.insert("max_position_embeddings".into(), length.clone());
    }
    let tied = f.bool_or("tied_embeddings", false)?;
    let stated = [
        ("model_type", json!(model_type)),
        ("tie_word_embeddings", json!(tied)),
        ("bos_token_id", json!(BOS)),
        ("eos_token_id", json!(EOS)),
    ];
    out.extend(stated.map(|(key, value)| (key.to_owned(), value)));
    Ok(out)
}

/// Checks the audio features against the computed ones, and returns the number of mel bins.
fn mels(args: &Fields<'_>, from: Option<f64>) -> Result<usize> {
    let sound = args.object("audio_encoding_args")?;
    for (key, expected) in [("sampling_rate", 16_000), ("hop_length", 160), ("window_size", 400)] {
        sound.expect_size(key, expected)?;
    }
    let stated = sound.positive_opt("global_log_mel_max")?;
    if stated.is_some_and(|stated| Some(stated) != from) {
        return Err(sound.error("global_log_mel_max", from.map_or("null".into(), |from| from.to_string())));
    }
    sound.size("num_mel_bins")
}

/// A `config.json` with a text part and an audio part.
fn of_parts(f: &Fields<'_>, model_type: &str, text: Object, audio: Object) -> Result<Object> {
    let tied = text.get("tie_word_embeddings").cloned();
    let parts = json!({
        "model_type": model_type, "text_config": text, "audio_config": audio, "hidden_size": f.size("dim")?, "tie_word_embeddings": tied,
    });
    Ok(if let Value::Object(map) = parts { map } else { Object::new() })
}

fn realtime(f: &Fields<'_>, whisper: &Fields<'_>) -> Result<Params> {
    let args = whisper.object("encoder_args")?;
    let mut audio = rotary(&args)?;
    args.expect_bool("use_biases", true)?;
    for (key, expected) in [("pos_embed", "rope"), ("ffn_type", "swiglu"), ("norm_type", "rms_norm")] {
        args.expect_text(key, expected)?;
    }
    if args.get("max_source_positions").is_some() {
        return Err(args.error("max_source_positions", "null"));
    }
    audio.insert("num_mel_bins".into(), json!(mels(&args, Some(LOG_MEL_MAX))?));
    let mut config = of_parts(f, "voxtral_realtime", text(f, "voxtral_realtime_text")?, audio)?;
    let joined = whisper.object("downsample_args")?.size("downsample_factor")?;
    config.insert("downsample_factor".into(), json!(joined));
    Ok(Params { config, text_head: head(f)?, encoder_head: Some(head(&args)?), table: None })
}

fn voxtral(f: &Fields<'_>, whisper: &Fields<'_>) -> Result<Params> {
    let args = whisper.object("encoder_args")?;
    let (width, rows) = (args.size("dim")?, args.size_or("max_source_positions", 1500)?);
    if rows > MAX_POSITIONS {
        return Err(Error::limit("positions", rows as u64, MAX_POSITIONS as u64));
    }
    args.expect_bool("use_biases", true)?;
    args.expect_bool("causal", false)?;
    whisper.object("downsample_args")?.expect_size("downsample_factor", args.size("hidden_dim")? / width)?;
    let mut audio = sizes(&args);
    audio.extend([("num_mel_bins".to_owned(), json!(mels(&args, None)?)), ("max_source_positions".to_owned(), json!(rows))]);
    let config = of_parts(f, "voxtral", text(f, "llama")?, audio)?;
    Ok(Params { config, text_head: head(f)?, encoder_head: None, table: Some([rows, width]) })
}

/// Whisper's position table [positions, width], which these files omit. It holds sines, then
/// cosines, of wavelengths from 2π to 2π · 10,000.
#[derive(Debug)]
struct Sinusoids;

impl FloatRows for Sinusoids {
    fn kind(&self) -> String {
        "sinusoids".into()
    }

    fn read(&self, row: usize, out: &mut [f32]) {
        let (sines, cosines) = out.split_at_mut(out.len() / 2);
        let step = POSITION_BASE.ln() / (sines.len().max(2) - 1) as f64;
        for (i, (sine, cosine)) in sines.iter_mut().zip(cosines).enumerate() {
            let angle = row as f64 * (-step * i as f64).exp();
            (*sine, *cosine) = (angle.sin() as f32, angle.cos() as f32);
        }
    }
}
