"""Models of transformers that are no language models, in small configurations."""
import torch
import transformers
from transformers import AutoConfig

from zoo.common import Example, entry

# Sizes that many configurations have; each takes those that it knows.
SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 120,
    "max_position_embeddings": 64, "image_size": 32, "patch_size": 8, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_labels": 5,
    "projection_dim": 16, "num_queries": 6, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "use_cache": False,
}
SPEECH = {"conv_dim": [16] * 3, "conv_stride": [5, 2, 2], "conv_kernel": [10, 3, 2], "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 8,
          "num_conv_pos_embedding_groups": 4, "mask_time_prob": 0.0, "apply_spec_augment": False}
SWIN = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4, "patch_size": 4}
STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "out_features": ["stage2", "stage3", "stage4"]}
SWIN_BACKBONE = {"model_type": "swin", "image_size": 64, "embed_dim": 16, "depths": [1, 1, 1, 1], "num_heads": [2, 2, 2, 2], "window_size": 4,
                 "out_features": ["stage1", "stage2", "stage3", "stage4"]}
DINO_BACKBONE = {"model_type": "dinov2", "image_size": 56, "patch_size": 14, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
                 "out_features": ["stage1", "stage2", "stage3", "stage4"], "reshape_hidden_states": False}


def known(config, sizes):
    """The sizes that a configuration has, under its names for them. Those that stand for lists of stages are left alone."""
    staged = any(hasattr(config, name) for name in ("depths", "depth", "block_sizes"))
    aliases = {} if staged else config.attribute_map
    own = lambda k: k not in config.attribute_map and hasattr(config, k) and not isinstance(getattr(type(config), k, None), property)
    return {k: v for k, v in sizes.items() if k in aliases or own(k)}


def configured(model_class, changes):
    """A model in a small configuration. A dictionary among the changes is a configuration inside of it."""
    config_class = model_class.config_class
    base = config_class()
    values = dict(known(base, SMALL))
    for key, value in changes.items():
        inner = getattr(base, key, None)
        if isinstance(value, dict) and "model_type" in value:
            value = dict(value)
            value = AutoConfig.for_model(value.pop("model_type"), **value)
        elif isinstance(value, dict) and hasattr(inner, "to_dict"):
            value = {**known(inner, SMALL), **value}
        values[key] = value
    torch.manual_seed(0)
    config = config_class(**values)
    config._attn_implementation = "eager" if changes.get("eager") else config._attn_implementation
    return model_class(config)


def pixels(size=32, channels=3):
    height, width = size if isinstance(size, tuple) else (size, size)
    return lambda batch: {"pixel_values": torch.randn(batch, channels, height, width)}


def text(length=12, **more):
    def inputs(batch):
        ids = torch.randint(3, 100, (batch, length))
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **{k: f(batch) for k, f in more.items()}}
    return inputs


def both(size=32, length=12):
    return lambda batch: {**text(length)(batch), **pixels(size)(batch)}


def sound(samples=800):
    return lambda batch: {"input_values": torch.randn(batch, samples)}


def features(frames, width, name="input_features"):
    return lambda batch: {name: torch.randn(batch, frames, width)}


def video(frames, size=32):
    return lambda batch: {"pixel_values": torch.randn(batch, frames, 3, size, size)}


def masked_pixels(size):
    return lambda batch: {**pixels(size)(batch), "pixel_mask": torch.ones(batch, size, size, dtype=torch.long)}


def model(class_name, inputs, changes=None, dynamic=True):
    def build():
        made = configured(getattr(transformers, class_name), changes or {})
        return Example(made, inputs, dynamic)
    entry("transformers", class_name, build)


TEXT_AND_VISION = {"text_config": {}, "vision_config": {}}

