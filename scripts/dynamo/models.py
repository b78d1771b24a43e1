"""Models of torchvision, timm and transformers with random weights, each with two sets of inputs.

Each entry of `MODELS` gives a module, and calls of it as positional and keyword arguments. The second call has other sizes
where the model allows it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

#: Positional and keyword arguments.
Call = tuple[tuple[Any, ...], dict[str, Any]]
Build = Callable[[], tuple[torch.nn.Module, list[Call]]]


def image(batch: int, side: int = 224) -> Call:
    return (torch.rand(batch, 3, side, side),), {}


def vision(name: str, side: int = 224, **options: Any) -> Build:
    def build() -> tuple[torch.nn.Module, list[Call]]:
        import torchvision

        return torchvision.models.get_model(name, weights=None, **options), [image(1, side), image(2, side)]

    return build


def segmentation() -> tuple[torch.nn.Module, list[Call]]:
    """Its outputs are a dictionary, and its sizes follow the image."""
    import torchvision

    model = torchvision.models.get_model("lraspp_mobilenet_v3_large", weights=None, weights_backbone=None)
    return model, [image(1, 224), image(1, 288)]


def detection() -> tuple[torch.nn.Module, list[Call]]:
    """It takes a list of images, and has data-dependent sizes in Python code."""
    import torchvision

    model = torchvision.models.get_model("ssdlite320_mobilenet_v3_large", weights=None, weights_backbone=None, num_classes=21)
    return model, [(([torch.rand(3, 320, 320)],), {}), (([torch.rand(3, 256, 320)],), {})]


def video() -> tuple[torch.nn.Module, list[Call]]:
    import torchvision

    model = torchvision.models.get_model("r2plus1d_18", weights=None)
    return model, [((torch.rand(1, 3, 4, 64, 64),), {}), ((torch.rand(1, 3, 8, 64, 64),), {})]


def timm_model(name: str, side: int = 224) -> Build:
    def build() -> tuple[torch.nn.Module, list[Call]]:
        import timm

        return timm.create_model(name, pretrained=False), [image(1, side), image(2, side)]

    return build


def ids(batch: int, length: int, vocabulary: int = 1000) -> torch.Tensor:
    return torch.randint(3, vocabulary, (batch, length))


def padded(tokens: torch.Tensor, count: int) -> torch.Tensor:
    """A mask whose last rows end `count` tokens earlier."""
    mask = torch.ones_like(tokens)
    mask[-1, tokens.shape[1] - count :] = 0
    return mask


def text(auto: str, config: str, *, mask: bool = True, decoder: bool = False, **sizes: Any) -> Build:
    """A text model of a configuration. `decoder` adds the tokens of an answer."""

    def build() -> tuple[torch.nn.Module, list[Call]]:
        import transformers

        model = getattr(transformers, auto)(getattr(transformers, config)(**sizes))
        calls = []
        for batch, length in ((2, 32), (2, 45)):
            tokens = ids(batch, length)
            given = {"input_ids": tokens}
            if mask:
                given["attention_mask"] = padded(tokens, 5)
            if decoder:
                given["decoder_input_ids"] = ids(batch, length // 2)
            calls.append(((), given))
        return model, calls

    return build


class Continued(torch.nn.Module):
    """A prompt and two further tokens by a cache, as in generation."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> list[torch.Tensor]:
        done = self.model(input_ids=tokens[:, :-2], use_cache=True)
        logits = [done.logits]
        for i in (-2, -1):
            done = self.model(input_ids=tokens[:, i : tokens.shape[1] + i + 1], past_key_values=done.past_key_values, use_cache=True)
            logits.append(done.logits)
        return logits


def continued() -> tuple[torch.nn.Module, list[Call]]:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=2
    )
    return Continued(transformers.LlamaForCausalLM(config)), [((ids(1, 32),), {}), ((ids(1, 45),), {})]


def images_and_text() -> tuple[torch.nn.Module, list[Call]]:
    import transformers

    tower = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = transformers.CLIPConfig(
        text_config=dict(tower, vocab_size=1000, bos_token_id=1, eos_token_id=2), vision_config=dict(tower, patch_size=32)
    )
    calls = []
    for batch, length in ((2, 16), (3, 20)):
        given = {"input_ids": ids(batch, length), "attention_mask": torch.ones(batch, length, dtype=torch.long)}
        calls.append(((), dict(given, pixel_values=torch.rand(2, 3, 224, 224))))
    return transformers.CLIPModel(config), calls


def speech() -> tuple[torch.nn.Module, list[Call]]:
    import transformers

    config = transformers.Wav2Vec2Config(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, vocab_size=40)
    return transformers.Wav2Vec2ForCTC(config), [((torch.randn(1, 8000),), {}), ((torch.randn(1, 12000),), {})]


