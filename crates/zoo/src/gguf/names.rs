//! Maps stored tensors to the names that programs use.

use flambeau_tensor::DType;
use indexmap::IndexMap;

use super::{Gguf, MetadataValue, architecture::Architecture, decays, fused};
use crate::{
    CheckpointTensor, Error, Result,
    spec::{Activation, Attention, DecoderConfig, Experts, FeedForward, Gate, Layer, Mamba, MambaForm, Mixer, Mlp},
};

const OUTER: [(&str, &str); 6] = [
    ("token_embd", "embed_tokens"),
    ("token_embd_norm", "embedding_norm"),
    ("position_embd", "embed_positions"),
    ("per_layer_token_embd", "embed_tokens_per_layer"),
    ("per_layer_model_proj", "per_layer_model_projection"),
    ("per_layer_proj_norm", "per_layer_projection_norm"),
];

/// Stacks of matrices, one for each residual stream but the first.
const STREAMS: [(&str, &str); 2] =
    [("altup_proj.weight", "altup_projections"), ("altup_unembd_proj.weight", "altup_unembed_projections")];

/// Tensors of a layer outside of its two halves.
const BESIDE: [(&str, &str); 15] = [
    ("altup_correct_coef.weight", "altup.correction_coefs.weight"),
    ("altup_correct_scale.weight", "altup.correct_output_scale"),
    ("altup_predict_coef.weight", "altup.prediction_coefs.weight"),
    ("altup_router.weight", "altup.modality_router.weight"),
    ("altup_router_norm.weight", "altup.router_norm.weight"),
    ("laurel_l.weight", "laurel.linear_left.weight"),
    ("laurel_r.weight", "laurel.linear_right.weight"),
    ("laurel_post_norm.weight", "laurel.post_laurel_norm.weight"),
    ("inp_gate.weight", "per_layer_input_gate.weight"),
    ("proj.weight", "per_layer_projection.weight"),
    ("post_norm.weight", "post_per_layer_input_norm.weight"),
    ("layer_output_scale.weight", "layer_scalar"),
    ("pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"),
    ("post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"),
    ("post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"),
];

const LATENT: [(&str, &str); 9] = [
    ("attn_q", "q_proj"),
    ("attn_q_a", "q_a_proj"),
    ("attn_q_a_norm", "q_a_layernorm"),
    ("attn_q_b", "q_b_proj"),
    ("attn_kv_a_mqa", "kv_a_proj_with_mqa"),
    ("attn_kv_a_norm", "kv_a_layernorm"),
    ("attn_kv_b", "kv_b_proj"),
    ("attn_k_b", "embed_q"),
    ("attn_v_b", "unembed_out"),
];

const DELTA_NET: [(&str, &str); 11] = [
    ("attn_qkv.weight", "in_proj_qkv.weight"),
    ("attn_gate.weight", "in_proj_z.weight"),
    ("ssm_in.weight", "in_proj_qkvz.weight"),
    ("ssm_ba.weight", "in_proj_ba.weight"),
    ("ssm_alpha.weight", "in_proj_a.weight"),
    ("ssm_beta.weight", "in_proj_b.weight"),
    ("ssm_conv1d.weight", "conv1d.weight"),
    ("ssm_norm.weight", "norm.weight"),
    ("ssm_out.weight", "out_proj.weight"),
    ("ssm_dt.bias", "dt_bias"),
    ("ssm_a", "A_log"),
];

const MAMBA: [(&str, &str); 8] = [
    ("ssm_in", "in_proj"),
    ("ssm_conv1d", "conv1d"),
    ("ssm_x", "x_proj"),
    ("ssm_norm", "norm"),
    ("ssm_dt_norm", "dt_layernorm"),
    ("ssm_b_norm", "b_layernorm"),
    ("ssm_c_norm", "c_layernorm"),
    ("ssm_out", "out_proj"),
];

/// Pairs of names in a block or a layer: GGUF's and the program's.
#[derive(Default)]
struct Names(Vec<(String, String)>);

impl Names {
    fn add(&mut self, stored: &str, name: impl Into<String>) {
        self.0.push((stored.to_owned(), name.into()));
    }

    /// The tensor `stored` of layer `index`, times its scale unless the program reads the scale.
    fn source(&self, file: &Gguf, index: usize, stored: &str) -> Result<Option<CheckpointTensor>> {
        let read = |beside: String| self.0.iter().any(|(known, _)| *known == beside);
        let full = format!("blk.{index}.{stored}");
        if fused::scale_beside(stored).is_some_and(read) { file.source(&full) } else { fused::scaled(file, &full) }
    }

    /// A module's weight and bias.
    fn module(&mut self, stored: &str, name: &str) {
        for part in ["weight", "bias"] {
            self.add(&format!("{stored}.{part}"), format!("{name}.{part}"));
        }
    }

