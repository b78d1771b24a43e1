"""Writes a Parakeet as NeMo does: a tar archive of a config, pickled weights and a SentencePiece model."""
import io
import json
import re
import struct
import tarfile

import torch

MODULES = [
    (r"^encoder\.subsampling\.layers\.", "encoder.pre_encode.conv."), (r"^encoder\.subsampling\.linear\.", "encoder.pre_encode.out."),
    (r"\.([qkv])_proj\.", r".linear_\1."), (r"\.o_proj\.", ".linear_out."), (r"\.relative_k_proj\.", ".linear_pos."),
    (r"\.bias_([uv])$", r".pos_bias_\1"), (r"\.conv\.norm\.", ".conv.batch_norm."),
    (r"^decoder\.embedding\.", "decoder.prediction.embed."), (r"^decoder\.lstm\.", "decoder.prediction.dec_rnn.lstm."),
    (r"^encoder_projector\.", "joint.enc."), (r"^decoder\.decoder_projector\.", "joint.pred."), (r"^joint\.head\.", "joint.joint_net.2."),
    (r"^ctc_head\.", "decoder.decoder_layers.0."),
]


def name_of(published):
    for pattern, name in MODULES:
        published = re.sub(pattern, name, published)
    return published


def config(model, pieces):
    """What model_config.yaml says; JSON is YAML too, but for the indentation that NeMo writes."""
    c, e = model.config, model.config.encoder_config
    out = dict(
        sample_rate=16000,
        preprocessor=dict(sample_rate=16000, normalize="per_feature", window_size=0.025, window_stride=0.01, window="hann", features=e.num_mel_bins,
                          n_fft=512, frame_splicing=1, dither=1e-05, pad_to=0),
        encoder=dict(feat_in=e.num_mel_bins, feat_out=-1, n_layers=e.num_hidden_layers, d_model=e.hidden_size, use_bias=e.attention_bias,
                     subsampling="dw_striding", subsampling_factor=8, subsampling_conv_channels=e.subsampling_conv_channels,
                     causal_downsampling=False, ff_expansion_factor=e.intermediate_size // e.hidden_size, self_attention_model="rel_pos",
                     n_heads=e.num_attention_heads, att_context_size=[-1, -1], att_context_style="regular", xscaling=e.scale_input,
                     untie_biases=True, pos_emb_max_len=5000, conv_kernel_size=e.conv_kernel_size, conv_norm_type="batch_norm",
                     conv_context_size=None, dropout=0.1),
        decoder=dict(normalization_mode=None, blank_as_pad=True, vocab_size=len(pieces),
                     prednet=dict(pred_hidden=c.decoder_hidden_size, pred_rnn_layers=c.num_decoder_layers, t_max=None, dropout=0.2)),
        joint=dict(num_classes=len(pieces), num_extra_outputs=len(c.durations), vocabulary=pieces,
                   jointnet=dict(joint_hidden=c.decoder_hidden_size, activation="relu", dropout=0.2)),
        decoding=dict(strategy="greedy_batch", model_type="tdt", durations=c.durations, greedy=dict(max_symbols=c.max_symbols_per_step)),
        target="nemo.collections.asr.models.rnnt_bpe_models.EncDecRNNTBPEModel")
    return "\n".join(yaml(out, 0)) + "\n"


def yaml(value, depth):
    space = "  " * depth
    for key, part in value.items():
        if isinstance(part, dict):
            yield f"{space}{key}:"
            yield from yaml(part, depth + 1)
        elif isinstance(part, list):
            yield f"{space}{key}:"
            yield from (f"{space}- {json.dumps(item, ensure_ascii=False)}" for item in part)
        else:
            yield f"{space}{key}: {json.dumps(part)}"


def sentence_piece(pieces):
    """A ModelProto: pieces with scores and kinds, a trainer's and a normalizer's settings."""
    varint = lambda n: bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)
    field = lambda number, value: varint(number << 3 | 2) + varint(len(value)) + value
    kind = lambda piece: 2 if piece == "<unk>" else 3 if piece == "<pad>" else 1
    piece = lambda i, text: field(1, text.encode()) + b"\x15" + struct.pack("<f", -float(i)) + b"\x18" + varint(kind(text))
    trainer = b"\x18\x02" + b"".join(varint(number << 3) + varint(id & (1 << 64) - 1) for number, id in ((40, 0), (41, -1), (42, -1), (43, 2)))
    normalizer = field(1, b"nmt_nfkc") + field(2, b"\0\0\0\0") + b"\x18\x01\x20\x01"
    return b"".join(field(1, piece(i, text)) for i, text in enumerate(pieces)) + field(2, trainer) + field(3, normalizer)


def write(path, model, pieces):
    weights = io.BytesIO()
    state = model.state_dict()
    renamed = type(state)((name_of(name), tensor) for name, tensor in state.items())
    # NeMo's checkpoints carry versions of modules, and the features' tables.
    renamed._metadata = getattr(state, "_metadata", {})
    renamed["preprocessor.featurizer.window"] = torch.hann_window(400, periodic=False)
    torch.save(renamed, weights)
    with tarfile.open(path, "w") as archive:
        for name, content in (("model_config.yaml", config(model, pieces).encode()), ("model_weights.ckpt", weights.getvalue()),
                              ("0123_tokenizer.model", sentence_piece(pieces))):
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
