//! One file a family: what its config says that its layers are made of.

mod bert;
mod common;
mod deepseek;
mod gemma2;
mod gemma3;
mod gemma4;
mod glm4;
mod gpt_oss;
mod granite;
mod harmless;
mod kimi_linear;
mod layer_norm;
mod lfm2;
mod llama;
mod llama_variants;
mod mamba;
mod mixtral;
mod moonshine;
mod olmo2;
mod parakeet;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_next;
mod rope;
mod smollm3;
mod sparse;
mod voxtral;
mod whisper;

pub(crate) use whisper::alignment_heads;

use crate::{Error, Result, checkpoint::Architecture, encoder::Sentence, fields::Fields, spec::Config};

/// What a config means.
type Read = fn(&Fields<'_>) -> Result<Config>;

/// Files of a Hugging Face folder that say what its model is.
pub(crate) struct Configs<'a> {
    /// `config.json`.
    pub(crate) model: Fields<'a>,
    /// `generation_config.json`.
    pub(crate) generation: Option<Fields<'a>>,
    /// `preprocessor_config.json`, in models of speech.
    pub(crate) preprocessor: Option<Fields<'a>>,
    /// `tekken.json`, the tokenizer of Mistral's models.
    pub(crate) tekken: Option<Fields<'a>>,
    /// Reads what the folder says of vectors of texts.
    pub(crate) sentence: &'a dyn Fn() -> Result<Sentence>,
}