    fn of(layer: &Layer) -> Names {
        let mut names = Names::default();
        let norms = layer.norms;
        // Files of DBRX use this name.
        norms.feed_in.into_iter().for_each(|name| names.module("attn_output_norm", name));
        // Blocks with one norm before each half may name the second norm after the first half.
        let between = if norms.mixer_out.is_some() { norms.mixer_out } else { norms.feed_in };
        let norms = [("attn_norm", norms.mixer_in), ("post_attention_norm", between), ("ffn_norm", norms.feed_in)];
        for (stored, name) in norms.into_iter().chain([("post_ffw_norm", layer.norms.feed_out)]) {
            name.into_iter().for_each(|name| names.module(stored, name));
        }
        // A layer with only one half has its norm under a fixed name.
        if let (Mixer::None, Some(name)) = (&layer.mixer, layer.norms.feed_in) {
            names.module("attn_norm", name);
        }
        // Files of Falcon-H1 use this name.
        if let (Mixer::AttentionAndMamba(..), Some(name)) = (&layer.mixer, layer.norms.feed_in) {
            names.add("ffn_norm", format!("{name}.weight"));
        }
        // In files of Falcon, the second norm is the one before attention.
        if let (Some(attention @ "ln_attn"), Some(feed)) = (layer.norms.mixer_in, layer.norms.feed_in) {
            names.module("attn_norm", feed);
            names.module("attn_norm_2", attention);
        }
        for (stored, name) in BESIDE {
            names.add(stored, name);
        }
        match &layer.mixer {
            Mixer::Attention(a) => names.attention(a),
            Mixer::Latent(l) => {
                names.module("attn_output", "self_attn.o_proj");
                l.gate.iter().for_each(|gate| names.module("attn_gate", &format!("self_attn.{gate}")));
                LATENT.iter().for_each(|(stored, name)| names.module(stored, &format!("self_attn.{name}")));
            }
            Mixer::DeltaNet(_) => DELTA_NET.iter().for_each(|(stored, name)| names.add(stored, format!("linear_attn.{name}"))),
            Mixer::Mamba(m) => names.mamba(m),
            Mixer::AttentionAndMamba(a, m) => {
                names.attention(a);
                names.mamba(m);
            }
            Mixer::KeyDecay(k) => decays::names(k).for_each(|(stored, name)| names.add(stored, format!("self_attn.{name}"))),
            Mixer::None => {}
            Mixer::ShortConv(_) => {
                ["in_proj", "out_proj", "conv"]
                    .iter()
                    .for_each(|part| names.module(&format!("shortconv.{part}"), &format!("conv.{part}")));
            }
        }
        match &layer.feed_forward {
            FeedForward::Mlp(mlp) => names.mlp(mlp),
            FeedForward::Experts(experts) => names.experts(experts),
            FeedForward::Both(mlp, experts) => {
                names.mlp(mlp);
                names.experts(experts);
            }
            FeedForward::None => {}
        }
        names
    }

    fn attention(&mut self, a: &Attention) {
        let own = |name: &str| format!("{}.{name}", a.names.module);
        for (stored, name) in [
            ("attn_q", "q_proj"),
            ("attn_k", "k_proj"),
            ("attn_v", "v_proj"),
            ("attn_qkv", "qkv_proj"),
            ("attn_output", a.names.output),
            ("attn_q_norm", a.names.q_norm),
            ("attn_k_norm", a.names.k_norm),
        ] {
            self.module(stored, &own(name));
        }
        if let Gate::Elements(name) | Gate::Heads(name) | Gate::SoftHeads(name) | Gate::SoftElements(name) = a.gate {
            self.module("attn_gate", &own(name));
        }
        self.add("attn_sinks.weight", own("sinks"));
        if let Some(norm) = a.output_norm {
            self.module("attn_sub_norm", &own(norm));
        }
    }

    fn mamba(&mut self, m: &Mamba) {
        let own = |name: &str| format!("{}.{name}", m.module);
        for (stored, name) in MAMBA {
            self.module(stored, &own(name));
        }
        self.add("ssm_a", own("A_log"));
        self.add("ssm_d", own("D"));
        match m.form {
            MambaForm::Channels { .. } => self.module("ssm_dt", &own("dt_proj")),
            MambaForm::Heads { .. } => self.add("ssm_dt.bias", own("dt_bias")),
        }
    }

    fn mlp(&mut self, mlp: &Mlp) {
        let own = |name: &str| format!("{}.{name}", mlp.module);
        // A joined matrix has the name of one part.
        let up = if mlp.joined { "gate_up_proj" } else { mlp.names.up };
        for (stored, name) in [("ffn_gate", mlp.names.gate), ("ffn_up", up), ("ffn_down", mlp.names.down)] {
            self.module(stored, &own(name));
        }
        if let Some(norm) = mlp.inner_norm {
            self.module("ffn_sub_norm", &own(norm));
        }
    }

