"""Writes the tokenizers beside it, and expected.json with the ids that the packages of their formats give each text.

Needs the packages sentencepiece, tiktoken and mistral-common.
"""

import base64
import json
from pathlib import Path

import sentencepiece
import tiktoken
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tiktoken._educational import SimpleBytePairEncoding

HERE = Path(__file__).parent
TRAINING = """The river runs past the old mill and the mill turns slowly. Nobody runs here any more: the miller is old, the stones are still.
In 1987 there were 12 mills along the river; in 2024 there are 3. Ünder the bridge, écoles and cafés; 世界 and Straße.
    fn main() { println!("{}", 1 + 2); }
They'll say it isn't so, but we've seen the old river's runs. """
TEXTS = [
    "The old mill runs.", "  two spaces,\tand a tab\n\n\nlines ", "I'll say 12345 isn't 1987!", "Straße 世界 😀 é", "", " ", "fn f() { x += 1; }", "a\r\nb",
]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def ranks(pattern):
    """Ranks of all bytes, in an order of their own, and of pairs that training merges."""
    trained = SimpleBytePairEncoding.train(TRAINING * 2, 320, pattern).mergeable_ranks
    return [token for token, _ in sorted(trained.items(), key=lambda entry: entry[1])]


def sentence_piece(name, **options):
    file = HERE / f"{name}.model"
    (HERE / "training.txt").write_text(TRAINING)
    sentencepiece.SentencePieceTrainer.train(
        input=str(HERE / "training.txt"), model_prefix=str(HERE / name), model_type="bpe", vocab_size=360, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, character_coverage=0.98, minloglevel=2, **options,
    )
    (HERE / "training.txt").unlink()
    (HERE / f"{name}.vocab").unlink()
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    return [model.encode(text) for text in TEXTS]


def llama3():
    tokens = ranks(LLAMA3)
    (HERE / "llama3.model").write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    model = tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks={t: i for i, t in enumerate(tokens)}, special_tokens={})
    return [model.encode_ordinary(text) for text in TEXTS]


def tekken():
    tokens = ranks(TEKKEN)
    # The reader wants every byte first.
    tokens = [bytes([b]) for b in range(256)] + [token for token in tokens if len(token) > 1]
    listed = [dict(rank=i, token_bytes=base64.b64encode(t).decode(), token_str=t.decode(errors="ignore") or None) for i, t in enumerate(tokens)]
    config = dict(pattern=TEKKEN, num_vocab_tokens=len(tokens), default_vocab_size=len(tokens) + 30, default_num_special_tokens=30, version="v3")
    (HERE / "tekken.json").write_text(json.dumps(dict(config=config, vocab=listed)))
    model = Tekkenizer.from_file(HERE / "tekken.json")
    return [model.encode(text, bos=False, eos=False) for text in TEXTS]


expected = {
    "prefix.model": sentence_piece("prefix"),
    "plain.model": sentence_piece("plain", add_dummy_prefix=False, user_defined_symbols=["<start_of_turn>", "\n\n"]),
    "llama3.model": llama3(),
    "tekken.json": tekken(),
}
(HERE / "expected.json").write_text(json.dumps(dict(texts=TEXTS, ids=expected), ensure_ascii=False))
