#!/usr/bin/env python3
"""Writes tiny random classifiers and rerankers as case folders, with the scores that transformers gives for pairs of texts.

    classifier_cases.py OUT

`flambeau conformance OUT --from checkpoint` runs them. Needs torch, transformers and tokenizers.
"""
import json
import pathlib

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken

from checkpoint_cases import write_tensor
from text_cases import COMMON, GROUPED, SIZES, WINDOWS, case_folder, randomize, tokenizer, write_all

PAIRS = [("Fox", "The quick brown fox jumps over the dog."), ("A man is eating food.", "Fox"), ("eating", "the"), ("the man", "A man eats a fox!")]
LABELS = {0: "no", 1: "maybe", 2: "yes"}
# Name, class of the config and of the model, sizes, and labels.
CASES = [
    ("bert", "Bert", "BertForSequenceClassification", SIZES | dict(type_vocab_size=2), 1),
    ("distilbert", "DistilBert", "DistilBertForSequenceClassification", dict(dim=16, hidden_dim=24, n_layers=2, n_heads=2), 3),
    ("xlm-roberta", "XLMRoberta", "XLMRobertaForSequenceClassification", SIZES | dict(type_vocab_size=1, layer_norm_eps=1e-5), 1),
    ("xlm-roberta-joined", "XLMRoberta", "XLMRobertaForSequenceClassification", SIZES | dict(type_vocab_size=1, layer_norm_eps=1e-5), 1),
    ("modernbert", "ModernBert", "ModernBertForSequenceClassification",
     SIZES | dict(num_hidden_layers=4, local_attention=8, rope_parameters=WINDOWS, classifier_pooling="mean"), 2),
    ("gte", "Gte", "GteForSequenceClassification", SIZES, 1),
    ("eurobert", "EuroBert", "EuroBertForSequenceClassification", SIZES | GROUPED, 3),
    ("qwen3", "Qwen3", "Qwen3ForSequenceClassification", SIZES | GROUPED, 1),
    ("answers", "Qwen3", "Qwen3ForCausalLM", SIZES | GROUPED | dict(max_position_embeddings=512), 0),
]
# The conversation with which Qwen3-Reranker was trained, as its model card gives it.
TEMPLATE = pathlib.Path(__file__).parents[2] / "crates/zoo/src/family/rerank_template.txt"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"


def conversation(tok, query, document):
    """Token ids of a pair within the conversation."""
    start, rest = TEMPLATE.read_text().split("{instruction}")
    body, end = rest.split("{document}")
    plain = [INSTRUCTION + body.replace("{query}", query) + document]
    return [i for part in [start, *plain, end] for i in tok(part, add_special_tokens=False)["input_ids"]]


def as_answers(folder, tok):
    """Adds the modules by which sentence-transformers reads scores from a language model."""
    module = "sentence_transformers.cross_encoder.modules.logit_score.LogitScore"
    list_of = [dict(idx=0, name="0", path="", type="sentence_transformers.base.modules.transformer.Transformer"),
               dict(idx=1, name="1", path="1_LogitScore", type=module)]
    (folder / "modules.json").write_text(json.dumps(list_of) + "\n")
    (folder / "1_LogitScore").mkdir()
    ids = dict(true_token_id=tok.convert_tokens_to_ids("yes"), false_token_id=tok.convert_tokens_to_ids("no"))
    (folder / "1_LogitScore/config.json").write_text(json.dumps(ids) + "\n")
    return ids


def as_jina(checkpoint):
    """Rewrites XLM-RoBERTa's weights under the names of Jina's implementation, which joins the projections."""
    names = {"attention.output.dense": "mixer.out_proj", "attention.output.LayerNorm": "norm1", "intermediate.dense": "mlp.fc1", "output.dense": "mlp.fc2",
             "output.LayerNorm": "norm2", "encoder.layer.": "encoder.layers.", "embeddings.LayerNorm": "emb_ln"}
    weights, stored = load_file(checkpoint / "model.safetensors"), {}
    for name, tensor in weights.items():
        if ".query." in name:
            tensor = torch.cat([weights[name.replace("query", part)] for part in ["query", "key", "value"]])
            name = name.replace("attention.self.query", "mixer.Wqkv")
        for theirs, jinas in names.items():
            name = name.replace(theirs, jinas)
        if "attention.self" not in name:
            stored[name] = tensor
    save_file(stored, checkpoint / "model.safetensors", dict(format="pt"))
    path = checkpoint / "config.json"
    config = json.loads(path.read_text()) | dict(position_embedding_type="absolute", use_flash_attn=True, output_past=True)
    path.write_text(json.dumps(config) + "\n")


@torch.no_grad()
def write(out, name, family, kind, sizes, labels):
    folder, checkpoint = case_folder(out, f"classifier-{name}")
    tokenizer(checkpoint, pairs=True)
    tok = transformers.AutoTokenizer.from_pretrained(checkpoint)
    if not labels:
        tok.add_tokens([AddedToken(token, special=True) for token in ["<|im_start|>", "<|im_end|>"]] + ["yes", "no"])
        tok.model_max_length = 512
        tok.save_pretrained(checkpoint)
    id2label = {i: LABELS[i] for i in range(labels)} if labels > 1 else {0: "LABEL_0"}
    named = dict(num_labels=labels, id2label=id2label, label2id={v: k for k, v in id2label.items()}) if labels else {}
    config = getattr(transformers, f"{family}Config")(**COMMON | sizes | named | dict(vocab_size=len(tok)))
    model = getattr(transformers, kind)(config).eval()
    randomize(model)
    model.save_pretrained(checkpoint)
    if name == "xlm-roberta-joined":
        as_jina(checkpoint)
    answers = as_answers(checkpoint, tok) if not labels else None
    ids, types, scores = [], [], []
    for query, document in PAIRS:
        encoded = tok(query, document, return_token_type_ids=True) if labels else dict(input_ids=conversation(tok, query, document))
        ids.append(encoded["input_ids"])
        types.append(encoded.get("token_type_ids", []))
        inputs = dict(input_ids=torch.tensor([ids[-1]]))
        if family == "Bert":
            inputs["token_type_ids"] = torch.tensor([types[-1]])
        logits = model(**inputs).logits[0]
        scores.append(logits if labels else logits[-1, answers["true_token_id"]][None] - logits[-1, answers["false_token_id"]])
    scores = torch.stack(scores)
    case = dict(kind="classifier", family=config.model_type, rtol=1e-4, atol=2e-5 * max(1.0, float(scores.abs().max())), pairs=PAIRS, ids=ids,
                types=types, labels=list(id2label.values()) if labels else ["yes"])
    (folder / "case.json").write_text(json.dumps(case) + "\n")
    write_tensor(folder / "scores.bin", scores)
    print(folder.name, "tokens", [len(one) for one in ids], "scores", [round(float(x), 4) for x in scores[0]])


if __name__ == "__main__":
    write_all(__doc__, CASES, write)