    fn experts(&mut self, e: &Experts) {
        let own = |name: &str| if e.module.is_empty() { name.to_owned() } else { format!("{}.{name}", e.module) };
        self.module("ffn_gate_inp", &own(e.router.module));
        for (stored, name) in [("ffn_gate_exps", "gate_proj"), ("ffn_up_exps", "up_proj"), ("ffn_down_exps", "down_proj")] {
            self.module(stored, &own(&format!("switch_mlp.{name}")));
        }
        self.module("ffn_latent_down", &own("fc1_latent_proj"));
        self.module("ffn_latent_up", &own("fc2_latent_proj"));
        self.add("ffn_gate_up_exps.weight", own("experts.gate_up_proj"));
        if e.router.own_norm {
            self.add("ffn_gate_inp.scale", own("router.scale"));
            self.add("ffn_down_exps.scale", own("router.per_expert_scale"));
        }
        if let Some(correction) = e.router.correction {
            // Files of Hy3 leave out the last part of the name.
            ["exp_probs_b", "exp_probs_b.bias"].iter().for_each(|stored| self.add(stored, own(correction)));
        }
        if let Some(gate) = e.shared_gate {
            self.module("ffn_gate_inp_shexp", &own(gate));
        }
        if let Some(shared) = &e.shared {
            // A joined matrix has the name of one part.
            let up = if shared.joined { "gate_up_proj" } else { shared.names.up };
            let names = [("ffn_gate_shexp", shared.names.gate), ("ffn_up_shexp", up), ("ffn_down_shexp", shared.names.down)];
            names.iter().for_each(|(stored, name)| self.module(stored, &own(&format!("{}.{name}", shared.module))));
        }
    }
}

/// Tensors that a program may read, by their names in Hugging Face checkpoints, and the file's name
/// for each of these names.
pub(super) fn sources(
    file: &Gguf,
    config: &DecoderConfig,
    a: &Architecture,
) -> Result<(IndexMap<String, CheckpointTensor>, IndexMap<String, String>)> {
    let (mut out, mut names) = (IndexMap::new(), IndexMap::new());
    let mut add = |source: Option<CheckpointTensor>, stored: String, name: String, layer: Option<&Layer>| -> Result<()> {
        if let Some(source) = source {
            out.insert(name.clone(), as_published(source, &stored, layer, a)?);
        }
        names.insert(name, stored);
        Ok(())
    };
    let outer = OUTER.into_iter().chain(config.final_norm.map(|norm| ("output_norm", norm)));
    let outer = outer.map(|(stored, name)| (stored, format!("model.{name}"))).chain([("output", "lm_head".to_owned())]);
    for (stored, name) in outer {
        for part in ["weight", "bias"] {
            let stored = format!("{stored}.{part}");
            add(fused::scaled(file, &stored)?, stored, format!("{name}.{part}"), None)?;
        }
    }
    for (i, layer) in config.layers.iter().enumerate() {
        let list = Names::of(layer);
        for (stored, name) in &list.0 {
            let source = list.source(file, i, stored)?;
            add(source, format!("blk.{i}.{stored}"), format!("model.layers.{i}.{name}"), Some(layer))?;
        }
    }
    for (i, layer) in config.layers.iter().enumerate() {
        for (name, stored, part) in fused::projections(file, i, layer, a)? {
            names.insert(name.clone(), stored);
            out.insert(name, part);
        }
    }
    if config.layers.iter().any(|layer| matches!(layer.feed_forward, FeedForward::Mlp(mlp) if mlp.activation == Activation::Xielu))
    {
        out.extend(xielu(file, config)?);
    }
    if let Some(streams) = &config.streams {
        for (stored, name) in STREAMS {
            out.extend(apart(file, stored, name, streams.count - 1)?);
        }
    }
    Ok((out, names))
}

/// The learned numbers of xIELU, which files state as lists in their metadata.
fn xielu(file: &Gguf, config: &DecoderConfig) -> Result<Vec<(String, CheckpointTensor)>> {
    let number = |v: MetadataValue| if let MetadataValue::Float(v) = v { Some(v as f32) } else { None };
    let list = |key: &str| {
        let numbers = file.numbers(key, number)?;
        let expected = || Error::key(key, format!("{} numbers", config.layers.len()), format!("{} numbers", numbers.len()));
        if numbers.len() < config.layers.len() { Err(expected()) } else { Ok(numbers) }
    };
    if let Some(other) = list("xielu.beta")?.iter().find(|&&beta| beta != 0.5) {
        return Err(Error::key("xielu.beta", "0.5", other));
    }
    let mut out = Vec::new();
    for part in ["alpha_p", "alpha_n"] {
        for (i, number) in list(&format!("xielu.{part}"))?.into_iter().enumerate() {
            let name = format!("model.layers.{i}.mlp.act_fn.{part}");
            let tensor = CheckpointTensor::plain(&name, DType::F32, vec![1], number.to_le_bytes().to_vec().into())?;
            out.push((name, tensor));
        }
    }
    Ok(out)
}

