//! Tensors under the names that programs use.

use indexmap::IndexMap;

use super::Gguf;
use crate::{CheckpointTensor, Config, Family, Result};

/// (GGUF's name in a block, the program's name in a layer)
const LAYER: [(&str, &str); 11] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

const OUTER: [(&str, &str); 3] = [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// The tensors of the file that a program may read, by the names of Hugging Face checkpoints. Rows of Llama's q and k stand
/// interleaved in the file and are marked so.
pub(crate) fn sources(file: &Gguf, config: &Config) -> Result<IndexMap<String, CheckpointTensor>> {
    let mut out = IndexMap::new();
    let mut add = |stored: String, name: String, head: Option<usize>| -> Result<()> {
        if let Some(source) = file.source(&stored)? {
            let source = if let Some(head) = head { source.interleaved(&stored, head)? } else { source };
            out.insert(name, source);
        }
        Ok(())
    };
    for (stored, name) in OUTER {
        add(format!("{stored}.weight"), format!("{name}.weight"), None)?;
    }
    for layer in 0..config.layers {
        for (stored, name) in LAYER {
            let rotary = config.family == Family::Llama && matches!(stored, "attn_q" | "attn_k");
            let head = rotary.then_some(config.head_dim);
            for part in ["weight", "bias"] {
                add(format!("blk.{layer}.{stored}.{part}"), format!("model.layers.{layer}.{name}.{part}"), head)?;
            }
        }
    }
    Ok(out)
}