/// What a model of speech is.
type ReadSpeech = fn(&Configs<'_>) -> Result<Architecture>;

/// Names of models of speech under `model_type`, and what reads such configs.
const SPEECH_FAMILIES: [(&str, ReadSpeech); 7] = [
    (moonshine::NAME, read_moonshine),
    (parakeet::CTC, read_parakeet),
    (parakeet::RNNT, read_parakeet),
    (parakeet::TDT, read_parakeet),
    ("voxtral", read_voxtral),
    ("voxtral_realtime", read_voxtral_realtime),
    ("whisper", read_whisper),
];

/// Names under `model_type`, and what reads such configs.
const FAMILIES: &[(&str, Read)] = &[
    ("afmoe", sparse::afmoe),
    ("apertus", llama_variants::apertus),
    ("arcee", llama_variants::arcee),
    ("bailing_hybrid", kimi_linear::bailing),
    ("cohere", layer_norm::cohere),
    ("cohere2", layer_norm::cohere2),
    ("cwm", llama_variants::cwm),
    ("deepseek_v2", deepseek::v2),
    ("deepseek_v3", deepseek::config),
    ("dots1", sparse::dots1),
    ("ernie4_5", llama_variants::ernie4_5),
    ("ernie4_5_moe", sparse::ernie4_5_moe),
    ("exaone", llama_variants::exaone),
    ("exaone4", llama_variants::exaone4),
    ("exaone_moe", sparse::exaone_moe),
    ("falcon_h1", mamba::falcon_h1),
    ("gemma", gemma2::first),
    ("gemma2", gemma2::config),
    ("gemma3", gemma3::config),
    ("gemma3_text", gemma3::config),
    ("gemma4", gemma4::config),
    ("gemma4_text", gemma4::config),
    ("glm", glm4::glm),
    ("glm4", glm4::dense),
    ("glm4_moe", glm4::experts),
    ("glm4_moe_lite", deepseek::glm4_moe_lite),
    ("glm4v_moe_text", glm4::vision_experts),
    ("glm4v_text", glm4::vision),
    ("gpt_neox", layer_norm::gpt_neox),
    ("gpt_oss", gpt_oss::config),
    ("granite", granite::config),
    ("granite_swa", granite::windowed),
    ("granitemoehybrid", mamba::granite),
    ("helium", llama_variants::helium),
    ("hunyuan_v1_dense", llama_variants::hunyuan),
    ("hyperclovax", granite::hyperclovax),
    ("internlm3", llama_variants::internlm3),
    ("iquestcoder", llama::config),
    ("joyai_llm_flash", deepseek::config),
    ("jamba", mamba::jamba),
    ("kimi_k2", deepseek::config),
    ("kimi_linear", kimi_linear::config),
    ("laguna", sparse::laguna),
    ("lfm2", lfm2::dense),
    ("lfm2_moe", lfm2::experts),
    ("lfm3", lfm2::third),
    ("llama", llama::config),
    ("llama4_text", sparse::llama4),
    ("mamba", mamba::first),
    ("mamba2", mamba::second),
    ("mellum", sparse::mellum),
    ("minicpm3", deepseek::minicpm3),
    ("minimax_m2", sparse::minimax_m2),
    ("ministral3", llama::ministral3),
    ("mistral", llama::mistral),
    ("mixtral", mixtral::config),
    ("nanochat", llama_variants::nanochat),
    ("nemotron", layer_norm::nemotron),
    ("nemotron_h", mamba::nemotron_h),
    ("olmo", layer_norm::olmo),
    ("olmo2", olmo2::config),
    ("olmo3", olmo2::windowed),
    ("olmoe", olmo2::experts),
    ("phi", layer_norm::phi),
    ("phi3", phi3::config),
    ("phimoe", layer_norm::phimoe),
    ("qwen2", qwen2::config),
    ("qwen2_5_vl", qwen2::vision),
    ("qwen2_5_vl_text", qwen2::vision),
    ("qwen2_moe", qwen2::experts),
    ("qwen2_vl", qwen2::vision),
    ("qwen2_vl_text", qwen2::vision),
    ("qwen3", qwen3::dense),
    ("qwen3_5", qwen3_next::dense),
    ("qwen3_5_moe", qwen3_next::experts),
    ("qwen3_5_moe_text", qwen3_next::experts),
    ("qwen3_5_text", qwen3_next::dense),
    ("qwen3_moe", qwen3::experts),
    ("qwen3_next", qwen3_next::config),
    ("qwen3_vl_moe_text", qwen3::vision_experts),
    ("qwen3_vl_text", qwen3::vision),
    ("seed_oss", llama_variants::seed_oss),
    ("smollm3", smollm3::config),
    ("solar_open", glm4::solar_open),
    ("stablelm", layer_norm::stablelm),
    ("starcoder2", layer_norm::starcoder2),
    ("vaultgemma", gemma2::vault),
    ("youtu", deepseek::youtu),
    ("youtu_llm", deepseek::youtu),
];

/// What a Hugging Face checkpoint is a model of.
///
/// # Errors
/// As [`config`].
pub(crate) fn architecture(configs: &Configs<'_>) -> Result<Architecture> {
    let f = &configs.model;
    let name = f.text("model_type")?.unwrap_or_default();
    if let Some((_, read)) = SPEECH_FAMILIES.iter().find(|(known, _)| *known == name) {
        let architecture = read(configs)?;
        f.finish(&harmless::beside_speech)?;
        return Ok(architecture);
    }
    if let Some(encoder) = bert::config(name, configs) {
        let encoder = encoder?;
        f.finish(&harmless::beside_encoder)?;
        return Ok(Architecture::Encoder(encoder));
    }
    let mut config = config(f)?;
    add_ids(&mut config, configs.generation.as_ref())?;
    Ok(Architecture::Decoder(config))
}

/// Adds what `generation_config.json` says of ids.
fn add_ids(config: &mut Config, generation: Option<&Fields<'_>>) -> Result<()> {
    if let Some(generation) = generation {
        config.bos = generation.ints("bos_token_id")?.first().copied().or(config.bos);
        config.add_eos(generation.ints("eos_token_id")?);
    }
    Ok(())
}

fn read_moonshine(configs: &Configs<'_>) -> Result<Architecture> {
    Ok(Architecture::Moonshine(moonshine::config(&configs.model, configs.generation.as_ref())?))
}

fn read_parakeet(configs: &Configs<'_>) -> Result<Architecture> {
    Ok(Architecture::Parakeet(parakeet::config(&configs.model, configs.preprocessor.as_ref())?))
}

fn read_voxtral(configs: &Configs<'_>) -> Result<Architecture> {
    Ok(Architecture::Voxtral(Box::new(voxtral::config(configs)?)))
}

fn read_voxtral_realtime(configs: &Configs<'_>) -> Result<Architecture> {
    Ok(Architecture::VoxtralRealtime(Box::new(voxtral::realtime(configs)?)))
}

fn read_whisper(configs: &Configs<'_>) -> Result<Architecture> {
    Ok(Architecture::Whisper(whisper::config(&configs.model, configs.generation.as_ref())?))
}

/// The config of a language model: its own, or that of its text part where it has several.
///
/// # Errors
/// [`Error::Family`] for another family, [`Error::Key`] for a key that does not fit or that nobody knows.
pub(crate) fn config(f: &Fields<'_>) -> Result<Config> {
    let name = f.text("model_type")?.ok_or_else(|| f.error("model_type", "the name of a family"))?;
    let Some(text) = f.child("text_config")? else {
        let config = read(name, f)?;
        // The oldest folders of several parts have the keys of the text part beside those of the others.
        f.finish(&|key| harmless::in_text(key) || harmless::beside_text(key))?;
        return Ok(config);
    };
    let mut config = read(text.text("model_type")?.unwrap_or(name), &text)?;
    config.tied = f.bool_opt("tie_word_embeddings")?.or(config.tied);
    config.dtype = common::dtype(f)?.or(config.dtype);
    config.bos = f.ints("bos_token_id")?.first().copied().or(config.bos);
    config.add_eos(f.ints("eos_token_id")?);
    text.finish(&harmless::in_text)?;
    f.finish(&|key| key == "text_config" || harmless::beside_text(key))?;
    Ok(config)
}

fn read(name: &str, f: &Fields<'_>) -> Result<Config> {
    let family = FAMILIES.iter().find(|(known, _)| *known == name);
    let (_, read) = family.ok_or_else(|| {
        let names = FAMILIES.iter().map(|(name, _)| *name);
        let names: Vec<_> = names.chain(SPEECH_FAMILIES.iter().map(|(name, _)| *name)).chain(bert::names()).collect();
        Error::Family { found: name.chars().take(80).collect(), supported: names.join(", ") }
    })?;
    read(f)
}