/// The matrices of a stack, under numbered names.
fn apart(file: &Gguf, stored: &str, name: &str, count: usize) -> Result<Vec<(String, CheckpointTensor)>> {
    let stack = file.source(stored)?.ok_or_else(|| Error::MissingTensor(stored.into()))?;
    let found = stack.shape().to_vec();
    let &[matrices, rows, cols] = &found[..] else {
        return Err(Error::tensor(stored, format!("{count} matrices"), format!("shape {found:?}")));
    };
    let matrix = |i| stack.slice(i, 1).map(|one| one.with_shape(vec![rows, cols])).filter(|_| matrices == count);
    let matrix = |i| matrix(i).ok_or_else(|| Error::tensor(stored, format!("{count} matrices"), format!("shape {found:?}")));
    (0..count).map(|i| Ok((format!("model.{name}.{i}.weight"), matrix(i)?))).collect()
}

/// Names of weights in files, each with the name in programs. Folders with a tensor for each expert
/// give programs another name for the stack of experts than files do.
pub(super) fn of_weights(config: &DecoderConfig) -> Vec<(String, String)> {
    let mut all = vec![("output.weight".to_owned(), "lm_head.weight".to_owned())];
    for (i, layer) in config.layers.iter().enumerate() {
        for (stored, name) in Names::of(layer).0 {
            let (stored, name) = (format!("blk.{i}.{stored}"), format!("model.layers.{i}.{name}"));
            if let Some(stack) = name.strip_suffix(".weight").filter(|name| name.contains(".switch_mlp.")) {
                all.push((stored.clone(), stack.replace(".switch_mlp.", ".experts.")));
            }
            all.push((stored, name));
        }
    }
    all
}

/// Undoes the changes that the file format made to a tensor.
fn as_published(source: CheckpointTensor, stored: &str, layer: Option<&Layer>, a: &Architecture) -> Result<CheckpointTensor> {
    let part = stored.splitn(3, '.').nth(2).unwrap_or(stored);
    if let Some(Mixer::KeyDecay(k)) = layer.map(|layer| &layer.mixer) {
        return Ok(decays::as_published(source, part, k));
    }
    let head_dim = layer.and_then(|layer| if let Mixer::Attention(a) = &layer.mixer { Some(a.head_dim) } else { None });
    match (part, head_dim) {
        ("attn_q.weight" | "attn_q.bias" | "attn_k.weight" | "attn_k.bias", Some(head)) if a.interleaved => {
            source.interleaved(stored, head)
        }
        // Convolutions lack the axis of their single input channel. A single gate may lack the axis
        // of its single output.
        ("ssm_conv1d.weight" | "shortconv.conv.weight", _) => reshaped(source, stored, |shape| vec![shape[0], 1, shape[1]]),
        ("ffn_gate_inp_shexp.weight", _) if source.shape().len() == 1 => reshaped(source, stored, |shape| vec![1, shape[0]]),
        ("ssm_a", _) => Ok(with_length(source, layer).negated_exponential()),
        ("ssm_norm.weight", _) if source.shape().len() == 2 => {
            let length = source.shape().iter().product();
            Ok(source.with_shape(vec![length]))
        }
        _ if a.norms_plus_one && stored.ends_with("norm.weight") => Ok(source.plus_one()),
        _ => Ok(source),
    }
}

/// Reshapes the rates of heads, which some files store as a column.
fn with_length(source: CheckpointTensor, layer: Option<&Layer>) -> CheckpointTensor {
    match (layer.map(|layer| &layer.mixer), source.shape()) {
        (Some(Mixer::Mamba(m) | Mixer::AttentionAndMamba(_, m)), &[heads, 1]) if heads == m.heads && m.state > 1 => {
            source.with_shape(vec![heads])
        }
        _ => source,
    }
}

/// Reshapes a vector or matrix to the shape that `shape` returns.
fn reshaped(source: CheckpointTensor, stored: &str, shape: impl Fn(&[usize]) -> Vec<usize>) -> Result<CheckpointTensor> {
    match source.shape() {
        [_] | [_, _] => {
            let shape = shape(&[source.shape(), &[1]].concat());
            Ok(source.with_shape(shape))
        }
        other => Err(Error::tensor(stored, "a matrix", format!("shape {other:?}"))),
    }
}