def transcription() -> tuple[torch.nn.Module, list[Call]]:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=1000, d_model=256, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=512, decoder_ffn_dim=512, max_source_positions=200, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1,
    )
    calls = [((), {"input_features": torch.randn(1, 80, 400), "decoder_input_ids": ids(1, n)}) for n in (8, 13)]
    return transformers.WhisperForConditionalGeneration(config), calls


def patches(auto: str, config: str, **sizes: Any) -> Build:
    """A vision model of transformers, called by keyword."""

    def build() -> tuple[torch.nn.Module, list[Call]]:
        import transformers

        model = getattr(transformers, auto)(getattr(transformers, config)(**sizes))
        return model, [((), {"pixel_values": torch.rand(batch, 3, 224, 224)}) for batch in (1, 2)]

    return build


ENCODER: dict[str, Any] = {"vocab_size": 1000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 1024}
DECODER: dict[str, Any] = dict(ENCODER, num_key_value_heads=2, head_dim=64)

MODELS: dict[str, Build] = {
    "torchvision/resnet18": vision("resnet18"),
    "torchvision/mobilenet_v3_small": vision("mobilenet_v3_small"),
    "torchvision/efficientnet_b0": vision("efficientnet_b0"),
    "torchvision/convnext_tiny": vision("convnext_tiny"),
    "torchvision/densenet121": vision("densenet121"),
    "torchvision/googlenet": vision("googlenet", init_weights=True),
    "torchvision/shufflenet_v2_x1_0": vision("shufflenet_v2_x1_0"),
    "torchvision/regnet_y_400mf": vision("regnet_y_400mf"),
    "torchvision/swin_t": vision("swin_t"),
    "torchvision/vit_b_16": vision("vit_b_16"),
    "torchvision/lraspp_mobilenet_v3_large": segmentation,
    "torchvision/ssdlite320_mobilenet_v3_large": detection,
    "torchvision/r2plus1d_18": video,
    "timm/mobilenetv4_conv_small": timm_model("mobilenetv4_conv_small"),
    "timm/efficientformerv2_s0": timm_model("efficientformerv2_s0"),
    "timm/vit_tiny_patch16_224": timm_model("vit_tiny_patch16_224"),
    "timm/mixer_s16_224": timm_model("mixer_s16_224"),
    "timm/poolformer_s12": timm_model("poolformer_s12"),
    "timm/levit_128s": timm_model("levit_128s"),
    "timm/ghostnet_100": timm_model("ghostnet_100"),
    "timm/repvgg_a0": timm_model("repvgg_a0"),
    "timm/edgenext_xx_small": timm_model("edgenext_xx_small"),
    "timm/mobilevit_xxs": timm_model("mobilevit_xxs", 256),
    "timm/maxvit_rmlp_pico_rw_256": timm_model("maxvit_rmlp_pico_rw_256", 256),
    "transformers/bert": text("BertModel", "BertConfig", **ENCODER),
    "transformers/distilbert": text("DistilBertForMaskedLM", "DistilBertConfig", vocab_size=1000, dim=256, n_layers=4, n_heads=4, hidden_dim=1024),
    "transformers/deberta-v2": text(
        "DebertaV2ForSequenceClassification", "DebertaV2Config", **ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=64
    ),
    "transformers/gpt2": text("GPT2LMHeadModel", "GPT2Config", vocab_size=1000, n_embd=256, n_layer=4, n_head=4),
    "transformers/llama": text("LlamaForCausalLM", "LlamaConfig", **DECODER),
    "transformers/llama, with a cache": continued,
    "transformers/qwen3": text("Qwen3ForCausalLM", "Qwen3Config", **DECODER),
    "transformers/gemma2": text("Gemma2ForCausalLM", "Gemma2Config", **DECODER, sliding_window=16),
    "transformers/t5": text("T5ForConditionalGeneration", "T5Config", decoder=True, vocab_size=1000, d_model=256, d_ff=512, num_layers=3, num_heads=4, d_kv=64),
    "transformers/bart": text(
        "BartForConditionalGeneration", "BartConfig", decoder=True, vocab_size=1000, d_model=256, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512,
    ),
    "transformers/mamba": text("MambaForCausalLM", "MambaConfig", mask=False, use_cache=False, vocab_size=1000, hidden_size=128, num_hidden_layers=2),
    "transformers/clip": images_and_text,
    "transformers/vit": patches("ViTForImageClassification", "ViTConfig", hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512),
    "transformers/segformer": patches("SegformerForSemanticSegmentation", "SegformerConfig"),
    "transformers/wav2vec2": speech,
    "transformers/whisper": transcription,
}


def build(name: str) -> tuple[torch.nn.Module, list[Call]]:
    """A model in evaluation mode, and its calls. The weights and inputs are the same in every process."""
    torch.manual_seed(0)
    with contextlib.suppress(AttributeError):
        torch.backends.mkldnn.deterministic = True
    model, calls = MODELS[name]()
    return model.eval(), calls
