//! Reads the layers of a model from its config, with one file per family.

mod aliases;
mod alibi;
mod bert;
mod common;
mod decoder_encoder;
mod deepseek;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm4;
mod gpt;
mod gpt_oss;
mod granite;
mod harmless;
mod heads;
mod jina_bert;
mod kimi_linear;
mod layer_norm;
mod lfm2;
mod llama;
mod llama_variants;
mod mamba;
mod mimo;
mod mixtral;
mod modernbert;
mod moonshine;
mod olmo2;
mod parakeet;
mod phi3;
mod qwen2;
mod qwen3;
mod qwen3_next;
mod rope;
mod rotary_bert;
mod smollm3;
mod sparse;
mod voxtral;
mod whisper;

pub(crate) use decoder_encoder::encoder as encoder_of;
pub(crate) use heads::{answering, answering_by};
pub(crate) use whisper::alignment_heads;

use crate::{Error, Result, architecture::Architecture, encoder::Sentence, fields::Fields, spec::DecoderConfig};

/// Description read from a config.
type Read = fn(&Fields<'_>) -> Result<DecoderConfig>;

/// Files of a Hugging Face folder that describe its model.
pub(crate) struct Configs<'a> {
    /// `config.json`.
    pub(crate) model: Fields<'a>,
    /// `generation_config.json`.
    pub(crate) generation: Option<Fields<'a>>,
    /// `preprocessor_config.json` of speech models.
    pub(crate) preprocessor: Option<Fields<'a>>,
    /// `tekken.json`, the tokenizer of Mistral's models.
    pub(crate) tekken: Option<Fields<'a>>,
    /// Reads the folder's settings for text embeddings.
    pub(crate) sentence: &'a dyn Fn() -> Result<Sentence>,
}

/// Description of a speech model.
type ReadSpeech = fn(&Configs<'_>) -> Result<Architecture>;

/// Speech models by `model_type`, with the reader of their configs.
const SPEECH_FAMILIES: [(&str, ReadSpeech); 7] = [
    (moonshine::NAME, read_moonshine),
    (parakeet::CTC, read_parakeet),
    (parakeet::RNNT, read_parakeet),
    (parakeet::TDT, read_parakeet),
    ("voxtral", read_voxtral),
    ("voxtral_realtime", read_voxtral_realtime),
    ("whisper", read_whisper),
];

/// A family of language models.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// Values of `model_type` in its configs.
    pub names: &'static [&'static str],
    /// Difference from other families, one line of `docs/models.md`.
    pub what: &'static str,
    read: Read,
}

/// Every family of language models that can be exported.
pub fn families() -> &'static [Family] {
    FAMILIES
}

