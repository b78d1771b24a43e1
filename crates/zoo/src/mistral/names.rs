//! Mistral's tensor names.

/// Stack of layers that a tensor belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerStack {
    Text,
    Encoder,
}

/// Prefixes of the audio parts in Voxtral and in Voxtral Realtime.
const LISTENING: [&str; 2] = ["mm_whisper_embeddings.", "mm_streams_embeddings.embedding_module."];
const ENCODER: &str = "whisper_encoder.";

/// Modules outside of layers, by Mistral's name and by Hugging Face's.
const OUTER: [(&str, &str); 5] = [
    ("tok_embeddings", "model.embed_tokens"),
    ("norm", "model.norm"),
    ("output", "lm_head"),
    ("audio_language_projection.0", "multi_modal_projector.linear_1"),
    ("audio_language_projection.2", "multi_modal_projector.linear_2"),
];
/// Modules of layers with rotary positions and a gate.
const LAYER: [(&str, &str); 9] = [
    ("attention.wq", "self_attn.q_proj"),
    ("attention.wk", "self_attn.k_proj"),
    ("attention.wv", "self_attn.v_proj"),
    ("attention.wo", "self_attn.o_proj"),
    ("feed_forward.w1", "mlp.gate_proj"),
    ("feed_forward.w2", "mlp.down_proj"),
    ("feed_forward.w3", "mlp.up_proj"),
    ("ada_rms_norm_t_cond.0", "ada_rms_norm.linear1"),
    ("ada_rms_norm_t_cond.2", "ada_rms_norm.linear2"),
];
const TEXT_NORMS: [(&str, &str); 2] = [("attention_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm")];
const ENCODER_NORMS: [(&str, &str); 2] = [("attention_norm", "self_attn_layer_norm"), ("ffn_norm", "final_layer_norm")];
/// Modules of Whisper's layers with names that differ from [`LAYER`].
const WHISPER_LAYER: [(&str, &str); 3] =
    [("attention.wo", "self_attn.out_proj"), ("feed_forward.w1", "fc1"), ("feed_forward.w2", "fc2")];
/// Modules outside of the layers of Whisper's encoder, and of Voxtral Realtime's.
const WHISPER: [(&str, &str); 3] = [("conv_layers.0", "conv1"), ("conv_layers.1", "conv2"), ("transformer.norm", "layer_norm")];
const REALTIME: [(&str, &str); 3] =
    [("conv_layers.0.conv", "embedder.conv1"), ("conv_layers.1.conv", "embedder.conv2"), ("transformer.norm", "norm")];

/// The name of a tensor in a Hugging Face checkpoint. `None` for tensors that no supported model
/// uses.
pub(super) fn published(name: &str, is_realtime: bool) -> Option<(LayerStack, String)> {
    let name = LISTENING.iter().find_map(|root| name.strip_prefix(root)).unwrap_or(name);
    let (module, leaf) = name.rsplit_once('.')?;
    let Some(module) = module.strip_prefix(ENCODER) else {
        if let Some((layer, module)) = layer(module) {
            let theirs = find(&TEXT_NORMS, module).or_else(|| find(&LAYER, module))?;
            return Some((LayerStack::Text, format!("model.layers.{layer}.{theirs}.{leaf}")));
        }
        return Some((LayerStack::Text, format!("{}.{leaf}", find(&OUTER, module)?)));
    };
    let (layers, outer) = if is_realtime { (&LAYER[..], REALTIME) } else { (&WHISPER_LAYER[..], WHISPER) };
    let rest = match module.strip_prefix("transformer.").and_then(layer) {
        Some((layer, module)) => {
            let theirs = find(&ENCODER_NORMS, module).or_else(|| find(layers, module)).or_else(|| find(&LAYER, module))?;
            format!("layers.{layer}.{theirs}")
        }
        None => find(&outer, module)?.to_owned(),
    };
    Some((LayerStack::Encoder, format!("audio_tower.{rest}.{leaf}")))
}

/// Whether the tensor's outputs are rotated by position.
pub(super) fn is_rotary(published: &str) -> bool {
    [".q_proj.", ".k_proj."].iter().any(|module| published.contains(module))
}

/// Splits `layers.N.MODULE`.
fn layer(module: &str) -> Option<(usize, &str)> {
    let (layer, module) = module.strip_prefix("layers.")?.split_once('.')?;
    Some((layer.parse().ok()?, module))
}

fn find<'a>(table: &[(&str, &'a str)], module: &str) -> Option<&'a str> {
    table.iter().find_map(|(from, to)| (*from == module).then_some(*to))
}
