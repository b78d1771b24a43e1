"""Writes vocabulary.json beside it: tiny vocabularies in the form of early releases, and the ids that transformers gives texts.

Needs the package transformers, 5.24 or later.
"""

import json
import tempfile
from pathlib import Path

from transformers import AutoTokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

TEXTS = ["the fox jumps", " the  fox.\n", "Grüße, KÖLN!", "a<mask>b", "x </s> the", "<|endoftext|>the [MASK] fox"]
BYTES = [letter for _, letter in sorted(bytes_to_unicode().items())]
SPACE = bytes_to_unicode()[32]
MERGES = ["t h", "th e", f"{SPACE} t", f"{SPACE}t h", f"{SPACE}th e", "f o", "fo x", f"{SPACE} fox"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
WORDS = ["the", "fox", "jump", "##s", "a", "b", "x", "##b", "gru", "##sse", "##ß", "##e", "koln", ",", "!", ".", "<", ">", "/", "mask", "Köln", "grußse",
         "KÖLN", "|", "s"]


def pairs(first=(), last=()):
    """`vocab.json` and `merges.txt`."""
    pieces = [*first, *BYTES, *(merge.replace(" ", "") for merge in MERGES), *last]
    return {"vocab.json": {piece: i for i, piece in enumerate(pieces)}, "merges.txt": "\n".join(["#version: 0.2", *MERGES, ""])}


def words(first, last=(), end="\n"):
    """`vocab.txt`."""
    return {"vocab.txt": "".join(piece + end for piece in [*first, *WORDS, *last])}


def family(name, **tokenizer):
    configs = {"config.json": {"model_type": name}}
    return configs | ({"tokenizer_config.json": tokenizer} if tokenizer else {})


def token(text):
    return dict(content=text, lstrip=False, normalized=True, rstrip=False, single_word=False, __type="AddedToken")


OPT = dict(bos_token=token("</s>"), eos_token=token("</s>"), unk_token=token("</s>"), pad_token=token("<pad>"))
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
GPT2 = pairs(last=["<|endoftext|>"])
CASES = {
    "gpt2": GPT2 | family("gpt2"),
    "gpt2-added": GPT2 | family("gpt2", tokenizer_class="GPT2Tokenizer") | {
        "added_tokens.json": {"<|user|>": len(GPT2["vocab.json"])}, "special_tokens_map.json": {"pad_token": "<|user|>"}},
    "opt": pairs(SPECIAL) | family("opt", add_prefix_space=False, add_bos_token=True, tokenizer_class="GPT2Tokenizer", **OPT)
    | {"special_tokens_map.json": OPT},
    "roberta": pairs(SPECIAL, ["<mask>"]) | family("roberta", model_max_length=40),
    "bert": words(BERT) | family("bert"),
    "bert-cased": words(BERT, end="\r\n") | family("bert", do_lower_case=False, tokenizer_class="BertTokenizer"),
    "mpnet": words(["<s>", "<pad>", "</s>", "[UNK]"], ["<mask>"]) | family("mpnet", tokenizer_class="MPNetTokenizer", do_lower_case=True),
}


def case(name, files):
    files = {file: content if isinstance(content, str) else json.dumps(content) for file, content in files.items()}
    with tempfile.TemporaryDirectory() as folder:
        for file, content in files.items():
            Path(folder, file).write_text(content, newline="")
        tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer(text)["input_ids"] for text in TEXTS]
    return dict(name=name, files=files, ids=ids, pair=tokenizer("the", "fox")["input_ids"], eos=tokenizer.eos_token)


if __name__ == "__main__":
    cases = [case(name, files) for name, files in CASES.items()]
    Path(__file__).with_name("vocabulary.json").write_text(json.dumps(dict(texts=TEXTS, cases=cases)) + "\n")