# Image classifiers and backbones.
model("ViTForImageClassification", pixels())
model("DeiTForImageClassification", pixels())
model("BeitForImageClassification", pixels(), {"use_relative_position_bias": True})
model("Dinov2ForImageClassification", pixels(48), {"image_size": 32})
model("Dinov2WithRegistersForImageClassification", pixels())
model("DINOv3ViTModel", pixels())
model("ConvNextV2ForImageClassification", pixels(64), STAGES)
model("CvtForImageClassification", pixels(64), {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 2, 3]})
model("EfficientNetForImageClassification", pixels(64), {"width_coefficient": 0.3, "depth_coefficient": 0.3, "hidden_dim": 384})
model("FocalNetForImageClassification", pixels(), {"embed_dim": 16, "depths": [1, 1], "focal_levels": [2, 2], "focal_windows": [3, 3], "hidden_sizes": [16, 32], "patch_size": 4})
model("HieraForImageClassification", pixels(64), {"image_size": [64, 64], "patch_size": [7, 7], "embed_dim": 16, "depths": [1, 1, 1], "num_heads": [1, 2, 4], "mask_unit_size": [4, 4], "query_stride": [2, 2], "num_query_pool": 2})
model("LevitForImageClassification", pixels(64), {"image_size": 64, "patch_size": 16, "hidden_sizes": [16, 24, 32], "num_attention_heads": [2, 2, 2], "key_dim": [8, 8, 8], "depths": [1, 1, 1]})
model("MobileNetV1ForImageClassification", pixels(64), {"depth_multiplier": 0.25})
model("MobileNetV2ForImageClassification", pixels(64), {"depth_multiplier": 0.35})
model("MobileViTForImageClassification", pixels(64), {"image_size": 64, "patch_size": 2, "hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 24, 32]})
model("PoolFormerForImageClassification", pixels(64), {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "patch_size": 16})
model("PvtV2ForImageClassification", pixels(64), {"image_size": 64, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]})
model("RegNetForImageClassification", pixels(64), {"embedding_size": 8, **STAGES, "groups_width": 8})
model("ResNetForImageClassification", pixels(64), {"embedding_size": 8, **STAGES})
model("SegformerForImageClassification", pixels(64), {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4]})
model("SwiftFormerForImageClassification", pixels(64), {"embed_dims": [8, 16, 24, 32], "depths": [1, 1, 1, 1]})
model("SwinForImageClassification", pixels(), SWIN)
model("Swinv2ForImageClassification", pixels(), SWIN)
model("BitForImageClassification", pixels(64), {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "num_groups": 4})
# Detectors.
DETR = {"backbone_config": {**RESNET, "out_features": ["stage4"]}, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
LEVELS = {"backbone_config": RESNET, "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
model("DetrForObjectDetection", masked_pixels(64), DETR)
model("ConditionalDetrForObjectDetection", masked_pixels(64), DETR)
model("DeformableDetrForObjectDetection", masked_pixels(64), {**LEVELS, "num_feature_levels": 3})
RT = {"backbone_config": {"model_type": "rt_detr_resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "layer_type": "basic", "out_features": ["stage2", "stage3", "stage4"]},
      "encoder_hidden_dim": 32, "encoder_in_channels": [16, 24, 32], "decoder_in_channels": [32, 32, 32], "feat_strides": [8, 16, 32], "num_queries": 10, "encoder_layers": 1, "decoder_layers": 2, "num_denoising": 0}
model("RTDetrForObjectDetection", pixels(64), RT)
model("RTDetrV2ForObjectDetection", pixels(64), RT)
model("YolosForObjectDetection", pixels(), {"image_size": [32, 32], "num_detection_tokens": 4, "use_mid_position_embeddings": False})
OWL = {"text_config": {"max_position_embeddings": 16}, "vision_config": {}, "projection_dim": 32}
model("OwlViTForObjectDetection", both(), OWL)
# Segmentation and depth.
model("SegformerForSemanticSegmentation", pixels(64), {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16})
model("UperNetForSemanticSegmentation", pixels(64), {"backbone_config": {**SWIN_BACKBONE}, "hidden_size": 16, "auxiliary_in_channels": 64, "auxiliary_channels": 16})
MASKS = {"backbone_config": SWIN_BACKBONE, "feature_size": 32, "mask_feature_size": 32, "hidden_dim": 32, "encoder_feedforward_dim": 64, "dim_feedforward": 64, "encoder_layers": 1, "decoder_layers": 2, "num_attention_heads": 4, "num_queries": 6}
model("Mask2FormerForUniversalSegmentation", pixels(64), MASKS)
model("MaskFormerForInstanceSegmentation", pixels(64), {"backbone_config": SWIN_BACKBONE, "fpn_feature_size": 32, "mask_feature_size": 32,
      "decoder_config": {"model_type": "detr", "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_queries": 6}})
model("DPTForDepthEstimation", pixels(32), {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 16, 24, 32], "fusion_hidden_size": 16})
model("DepthAnythingForDepthEstimation", pixels(56), {"backbone_config": DINO_BACKBONE, "reassemble_hidden_size": 32, "neck_hidden_sizes": [8, 16, 24, 32], "fusion_hidden_size": 16, "head_hidden_size": 8, "patch_size": 14})
model("GLPNForDepthEstimation", pixels(64), {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "decoder_hidden_size": 16})
SAM = {"vision_config": {"image_size": 64, "patch_size": 8, "window_size": 4, "global_attn_indexes": [1], "output_channels": 16, "mlp_dim": 64, "num_pos_feats": 8},
       "prompt_encoder_config": {"hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4}, "mask_decoder_config": {"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 4, "iou_head_hidden_dim": 16}}
model("SamModel", lambda batch: {**pixels(64)(batch), "input_points": torch.rand(batch, 1, 2, 2) * 60}, SAM)
model("CLIPSegForImageSegmentation", both(), {**TEXT_AND_VISION, "extract_layers": [0, 1], "reduce_dim": 16})
# Images with texts.
model("CLIPModel", both(), TEXT_AND_VISION)
model("SiglipModel", both(), TEXT_AND_VISION)


def patches(batch):
    shapes = torch.tensor([[4, 3], [2, 5], [3, 4]][:batch])
    return {**text()(batch), "pixel_values": torch.randn(batch, 16, 3 * 64), "spatial_shapes": shapes,
            "pixel_attention_mask": (torch.arange(16) < shapes.prod(1, keepdim=True)).long()}


model("Siglip2Model", patches, {"text_config": {}, "vision_config": {"num_patches": 16}})
model("AlignModel", both(64), {"text_config": {}, "vision_config": {"width_coefficient": 0.3, "depth_coefficient": 0.3, "hidden_dim": 320}, "projection_dim": 96})
model("BlipModel", both(), {"text_config": {"encoder_hidden_size": 32}, "vision_config": {}})
model("ViltModel", lambda batch: {**both()(batch), "pixel_mask": torch.ones(batch, 32, 32, dtype=torch.long)}, {"max_image_length": 16})
# Sound.
model("Wav2Vec2ForCTC", sound(), SPEECH)
model("HubertForCTC", sound(), SPEECH)
model("WavLMForCTC", sound(), SPEECH)
model("SEWForCTC", sound(1600), {**SPEECH, "squeeze_factor": 2})
model("Wav2Vec2BertForCTC", features(24, 160), {"feature_projection_input_dim": 160, "conv_depthwise_kernel_size": 7, "position_embeddings_type": "relative_key", "apply_spec_augment": False})
model("ASTForAudioClassification", features(64, 32, "input_values"), {"max_length": 64, "num_mel_bins": 32, "patch_size": 16})
model("WhisperForAudioClassification", lambda batch: {"input_features": torch.randn(batch, 16, 64)}, {"num_mel_bins": 16, "max_source_positions": 32, "classifier_proj_size": 16})
model("EncodecModel", lambda batch: {"input_values": torch.randn(batch, 1, 640)}, {"num_filters": 4, "hidden_size": 16, "codebook_size": 32, "codebook_dim": 16, "upsampling_ratios": [4, 2]}, dynamic=False)
model("DacModel", lambda batch: {"input_values": torch.randn(batch, 1, 640)}, {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "decoder_hidden_size": 32, "n_codebooks": 3, "codebook_size": 32, "upsampling_ratios": [4, 2]})
# Text encoders.
model("BertModel", text())
model("AlbertModel", text(), {"embedding_size": 16})
model("DebertaV2Model", text(), {"relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]})
model("FNetModel", lambda batch: {"input_ids": torch.randint(3, 100, (batch, 12))})
model("MPNetModel", text())
model("RoFormerModel", text(), {"embedding_size": 32})
model("ConvBertModel", text(), {"embedding_size": 32, "conv_kernel_size": 3})
model("FunnelModel", text(16), {"block_sizes": [1, 1], "num_decoder_layers": 1, "d_head": 8, "n_head": 4, "d_inner": 64})
model("NystromformerModel", text(16), {"num_landmarks": 4, "segment_means_seq_len": 16, "conv_kernel_size": 5})
model("LongformerModel", text(16), {"attention_window": 4})
model("EsmModel", text(), {"position_embedding_type": "rotary", "token_dropout": True, "mask_token_id": 4})
model("LayoutLMv3Model", lambda batch: {**text()(batch), "bbox": torch.randint(0, 50, (batch, 12, 4)).sort(-1).values, **pixels(32)(batch)}, {"input_size": 32, "patch_size": 8, "coordinate_size": 6, "shape_size": 4, "max_2d_position_embeddings": 64})
model("PerceiverModel", lambda batch: {"inputs": torch.randn(batch, 10, 16)}, {"d_model": 16, "num_latents": 6, "d_latents": 32, "num_blocks": 1, "num_self_attends_per_block": 2, "num_self_attention_heads": 4, "num_cross_attention_heads": 4})
# Video, time series, other images.
model("VideoMAEForVideoClassification", video(4), {"num_frames": 4, "tubelet_size": 2})
model("VivitForVideoClassification", video(4), {"num_frames": 4, "tubelet_size": [2, 8, 8]})
model("TimesformerForVideoClassification", video(4), {"num_frames": 4})
model("PatchTSTForPrediction", lambda batch: {"past_values": torch.randn(batch, 32, 2)}, {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8, "prediction_length": 4, "ffn_dim": 64})
model("PatchTSMixerForPrediction", lambda batch: {"past_values": torch.randn(batch, 32, 2)}, {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "patch_stride": 8, "prediction_length": 4, "num_layers": 2})
model("Swin2SRForImageSuperResolution", pixels(), {**SWIN, "patch_size": 1, "image_size": 32, "window_size": 8, "upscale": 2})
model("SuperPointForKeypointDetection", pixels(64), {"encoder_hidden_sizes": [8, 8, 16, 16], "decoder_hidden_size": 16, "descriptor_decoder_dim": 16}, dynamic=False)
model("VitsModel", lambda batch: {"input_ids": torch.randint(3, 30, (1, 8)), "attention_mask": torch.ones(1, 8, dtype=torch.long)}, {"hidden_size": 32, "ffn_dim": 64, "flow_size": 32, "spectrogram_bins": 17, "upsample_initial_channel": 32, "upsample_rates": [4, 2], "upsample_kernel_sizes": [8, 4], "prior_encoder_num_flows": 2, "posterior_encoder_num_wavenet_layers": 2, "duration_predictor_num_flows": 2}, dynamic=False)
