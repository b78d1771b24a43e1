//! Tensors under the names that programs use.

use indexmap::IndexMap;

use super::{Gguf, config::Architecture};
use crate::{
    CheckpointTensor, Result,
    spec::{Config, Layer, Mixer},
};

/// (GGUF's name in a block, the program's name in a layer)
const LAYER: [(&str, &str); 13] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", FEED_IN),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// Stands for the layer's own name of the norm ahead of its gated layer.
const FEED_IN: &str = "";

const OUTER: [(&str, &str); 3] = [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// The tensors of the file that a program may read, by the names of Hugging Face checkpoints, with how they are stored.
pub(super) fn sources(file: &Gguf, config: &Config, a: &Architecture) -> Result<IndexMap<String, CheckpointTensor>> {
    let mut out = IndexMap::new();
    let mut add = |stored: String, name: String, head: Option<usize>| -> Result<()> {
        if let Some(source) = file.source(&stored)? {
            let source = if let Some(head) = head { source.interleaved(&stored, head)? } else { source };
            let is_norm = a.norms_plus_one && stored.ends_with("norm.weight");
            out.insert(name, if is_norm { source.plus_one() } else { source });
        }
        Ok(())
    };
    for (stored, name) in OUTER {
        add(format!("{stored}.weight"), format!("{name}.weight"), None)?;
    }
    for (i, layer) in config.layers.iter().enumerate() {
        for (stored, name) in LAYER {
            let name = if name == FEED_IN { layer.norms.feed_in.unwrap_or(stored) } else { name };
            let rotary = a.interleaved && matches!(stored, "attn_q" | "attn_k");
            let head = if rotary { head_dim(layer) } else { None };
            for part in ["weight", "bias"] {
                add(format!("blk.{i}.{stored}.{part}"), format!("model.layers.{i}.{name}.{part}"), head)?;
            }
        }
    }
    Ok(out)
}

fn head_dim(layer: &Layer) -> Option<usize> {
    if let Mixer::Attention(a) = &layer.mixer { Some(a.head_dim) } else { None }
}
