#!/usr/bin/env python3
"""Writes tiny random classifiers of tokens as case folders, with the scores of transformers and the entities of its pipeline.

    tagger_cases.py OUT

`flambeau conformance OUT --from checkpoint` runs them. Needs torch, transformers and tokenizers.
"""
import json

import torch
import transformers

from checkpoint_cases import write_tensor
from text_cases import COMMON, GROUPED, SIZES, TEXTS, WINDOWS, case_folder, randomize, tokenizer, write_all

LABELS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "MISC"]
# Name, class of the config and of the model, and sizes.
CASES = [
    ("bert", "Bert", "BertForTokenClassification", SIZES),
    ("distilbert", "DistilBert", "DistilBertForTokenClassification", dict(dim=16, hidden_dim=24, n_layers=2, n_heads=2)),
    ("xlm-roberta", "XLMRoberta", "XLMRobertaForTokenClassification", SIZES | dict(type_vocab_size=1, layer_norm_eps=1e-5)),
    ("modernbert", "ModernBert", "ModernBertForTokenClassification",
     SIZES | dict(num_hidden_layers=4, local_attention=8, rope_parameters=WINDOWS)),
    ("eurobert", "EuroBert", "EuroBertForTokenClassification", SIZES | GROUPED),
    ("qwen3", "Qwen3", "Qwen3ForTokenClassification", SIZES | GROUPED),
]


@torch.no_grad()
def write(out, name, family, kind, sizes):
    folder, checkpoint = case_folder(out, f"tagger-{name}")
    checkpoint.mkdir()
    tokenizer(checkpoint)
    tok = transformers.AutoTokenizer.from_pretrained(checkpoint)
    id2label = dict(enumerate(LABELS))
    named = dict(num_labels=len(LABELS), id2label=id2label, label2id={label: i for i, label in id2label.items()})
    config = getattr(transformers, f"{family}Config")(**COMMON | sizes | named | dict(vocab_size=len(tok)))
    model = getattr(transformers, kind)(config).eval()
    randomize(model)
    model.save_pretrained(checkpoint)
    texts = [text for text in TEXTS if text]
    ids = [tok(text)["input_ids"] for text in texts]
    scores = torch.cat([model(input_ids=torch.tensor([one])).logits[0] for one in ids])
    pipeline = transformers.pipeline("token-classification", model=model, tokenizer=tok, aggregation_strategy="simple", device="cpu")
    keys = ["entity_group", "word", "start", "end"]
    entities = [[{key: entity[key] for key in keys} | dict(score=float(entity["score"])) for entity in pipeline(text)] for text in texts]
    case = dict(kind="tagger", family=config.model_type, rtol=1e-4, atol=2e-5 * max(1.0, float(scores.abs().max())), texts=texts, ids=ids,
                labels=LABELS, entities=entities)
    (folder / "case.json").write_text(json.dumps(case) + "\n")
    write_tensor(folder / "scores.bin", scores)
    print(folder.name, "entities", [[(entity["entity_group"], entity["word"]) for entity in some] for some in entities][:2])


if __name__ == "__main__":
    write_all(__doc__, CASES, write)