/// Language models, sorted by name.
const FAMILIES: &[Family] = &[
    Family {
        names: &["afmoe"],
        read: sparse::afmoe,
        what: "Trinity: norms around both halves, a gate on attention, rotary embedding in layers with windows only, experts",
    },
    Family {
        names: &["apertus"],
        read: llama_variants::apertus,
        what: "queries and keys normalized per head, a layer without a gate by xIELU",
    },
    Family {
        names: &["arcee"],
        read: llama_variants::arcee,
        what: "Llama with a layer without a gate, by the square of the positive part",
    },
    Family {
        names: &["bailing_hybrid"],
        read: kimi_linear::bailing,
        what: "Ling: a delta rule with a decay per element, latent attention in some layers, groups of experts",
    },
    Family { names: &["bamba"], read: mamba::bamba, what: "Mamba 2, and attention in some layers, with partial rotary embedding" },
    Family {
        names: &["bitnet"],
        read: llama_variants::bitnet,
        what: "ternary weights, norms before the output projection and inside of the gated layer",
    },
    Family {
        names: &["bloom"],
        read: alibi::bloom,
        what: "biases by distance (ALiBi), a norm of the embedding, joined projections head by head",
    },
    Family { names: &["codegen"], read: gpt::codegen, what: "GPT-J with projections joined in four parts" },
    Family {
        names: &["cohere"],
        read: layer_norm::cohere,
        what: "Command R: one layer norm for both halves, interleaved rotary embedding",
    },
    Family {
        names: &["cohere2"],
        read: layer_norm::cohere2,
        what: "Command R7B and A: windows, no rotary embedding in full layers",
    },
    Family {
        names: &["cohere2_moe"],
        read: layer_norm::cohere2_moe,
        what: "Command A+: Command A with experts, also beside a shared layer",
    },
    Family { names: &["cwm"], read: llama_variants::cwm, what: "Llama with windows in three of four layers" },
    Family {
        names: &["dbrx"],
        read: mixtral::dbrx,
        what: "layer norms without biases, bounded projections, experts stored one below the other",
    },
    Family {
        names: &["deepseek"],
        read: deepseek::first,
        what: "DeepSeek-MoE: Llama with experts by a softmax beside a shared layer",
    },
    Family {
        names: &["deepseek_v2"],
        read: deepseek::v2,
        what: "latent attention, experts by a softmax whose weights are not normalized",
    },
    Family {
        names: &["deepseek_v3", "joyai_llm_flash", "kimi_k2"],
        read: deepseek::config,
        what: "latent attention, experts chosen group by group; also Kimi K2",
    },
    Family { names: &["dots1"], read: sparse::dots1, what: "queries and keys normalized per head, the router of DeepSeek V3" },
    Family { names: &["ernie4_5"], read: llama_variants::ernie4_5, what: "Llama with interleaved rotary embedding" },
    Family { names: &["ernie4_5_moe"], read: sparse::ernie4_5_moe, what: "ERNIE 4.5 with experts, chosen by a corrected softmax" },
    Family { names: &["exaone"], read: llama_variants::exaone, what: "EXAONE 3: Llama under the names of GPT" },
    Family {
        names: &["exaone4"],
        read: llama_variants::exaone4,
        what: "norms after both halves, queries and keys normalized per head, windows without rotary embedding in full layers",
    },
    Family { names: &["exaone_moe"], read: sparse::exaone_moe, what: "K-EXAONE: the attention of EXAONE 4 with experts" },
    Family {
        names: &["falcon"],
        read: alibi::falcon,
        what: "one norm or two for both halves, joined projections, rotary embedding or biases by distance (ALiBi)",
    },
    Family { names: &["falcon_h1"], read: mamba::falcon_h1, what: "Mamba 2 and attention in every layer, side by side" },
    Family { names: &["falcon_mamba"], read: mamba::falcon, what: "Mamba 1 with norms of steps, keys and queries" },
    Family { names: &["gemma"], read: gemma2::first, what: "weights of norms less 1, a scaled embedding" },
    Family {
        names: &["gemma2"],
        read: gemma2::config,
        what: "norms around both halves, bounded scores and logits, a window in every other layer",
    },
    Family {
        names: &["gemma3", "gemma3_text"],
        read: gemma3::config,
        what: "two rotary embeddings, windows in all layers but every sixth",
    },
    Family {
        names: &["gemma3n", "gemma3n_text"],
        read: gemma3n::config,
        what: "four residual streams, sparse gates, embeddings per layer, shared caches",
    },
    Family {
        names: &["gemma4", "gemma4_text"],
        read: gemma4::config,
        what: "wider heads in full layers, keys that serve as values, shared caches, embeddings per layer, experts beside the gated layer",
    },
    Family {
        names: &["gemma4_unified", "gemma4_unified_text"],
        read: gemma4::unified,
        what: "Gemma 4 12B: the same without embeddings per layer, without encoders of images and sound",
    },
    Family { names: &["glm"], read: glm4::glm, what: "the first GLM-4: interleaved rotary embedding over half of a head" },
    Family { names: &["glm4"], read: glm4::dense, what: "interleaved rotary embedding, norms around both halves" },
    Family { names: &["glm4_moe"], read: glm4::experts, what: "GLM-4.5: experts chosen by corrected sigmoids, group by group" },
    Family {
        names: &["glm4_moe_lite"],
        read: deepseek::glm4_moe_lite,
        what: "GLM-4.7 Flash: latent attention with the experts of GLM-4.5",
    },
    Family { names: &["glm4v_text"], read: glm4::vision, what: "the text part of GLM-4.1V" },
    Family { names: &["glm4v_moe_text"], read: glm4::vision_experts, what: "the text part of GLM-4.5V" },
    Family { names: &["gpt2"], read: gpt::gpt2, what: "learned positions, joined projections, matrices of inputs by outputs" },
    Family {
        names: &["gpt_bigcode"],
        read: gpt::bigcode,
        what: "StarCoder and SantaCoder: GPT-2 with one head of keys and values",
    },
    Family {
        names: &["gpt_neo"],
        read: gpt::neo,
        what: "learned positions, scores without a scale, a window in every other layer",
    },
    Family {
        names: &["gpt_neox"],
        read: layer_norm::gpt_neox,
        what: "Pythia: both halves read the input of the layer, joined projections head by head",
    },
    Family {
        names: &["gpt_oss"],
        read: gpt_oss::config,
        what: "sinks in every softmax, a window in every other layer, experts behind a clamped gate",
    },
    Family {
        names: &["gptj"],
        read: gpt::gptj,
        what: "one norm for both halves, interleaved rotary embedding over a part of a head, a head with a bias",
    },
    Family {
        names: &["granite"],
        read: granite::config,
        what: "factors on the embedding, the scores, what layers add, and the logits",
    },
    Family { names: &["granite_swa"], read: granite::windowed, what: "Granite with windows, sinks and a rotary base per layer" },
    Family {
        names: &["granitemoe", "granitemoeshared"],
        read: granite::experts,
        what: "Granite 3 with experts, alone or beside a shared layer",
    },
    Family { names: &["granitemoe_swa"], read: granite::windowed_experts, what: "Granite with windows, sinks and experts" },
    Family {
        names: &["granitemoehybrid"],
        read: mamba::granite,
        what: "Granite 4: Mamba 2 and attention by turns, experts beside a shared layer",
    },
    Family { names: &["helium"], read: llama_variants::helium, what: "Llama with interleaved rotary embedding" },
    Family {
        names: &["hunyuan_v1_dense"],
        read: llama_variants::hunyuan,
        what: "queries and keys normalized per head after the rotation",
    },
    Family {
        names: &["hunyuan_v1_moe"],
        read: sparse::hunyuan,
        what: "the attention of Hunyuan with experts beside a shared layer",
    },
    Family { names: &["hyperclovax"], read: granite::hyperclovax, what: "Granite with norms after both halves" },
    Family { names: &["internlm2"], read: llama_variants::internlm2, what: "Llama with projections joined group by group" },
    Family { names: &["internlm3"], read: llama_variants::internlm3, what: "Llama with biases under keys of its own" },
    Family {
        names: &["iquestcoder", "llama"],
        read: llama::config,
        what: "biases where the config has them; also SmolLM2, IQuest Coder and all that share the layout",
    },
    Family {
        names: &["jais2"],
        read: layer_norm::jais2,
        what: "layer norms, biases, a layer without a gate by the square of the positive part",
    },
    Family { names: &["jamba"], read: mamba::jamba, what: "Mamba 1 and attention by turns, experts in every other layer" },
    Family {
        names: &["kimi_linear"],
        read: kimi_linear::config,
        what: "a delta rule with a decay per element, latent attention without rotary embedding in some layers, experts",
    },
    Family { names: &["laguna"], read: sparse::laguna, what: "heads and rotary embedding per layer, a gate per head, experts" },
    Family { names: &["lfm2"], read: lfm2::dense, what: "short convolutions, attention in some layers" },
    Family { names: &["lfm2_moe"], read: lfm2::experts, what: "LFM2 with experts, chosen by corrected sigmoids" },
    Family { names: &["lfm3"], read: lfm2::third, what: "LFM2 with windows, norms around both halves and a gate per head" },
    Family {
        names: &["llama4_text"],
        read: sparse::llama4,
        what: "chunks of attention, queries that grow with their position, experts whose weight multiplies their input",
    },
    Family { names: &["mamba"], read: mamba::first, what: "Mamba 1: a state space per channel" },
    Family { names: &["mamba2"], read: mamba::second, what: "a state space per head" },
    Family { names: &["mellum"], read: sparse::mellum, what: "the experts of Qwen 3 with windows and two rotary embeddings" },
    Family { names: &["mimo"], read: qwen2::mimo, what: "Qwen 2 under another name; its layers for further tokens are left out" },
    Family {
        names: &["mimo_v2_flash"],
        read: mimo::config,
        what: "narrower values than keys, sinks and more key heads in layers with windows, experts",
    },
    Family {
        names: &["minicpm3"],
        read: deepseek::minicpm3,
        what: "latent attention, factors on the embedding, what layers add, and the logits",
    },
    Family {
        names: &["minimax_m2"],
        read: sparse::minimax_m2,
        what: "queries and keys normalized as a whole, partial rotary embedding, experts by corrected sigmoids",
    },
    Family { names: &["ministral3"], read: llama::ministral3, what: "Mistral whose queries grow with their position" },
    Family { names: &["mistral"], read: llama::mistral, what: "a window in every layer" },
    Family { names: &["mixtral"], read: mixtral::config, what: "experts, softmax over all of them" },
    Family {
        names: &["mpt"],
        read: alibi::mpt,
        what: "biases by distance (ALiBi), layer norms without biases, joined projections",
    },
    Family {
        names: &["nanochat"],
        read: llama_variants::nanochat,
        what: "norms without weights, queries and keys normalized after a rotation the other way",
    },
    Family {
        names: &["nemotron"],
        read: layer_norm::nemotron,
        what: "layer norms of weights less 1, a layer without a gate by the square of the positive part",
    },
    Family {
        names: &["nemotron_h"],
        read: mamba::nemotron_h,
        what: "a layer is Mamba 2, attention, a layer without a gate, or experts",
    },
    Family { names: &["olmo"], read: layer_norm::olmo, what: "layer norms without weights" },
    Family { names: &["olmo2"], read: olmo2::config, what: "norms after both halves only, queries and keys normalized as a whole" },
    Family { names: &["olmo3"], read: olmo2::windowed, what: "OLMo 2 with windows, whose rotary embedding is never scaled" },
    Family { names: &["olmoe"], read: olmo2::experts, what: "the attention of OLMo 2 with experts" },
    Family { names: &["opt"], read: gpt::opt, what: "learned positions, biases, a layer without a gate by the positive part" },
    Family {
        names: &["phi"],
        read: layer_norm::phi,
        what: "Phi 1 to 2: one layer norm for both halves, biases, partial rotary embedding",
    },
    Family {
        names: &["phi3"],
        read: phi3::config,
        what: "joined projections, partial rotary embedding, longrope: Phi-3 and Phi-4 mini",
    },
    Family { names: &["phimoe"], read: layer_norm::phimoe, what: "layer norms, experts chosen one after the other" },
    Family { names: &["qwen2"], read: qwen2::config, what: "biases on q, k and v; upper layers may have a window" },
    Family {
        names: &["qwen2_5_vl", "qwen2_5_vl_text", "qwen2_vl", "qwen2_vl_text"],
        read: qwen2::vision,
        what: "the text part of Qwen2-VL and Qwen2.5-VL",
    },
    Family { names: &["qwen2_moe"], read: qwen2::experts, what: "Qwen 2 with experts beside a shared one that has a gate" },
    Family { names: &["qwen3"], read: qwen3::dense, what: "queries and keys normalized per head" },
    Family { names: &["qwen3_5", "qwen3_5_text"], read: qwen3_next::dense, what: "gated delta nets and gated attention" },
    Family { names: &["qwen3_5_moe", "qwen3_5_moe_text"], read: qwen3_next::experts, what: "Qwen 3.5 with experts" },
    Family { names: &["qwen3_moe"], read: qwen3::experts, what: "Qwen 3 with experts, in all layers or some" },
    Family {
        names: &["qwen3_next"],
        read: qwen3_next::config,
        what: "gated delta nets and gated attention, experts with a gated shared one",
    },
    Family { names: &["qwen3_vl_moe_text"], read: qwen3::vision_experts, what: "the text part of Qwen3-VL with experts" },
    Family { names: &["qwen3_vl_text"], read: qwen3::vision, what: "the text part of Qwen3-VL" },
    Family { names: &["seed_oss"], read: llama_variants::seed_oss, what: "Llama with biases on q, k and v" },
    Family { names: &["smollm3"], read: smollm3::config, what: "layers without rotary embedding" },
    Family { names: &["solar_open"], read: glm4::solar_open, what: "the experts of GLM-4.5 in every layer" },
    Family {
        names: &["stablelm"],
        read: layer_norm::stablelm,
        what: "layer norms, partial rotary embedding; the largest feeds both halves by one norm",
    },
    Family { names: &["starcoder2"], read: layer_norm::starcoder2, what: "layer norms, biases, a layer without a gate" },
    Family { names: &["vaultgemma"], read: gemma2::vault, what: "Gemma 2 without norms after both halves" },
    Family { names: &["youtu", "youtu_llm"], read: deepseek::youtu, what: "latent attention, no experts" },
];

