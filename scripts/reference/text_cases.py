"""Parts of the cases of text encoders and classifiers: sizes, a tokenizer, random weights, and the command line."""
import argparse
import pathlib
import shutil

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

TEXTS = ["A man is eating food.", "Fox", "The quick brown fox jumps over the dog.", "grüße aus köln", "A man eats a fox!", ""]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
COMMON = dict(max_position_embeddings=42, pad_token_id=1)
SIZES = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2)
ROTARY = dict(rope_type="default", rope_theta=100.0)
GROUPED = dict(num_key_value_heads=1, head_dim=8, rope_parameters=ROTARY)
WINDOWS = dict(full_attention=dict(rope_type="default", rope_theta=300.0), sliding_attention=ROTARY)


def tokenizer(folder, pairs=False):
    letters = sorted(set("".join(TEXTS).lower()) - {" "})
    pieces = [*letters, *("##" + letter for letter in letters), "man", "eat", "##ing", "the", "fox"]
    tok = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(SPECIAL + pieces)}, unk_token="<unk>"))
    tok.normalizer, tok.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    pair = "<s> $A </s> $B:1 </s>:1" if pairs else None
    tok.post_processor = processors.TemplateProcessing(single="<s> $A </s>", pair=pair, special_tokens=[("<s>", 0), ("</s>", 2)])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tok, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
                                                cls_token="<s>", sep_token="</s>", model_max_length=40)
    fast.save_pretrained(folder)
    return len(fast)


def randomize(model):
    """Weights under which every part of a model matters."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in model.state_dict().items():
        if not tensor.is_floating_point():
            continue
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.dim() == 1:
            noise = noise * 0.3 + ("norm" in name.lower() and "bias" not in name)
        elif "embedding" not in name and "relative" not in name:
            noise = noise * 1.6 / tensor.shape[-1] ** 0.5
        tensor.copy_(noise.half())


def case_folder(out, name):
    """The empty folder of a case, and the path of its checkpoint."""
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder, folder / "checkpoint"


def write_all(doc, cases, write):
    """Reads the folder for the cases from the command line, and writes each case there."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    out = parser.parse_args().out
    transformers.logging.set_verbosity_error()
    for case in cases:
        write(out, *case)
