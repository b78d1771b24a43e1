//! NeMo's weight names.

/// Prefixes of names, with the prefixes in Hugging Face checkpoints.
const MODULES: [(&str, &str); 8] = [
    ("encoder.pre_encode.conv.", "encoder.subsampling.layers."),
    ("encoder.pre_encode.out.", "encoder.subsampling.linear."),
    ("decoder.prediction.embed.", "decoder.embedding."),
    ("decoder.prediction.dec_rnn.lstm.", "decoder.lstm."),
    ("decoder.decoder_layers.0.", "ctc_head."),
    ("joint.enc.", "encoder_projector."),
    ("joint.pred.", "decoder.decoder_projector."),
    ("joint.joint_net.2.", "joint.head."),
];

/// Parts of names in the encoder's layers.
const LAYERS: [(&str, &str); 8] = [
    (".self_attn.linear_q.", ".self_attn.q_proj."),
    (".self_attn.linear_k.", ".self_attn.k_proj."),
    (".self_attn.linear_v.", ".self_attn.v_proj."),
    (".self_attn.linear_out.", ".self_attn.o_proj."),
    (".self_attn.linear_pos.", ".self_attn.relative_k_proj."),
    (".self_attn.pos_bias_u", ".self_attn.bias_u"),
    (".self_attn.pos_bias_v", ".self_attn.bias_v"),
    (".conv.batch_norm.", ".conv.norm."),
];

/// The name of a weight in a Hugging Face checkpoint. `None` for weights that the model does not
/// use.
pub(super) fn published(name: &str) -> Option<String> {
    if let Some((from, to)) = MODULES.iter().find(|(from, _)| name.starts_with(from)) {
        return Some(name.replacen(from, to, 1));
    }
    if !name.starts_with("encoder.layers.") {
        return None;
    }
    let part = LAYERS.iter().find(|(from, _)| name.contains(from));
    Some(part.map_or_else(|| name.to_owned(), |(from, to)| name.replacen(from, to, 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_those_of_hugging_face() {
        for (nemo, expected) in [
            ("encoder.pre_encode.conv.2.weight", Some("encoder.subsampling.layers.2.weight")),
            ("encoder.layers.11.self_attn.linear_pos.weight", Some("encoder.layers.11.self_attn.relative_k_proj.weight")),
            ("encoder.layers.0.conv.batch_norm.running_var", Some("encoder.layers.0.conv.norm.running_var")),
            ("encoder.layers.0.norm_out.bias", Some("encoder.layers.0.norm_out.bias")),
            ("decoder.prediction.dec_rnn.lstm.weight_ih_l1", Some("decoder.lstm.weight_ih_l1")),
            ("joint.joint_net.2.bias", Some("joint.head.bias")),
            ("preprocessor.featurizer.fb", None),
            ("ctc_decoder.decoder_layers.0.weight", None),
        ] {
            assert_eq!(published(nemo).as_deref(), expected, "{nemo}");
        }
    }
}
