//! Keys of configs that leave the numbers of a text model as they are: training, sampling, bookkeeping, other modalities.

/// What training, generation, saving and loading read.
const COMMON: &[&str] = &[
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "_sliding_window_pattern",
    "add_cross_attention",
    "architectures",
    "attention_dropout",
    "auto_map",
    "aux_loss_alpha",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "cache_implementation",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "embd_pdrop",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "ep_size",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "id2label",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "keys_to_ignore_at_inference",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_mtp_layers",
    "num_nextn_predict_layers",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "quantization",
    "quantization_config",
    "remove_invalid_values",
    "repetition_penalty",
    "resid_pdrop",
    "return_dict",
    "return_dict_in_generate",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "router_z_loss_coef",
    "sep_token_id",
    "seq_aux",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
];

/// Numbers of multi-token prediction heads and of positions of images, which text does not use.
const TEXT: &[&str] = &["mrope_interleaved", "mrope_section", "mtp_num_hidden_layers", "mtp_use_dedicated_embeddings"];

/// Parts for images and sound, and the tokens that stand for them.
const OTHERS: &[&str] = &[
    "audio_config",
    "audio_token_id",
    "audio_token_index",
    "boa_token_id",
    "boa_token_index",
    "boi_token_id",
    "boi_token_index",
    "eoa_token_id",
    "eoa_token_index",
    "eoi_token_id",
    "eoi_token_index",
    "image_token_id",
    "image_token_index",
    "language_model_only",
    "mm_tokens_per_image",
    "video_token_id",
    "video_token_index",
    "vision_config",
    "vision_end_token_id",
    "vision_soft_tokens_per_image",
    "vision_start_token_id",
];

/// What training, pooling, alignment and other tasks of speech models read.
const SPEECH: &[&str] = &[
    "activation_dropout",
    "apply_spec_augment",
    "audio_token_id",
    "classifier_proj_size",
    "ctc_loss_reduction",
    "ctc_zero_infinity",
    "decoder_layerdrop",
    "dropout",
    "dropout_positions",
    "encoder_layerdrop",
    "forced_decoder_ids",
    "init_std",
    "layerdrop",
    "mask_feature_length",
    "mask_feature_min_masks",
    "mask_feature_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_time_prob",
    "median_filter_width",
    "num_hidden_layers",
];

/// What training and other tasks of text encoders read.
const ENCODERS: &[&str] = &[
    "attention_probs_dropout_prob",
    "classifier_dropout",
    "directionality",
    "dropout",
    "gradient_checkpointing",
    "hidden_dropout_prob",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "qa_dropout",
    "seq_classif_dropout",
    "sinusoidal_pos_embds",
    "tie_weights_",
    "tie_word_embeddings",
];

/// Whether a key of a text encoder is harmless.
pub(super) fn beside_encoder(key: &str) -> bool {
    COMMON.contains(&key) || ENCODERS.contains(&key)
}

/// Whether a key of a speech model is harmless.
pub(super) fn beside_speech(key: &str) -> bool {
    COMMON.contains(&key) || SPEECH.contains(&key)
}

/// Whether a key of a text model is harmless.
pub(super) fn in_text(key: &str) -> bool {
    COMMON.contains(&key) || TEXT.contains(&key)
}

/// Whether a key beside a text model's config is harmless.
pub(super) fn beside_text(key: &str) -> bool {
    COMMON.contains(&key) || OTHERS.contains(&key)
}