/// Kind of a Hugging Face checkpoint's model.
///
/// # Errors
/// As [`config`].
pub(crate) fn architecture(configs: &Configs<'_>) -> Result<Architecture> {
    let f = &configs.model;
    let name = f.text("model_type")?.unwrap_or_default();
    if let Some((_, read)) = SPEECH_FAMILIES.iter().find(|(known, _)| *known == name) {
        let architecture = read(configs)?;
        f.finish(&harmless::for_speech)?;
        return Ok(architecture);
    }
    if let Some(encoder) = bert::config(name, configs) {
        let encoder = heads::with_head(configs, encoder?)?;
        f.finish(&harmless::for_encoders)?;
        return Ok(Architecture::Encoder(Box::new(encoder)));
    }
    let mut config = config(f)?;
    let (sees_later, sentence) = (sees_later_tokens(f)?, (configs.sentence)()?);
    if let Some([yes, no]) = sentence.answers {
        return Ok(Architecture::Encoder(Box::new(heads::answering(config, sentence, yes, no)?)));
    }
    if sees_later || sentence.is_stated || heads::classified(f)?.is_some() {
        let encoder = decoder_encoder::encoder(config, !sees_later, sentence)?;
        return Ok(Architecture::Encoder(Box::new(heads::with_head(configs, encoder)?)));
    }
    add_ids(&mut config, configs.generation.as_ref())?;
    Ok(Architecture::Decoder(config))
}

