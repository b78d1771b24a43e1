//! Whisper: audio of 30 seconds to text.

use super::common;
use crate::{
    Error, Result,
    fields::Fields,
    limits::{MAX_LAYERS, MAX_POSITIONS},
    speech::{
        encoder::Stack,
        whisper::{Tokens, WhisperConfig},
    },
};

/// Reads `config.json`. [`tokens`] reads the ids of special tokens from `generation_config.json`.
pub(super) fn config(f: &Fields<'_>, generation: Option<&Fields<'_>>) -> Result<WhisperConfig> {
    for key in ["scale_embedding", "use_weighted_layer_sum"] {
        f.expect_bool(key, false)?;
    }
    if f.text("activation_function")?.is_some_and(|name| name != "gelu") {
        return Err(f.error("activation_function", "gelu"));
    }
    let width = f.size("d_model")?;
    let positions = |key: &str, default: usize| match f.size_or(key, default)? {
        n if n <= MAX_POSITIONS => Ok(n),
        n => Err(Error::limit("positions", n as u64, MAX_POSITIONS as u64)),
    };
    let decoder = stack(f, width, "decoder")?;
    let generation = generation.ok_or_else(|| Error::MissingFile("generation_config.json".into()))?;
    Ok(WhisperConfig {
        mels: f.size_or("num_mel_bins", 80)?,
        width,
        audio_positions: positions("max_source_positions", 1500)?,
        text_positions: positions("max_target_positions", 448)?,
        encoder: stack(f, width, "encoder")?,
        decoder,
        vocab: f.size("vocab_size")?,
        tied: f.bool_or("tie_word_embeddings", true)?,
        dtype: common::dtype(f)?,
        alignment_heads: alignment_heads(generation, decoder)?,
        tokens: tokens(f, generation)?,
    })
}

fn stack(f: &Fields<'_>, width: usize, side: &str) -> Result<Stack> {
    let key = |what: &str| format!("{side}_{what}");
    let (layers, heads) = (f.size(&key("layers"))?, f.size(&key("attention_heads"))?);
    if layers > MAX_LAYERS {
        return Err(f.error(&key("layers"), format!("at most {MAX_LAYERS}")));
    }
    if !width.is_multiple_of(heads) {
        return Err(f.error(&key("attention_heads"), format!("a divisor of d_model {width}")));
    }
    Ok(Stack { layers, heads, feed_forward: f.size(&key("ffn_dim"))? })
}

/// Ids of the decoder's control tokens.
fn tokens(f: &Fields<'_>, generation: &Fields<'_>) -> Result<Tokens> {
    let one = |key: &str| -> Result<Option<i64>> {
        let own = generation.ints(key)?.first().copied();
        Ok(own.or(f.ints(key)?.first().copied()))
    };
    let needed = |key: &str| one(key)?.ok_or_else(|| generation.error(key, "the id of a token, which transcription needs"));
    let list = |key: &str| -> Result<Vec<i64>> {
        let own = generation.ints(key)?;
        let list = if own.is_empty() { f.ints(key)? } else { own };
        Ok(list.into_iter().filter(|&id| id >= 0).collect())
    };
    let no_timestamps = needed("no_timestamps_token_id")?;
    let task = |name: &str| -> Result<Option<i64>> {
        let tasks = generation.child("task_to_id")?;
        Ok(tasks.map(|tasks| tasks.ints(name)).transpose()?.and_then(|ids| ids.first().copied()))
    };
    Ok(Tokens {
        end: needed("eos_token_id")?,
        start: needed("decoder_start_token_id")?,
        // All tokenizers have these three ids in a row.
        previous: one("prev_sot_token_id")?.unwrap_or(no_timestamps - 2),
        no_speech: no_timestamps - 1,
        no_timestamps,
        translate: task("translate")?,
        transcribe: task("transcribe")?,
        languages: languages(generation)?,
        suppressed: list("suppress_tokens")?,
        suppressed_at_begin: list("begin_suppress_tokens")?,
        last_initial_timestamp: generation.count_or("max_initial_timestamp_index", 50)?,
    })
}

/// Language codes with their ids, sorted by id. Empty for English-only models.
fn languages(generation: &Fields<'_>) -> Result<Vec<(String, i64)>> {
    let Some(map) = generation.child("lang_to_id")? else { return Ok(Vec::new()) };
    let mut list = Vec::new();
    for token in map.keys() {
        let code = token.strip_prefix("<|").and_then(|rest| rest.strip_suffix("|>")).filter(|code| !code.contains(' '));
        let code = code.ok_or_else(|| map.error(token, "a language between <| and |>"))?;
        let id = map.ints(token)?.first().copied().ok_or_else(|| map.error(token, "the id of a token"))?;
        list.push((code.to_owned(), id));
    }
    list.sort_by_key(|(_, id)| *id);
    Ok(list)
}

/// Layers and heads of cross-attention whose weights align words with the audio.
pub(crate) fn alignment_heads(generation: &Fields<'_>, decoder: Stack) -> Result<Vec<[usize; 2]>> {
    let pairs = generation.pairs("alignment_heads")?.unwrap_or_default();
    if pairs.iter().any(|&[layer, head]| layer >= decoder.layers || head >= decoder.heads) {
        return Err(generation.error("alignment_heads", format!("heads of {} layers of {}", decoder.layers, decoder.heads)));
    }
    Ok(pairs)
}
