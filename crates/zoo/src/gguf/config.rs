//! Model metadata as a config.

use super::{Gguf, MetadataValue};
use crate::{
    Config, Error, Family, Result,
    config::Biases,
    keys::{Keys, SizeNames, Sizes},
    limits::MAX_SIZE,
    rope::{Rope, Scaling, yarn_amplitude},
};

const ARCHITECTURE: &str = "general.architecture";
const FAMILIES: [Family; 3] = [Family::Llama, Family::Qwen2, Family::Qwen3];
/// Divisors of rotary frequencies, where a file has them.
const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// What GGUF calls the sizes, under the architecture's prefix.
const NAMES: SizeNames = SizeNames {
    hidden: "embedding_length",
    intermediate: "feed_forward_length",
    layers: "block_count",
    heads: "attention.head_count",
    kv_heads: "attention.head_count_kv",
    head_dim: "attention.key_length",
};

/// Metadata under the architecture's prefix.
struct Prefixed<'a> {
    file: &'a Gguf,
    prefix: &'a str,
}

impl Prefixed<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.prefix)
    }
}

impl Keys for Prefixed<'_> {
    fn size_opt(&self, name: &str) -> Result<Option<usize>> {
        let key = self.key(name);
        let Some(value) = self.file.int(&key)? else { return Ok(None) };
        let size = usize::try_from(value).ok().filter(|v| (1..=MAX_SIZE).contains(v));
        size.map(Some).ok_or_else(|| Error::key(key, format!("an integer from 1 to {MAX_SIZE}"), value))
    }

    fn positive_opt(&self, name: &str) -> Result<Option<f64>> {
        let key = self.key(name);
        match self.file.float(&key)? {
            Some(v) if !v.is_finite() || v <= 0.0 => Err(Error::key(key, "a number above 0", v)),
            found => Ok(found),
        }
    }

    fn error(&self, name: &str, expected: impl Into<String>) -> Error {
        let key = self.key(name);
        let found = self.file.metadata.get(&key).map_or("nothing".to_owned(), MetadataValue::describe);
        Error::key(key, expected, found)
    }
}

/// The config that the metadata states.
///
/// # Errors
/// [`Error::Family`] for another architecture, [`Error::Key`] for a key that is missing or does not fit.
pub(crate) fn config(file: &Gguf) -> Result<Config> {
    let name = file.text(ARCHITECTURE)?.ok_or_else(|| Error::key(ARCHITECTURE, "the name of a family", "nothing"))?;
    let family = Family::from_name(name, &FAMILIES)?;
    let keys = Prefixed { file, prefix: name };
    let sizes = Sizes::read(&keys, &NAMES)?;
    let head_dim = sizes.head_dim;
    if keys.size_opt("attention.value_length")?.is_some_and(|v| v != head_dim) {
        return Err(keys.error("attention.value_length", format!("{head_dim} as for keys")));
    }
    if let Some(experts) = file.int(&keys.key("expert_count"))?.filter(|&n| n > 0) {
        return Err(Error::key(keys.key("expert_count"), "a dense model", experts));
    }
    let has = |name: &str| file.tensors.contains_key(&format!("blk.0.{name}.bias"));
    let special = super::vocab(file)?;
    Ok(Config {
        family,
        hidden: sizes.hidden,
        intermediate: sizes.intermediate,
        layers: sizes.layers,
        heads: sizes.heads,
        kv_heads: sizes.kv_heads,
        head_dim,
        vocab: vocab_size(file, &keys)?,
        positions: keys.size("context_length")?,
        window: keys.size_opt("attention.sliding_window")?,
        norm_eps: keys.positive_opt("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
        tied: None,
        rope: rope(file, &keys, family, head_dim)?,
        biases: Biases { qkv: has("attn_q"), output: has("attn_output"), mlp: has("ffn_down") },
        qk_norm: family == Family::Qwen3,
        fused: false,
        dtype: None,
        bos: special.bos.map(i64::from),
        eos: special.eos.into_iter().chain(special.other_eos).map(i64::from).collect(),
    })
}

/// Stated, or the number of tokens, or that of the embedding's rows.
fn vocab_size(file: &Gguf, keys: &Prefixed<'_>) -> Result<usize> {
    let rows = file.tensors.get("token_embd.weight").and_then(|t| t.shape.first().copied());
    match (rows, keys.size_opt("vocab_size")?) {
        (Some(rows), _) if (1..=MAX_SIZE).contains(&rows) => Ok(rows),
        (_, Some(size)) => Ok(size),
        (..) => Err(Error::MissingTensor("token_embd.weight".into())),
    }
}

fn rope(file: &Gguf, keys: &Prefixed<'_>, family: Family, head_dim: usize) -> Result<Rope> {
    let dims = keys.size_opt("rope.dimension_count")?.unwrap_or(head_dim);
    // Rows of Llama files are reordered over whole heads, which only whole heads can undo.
    let whole = dims == head_dim || family != Family::Llama;
    if !whole || dims > head_dim || !dims.is_multiple_of(2) {
        return Err(keys.error("rope.dimension_count", format!("the {head_dim} elements of a head")));
    }
    let theta = keys.positive_opt("rope.freq_base")?.unwrap_or(10_000.0);
    if theta <= 1.0 {
        return Err(keys.error("rope.freq_base", "a number above 1"));
    }
    Ok(Rope { theta, dims, scaling: scaling(file, keys, dims)? })
}

fn scaling(file: &Gguf, keys: &Prefixed<'_>, dims: usize) -> Result<Scaling> {
    if let Some(source) = file.source(ROPE_DIVISORS)? {
        let values = source.values(ROPE_DIVISORS)?;
        if values.len() != dims / 2 || values.iter().any(|v| !v.is_finite() || *v <= 0.0) {
            return Err(Error::tensor(ROPE_DIVISORS, format!("{} numbers above 0", dims / 2), format!("{} numbers", values.len())));
        }
        return Ok(Scaling::Divisors(values.into_iter().map(f64::from).collect()));
    }
    let key = keys.key("rope.scaling.type");
    let factor = || keys.positive("rope.scaling.factor");
    match file.text(&key)?.unwrap_or("none") {
        "none" => Ok(Scaling::None),
        "linear" => Ok(Scaling::Linear { factor: factor()? }),
        "yarn" => {
            let factor = factor()?;
            let original = match keys.size_opt("rope.scaling.original_context_length")? {
                Some(original) => original,
                None => keys.size("context_length")?,
            } as f64;
            let amplitude = keys.positive_opt("rope.scaling.attn_factor")?.unwrap_or(1.0) * yarn_amplitude(factor);
            Ok(Scaling::Yarn { factor, original, beta_fast: 32.0, beta_slow: 1.0, truncate: true, amplitude })
        }
        other => Err(Error::key(key, "none, linear or yarn", other)),
    }
}