/// Whether the tokens of a decoder's layers see later tokens too, as in EmbeddingGemma.
fn sees_later_tokens(f: &Fields<'_>) -> Result<bool> {
    const KEY: &str = "use_bidirectional_attention";
    let text = f.child("text_config")?;
    Ok([Some(f), text.as_ref()].into_iter().flatten().any(|f| f.get(KEY).is_some_and(|v| v == true)))
}

/// Adds token ids from `generation_config.json`.
fn add_ids(config: &mut DecoderConfig, generation: Option<&Fields<'_>>) -> Result<()> {
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

/// Inputs other than text, by the config keys of their encoders.
const OTHER_INPUTS: [(&str, &str); 2] = [("vision_config", "images"), ("audio_config", "sound")];

/// The config of a language model, or of the text part of a model with several parts.
///
/// # Errors
/// [`Error::Family`] for an unsupported family, [`Error::Key`] for an invalid or unknown key.
pub(crate) fn config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let unused = OTHER_INPUTS.iter().filter(|(key, _)| f.get(key).is_some()).map(|(_, input)| *input).collect();
    Ok(DecoderConfig { unused, ..text_config(f)? })
}

fn text_config(f: &Fields<'_>) -> Result<DecoderConfig> {
    let name = f.text("model_type")?.ok_or_else(|| f.error("model_type", "the name of a family"))?;
    let Some(text) = f.child("text_config")? else {
        let config = read(name, f)?;
        // Old multimodal folders hold text and vision keys in one object.
        f.finish(&|key| harmless::for_text(key) || harmless::for_other_parts(key))?;
        return Ok(config);
    };
    let mut config = read(text.text("model_type")?.unwrap_or(name), &text)?;
    // Older folders state a tie in the text part alone, beside a default outside.
    config.tied = f.bool_opt("tie_word_embeddings")?.filter(|tied| *tied || config.tied != Some(true)).or(config.tied);
    config.dtype = common::dtype(f)?.or(config.dtype);
    config.bos = f.ints("bos_token_id")?.first().copied().or(config.bos);
    config.add_eos(f.ints("eos_token_id")?);
    text.finish(&harmless::for_text)?;
    f.finish(&|key| key == "text_config" || harmless::around_text(key))?;
    Ok(config)
}

fn read(name: &str, f: &Fields<'_>) -> Result<DecoderConfig> {
    let family = FAMILIES.iter().find(|family| family.names.contains(&name));
    let family = family.ok_or_else(|| {
        let names = FAMILIES.iter().flat_map(|family| family.names.iter().copied());
        let names: Vec<_> = names.chain(SPEECH_FAMILIES.iter().map(|(name, _)| *name)).chain(bert::names()).collect();
        Error::Family { found: name.chars().take(80).collect(), supported: names.join(", ") }
    })?;
    (family.read)(&f.with_aliases(aliases::of(name)))
}

#[cfg(test)]
mod tests;
