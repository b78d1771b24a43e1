"""Language models and text encoders of a few kilobytes."""

import asyncio
import json
import shutil
import struct
import threading

import numpy as np
import pytest
from cases import CHECKPOINTS, DATA, facts, read

import flambeau

PROMPT = "the cat sat on"


def test_text_is_generated_at_once_and_piece_by_piece(tiny_llama):
    text = tiny_llama.generate(PROMPT, max_new_tokens=8, ignore_eos=True)
    assert isinstance(text, str) and text
    assert (text.finish_reason, text.generated_tokens, len(text.ids)) == ("length", 8, 8)
    stream = tiny_llama.generate(PROMPT, max_new_tokens=8, ignore_eos=True, stream=True)
    pieces = list(stream)
    assert len(pieces) > 1 and "".join(pieces) == text == stream.text()


def test_tokens_are_a_prompt_too(tiny_llama):
    ids = tiny_llama.tokenize(PROMPT)
    assert tiny_llama.detokenize(ids).strip() == PROMPT
    assert tiny_llama.generate(ids, max_new_tokens=4) == tiny_llama.generate(PROMPT, max_new_tokens=4)


def test_a_seed_fixes_what_is_drawn(tiny_llama):
    def draw(seed):
        return tiny_llama.generate(PROMPT, max_new_tokens=16, temperature=1.0, seed=seed, ignore_eos=True)

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(5)}) > 1


def test_stop_texts_end_the_answer(tiny_llama):
    text = tiny_llama.generate(PROMPT, max_new_tokens=8, ignore_eos=True)
    word = text.split()[1]
    stopped = tiny_llama.generate(PROMPT, max_new_tokens=8, ignore_eos=True, stop=word)
    assert word not in stopped and text.startswith(stopped) and stopped.finish_reason == "stop"


def test_conversations_go_through_the_template(tiny_llama):
    messages = [{"role": "user", "content": "where is the cat ?"}]
    assert tiny_llama.apply_chat_template(messages) == "user : where is the cat ? assistant :"
    assert tiny_llama.apply_chat_template("where is the cat ?") == "user : where is the cat ? assistant :"
    answer = tiny_llama.chat(messages, max_new_tokens=4, ignore_eos=True)
    assert answer == tiny_llama.generate("user : where is the cat ? assistant :", max_new_tokens=4, ignore_eos=True)


def test_an_earlier_conversation_is_not_computed_again(tiny_llama):
    ids = tiny_llama.tokenize("the dog sat on the mat and the cat sat on")
    first = tiny_llama.generate(ids, max_new_tokens=2, ignore_eos=True)
    again = tiny_llama.generate(ids, max_new_tokens=2, ignore_eos=True)
    assert again == first and again.prompt_tokens < first.prompt_tokens


def test_async_iteration_gives_the_same(tiny_llama):
    async def collect():
        return [piece async for piece in tiny_llama.chat("the cat", max_new_tokens=6, ignore_eos=True, stream=True)]

    assert "".join(asyncio.run(collect())) == tiny_llama.chat("the cat", max_new_tokens=6, ignore_eos=True)


def test_a_dropped_stream_leaves_the_model_usable(tiny_llama):
    expected = tiny_llama.generate(PROMPT, max_new_tokens=8, ignore_eos=True)
    for _ in range(3):
        stream = tiny_llama.generate(PROMPT, max_new_tokens=30, ignore_eos=True, stream=True)
        next(stream)
        del stream
    stream = tiny_llama.generate(PROMPT, max_new_tokens=30, ignore_eos=True, stream=True)
    next(stream)
    stream.cancel()
    assert stream.text().finish_reason == "cancelled" and list(stream) == []
    assert "cancelled" in repr(stream)
    assert tiny_llama.generate(PROMPT, max_new_tokens=8, ignore_eos=True) == expected


def test_streams_run_side_by_side(tiny_llama):
    expected = tiny_llama.generate(PROMPT, max_new_tokens=12, ignore_eos=True)
    results = []

    def work():
        results.append(tiny_llama.generate(PROMPT, max_new_tokens=12, ignore_eos=True))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 8


def test_wrong_options_are_named(tiny_llama):
    with pytest.raises(TypeError, match="no option max_tokens"):
        tiny_llama.generate(PROMPT, max_tokens=3)
    with pytest.raises(flambeau.InputError, match="temperature"):
        tiny_llama.generate(PROMPT, temperature=-1.0)
    with pytest.raises(flambeau.InputError):
        tiny_llama.generate("")
    with pytest.raises(flambeau.InputError, match="needs a text encoder"):
        tiny_llama.embed("text")
    with pytest.raises(flambeau.LoadError, match="--qlinear"):
        flambeau.LLM(DATA / "mlp.pte", qlinear="4w")
    with pytest.raises(flambeau.LoadError):
        flambeau.LLM("nowhere.gguf")


def test_perplexity_is_the_commands(tiny_llama, tmp_path, capfd):
    text = "the cat sat on the mat . " * 20
    figures = tiny_llama.eval(text, window=16)
    file = tmp_path / "text.txt"
    file.write_text(text)
    flags = ["--text", str(file), "--window", "16", "--json", "--quiet", "--threads", "1", "--qlinear", "none"]
    code = flambeau._native.command(["flambeau", "eval", str(DATA / "tiny-llama"), *flags, "--cache-dir", str(tmp_path)])
    assert code == 0
    assert figures["perplexity"] == pytest.approx(json.loads(capfd.readouterr().out)["perplexity"], rel=1e-4)


def test_the_repr_tells_model_and_engine(tiny_llama):
    assert "tiny-llama" in repr(tiny_llama) and "--engine=cpu" in repr(tiny_llama)


def test_encoders_make_vectors_of_texts(tmp_path):
    folder = CHECKPOINTS / "embedding-bert"
    model = flambeau.LLM(folder / "checkpoint", cache_dir=tmp_path, threads=1)
    told, expected = facts(folder), read(folder / "embeddings.bin")
    vectors = model.embed(told["texts"]) if "texts" in told else model.embed("a text")
    assert len(vectors[0]) == expected[0][1].shape[-1]
    with pytest.raises(flambeau.InputError, match="text encoder"):
        model.generate("text")


@pytest.fixture
def prompted(tmp_path):
    """An encoder with prompts of its own."""
    folder = tmp_path / "encoder"
    shutil.copytree(CHECKPOINTS / "embedding-bert" / "checkpoint", folder)
    prompts = {"prompts": {"query": "the fox ", "document": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return flambeau.LLM(folder, cache_dir=tmp_path, threads=1)


def test_prompts_stand_before_texts(prompted):
    assert prompted.prompts == {"query": "the fox ", "document": ""}
    expected = prompted.embed("the fox Fox", prompt_name="document")
    assert prompted.embed("Fox") == expected == prompted.embed("Fox", prompt="the fox ")
    assert prompted.embed("Fox", prompt_name="document") != expected
    with pytest.raises(flambeau.InputError, match="document, query"):
        prompted.embed("Fox", prompt_name="passage")
    with pytest.raises(flambeau.InputError, match="prompt-name"):
        prompted.embed("Fox", prompt="a ", prompt_name="query")


def test_vectors_are_shortened_to_length_one(prompted):
    (whole,), (short,) = prompted.embed("Fox"), prompted.embed("Fox", dimensions=4)
    start = np.array(whole[:4])
    np.testing.assert_allclose(short, start / np.linalg.norm(start), atol=1e-6)
    with pytest.raises(flambeau.InputError, match="16 elements"):
        prompted.embed("Fox", dimensions=17)


def test_documents_come_by_falling_relevance(tmp_path):
    folder = CHECKPOINTS / "classifier-xlm-roberta"
    query, document = facts(folder)["pairs"][0]
    ranker = flambeau.LLM(folder / "checkpoint", cache_dir=tmp_path, threads=1)
    ranked = ranker.rerank(query, ["Fox", document])
    assert sorted(one.position for one in ranked) == [0, 1] and ranked[0].relevance >= ranked[1].relevance
    # PyTorch's logit of the pair is 1.2623.
    (judged,) = [one for one in ranked if one.position == 1]
    assert judged.document == document and judged.relevance == pytest.approx(1 / (1 + np.exp(-1.2623)), abs=1e-4)
    assert ranker.rerank(query, ["Fox", document], top_n=1) == ranked[:1]
    with pytest.raises(flambeau.InputError, match="instruction"):
        ranker.rerank(query, ["Fox"], instruction="judge")
    with pytest.raises(flambeau.InputError, match=r"rerank\(\)"):
        ranker.generate("text")


def test_language_models_judge_by_an_instruction(tmp_path):
    judge = flambeau.LLM(CHECKPOINTS / "classifier-answers" / "checkpoint", cache_dir=tmp_path, qlinear="none", threads=1)
    plain, told = judge.rerank("Fox", ["The fox"]), judge.rerank("Fox", ["The fox"], instruction="the dog")
    assert 0 <= plain[0].relevance <= 1 and plain != told


def test_encoders_and_language_models_do_not_rank(tmp_path, tiny_llama):
    encoder = flambeau.LLM(CHECKPOINTS / "embedding-bert" / "checkpoint", cache_dir=tmp_path, threads=1)
    with pytest.raises(flambeau.InputError, match=r"use embed\(\)"):
        encoder.rerank("Fox", ["The fox"])
    with pytest.raises(flambeau.LoadError, match="cannot judge documents"):
        tiny_llama.rerank("Fox", ["The fox"])


def low_rank_adapter(folder, seed):
    """Writes an adapter of rank 2 of the tiny Llama's query and down projections."""
    random, tensors, data = np.random.default_rng(seed), {}, b""
    for module, (rows, columns) in {"self_attn.q_proj": (32, 32), "mlp.down_proj": (32, 64)}.items():
        for factor, shape in (("A", (2, columns)), ("B", (rows, 2))):
            values = random.uniform(-1, 1, shape).astype(np.float32).tobytes()
            tensors[f"base_model.model.model.layers.0.{module}.lora_{factor}.weight"] = {
                "dtype": "F32",
                "shape": shape,
                "data_offsets": (len(data), len(data) + len(values)),
            }
            data += values
    header = json.dumps(tensors).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "bias": "none"}))
    return folder


def test_each_text_chooses_its_adapters(tmp_path, tiny_llama):
    paths = [low_rank_adapter(tmp_path / name, seed) for seed, name in enumerate(("a", "b"))]
    how = {"qlinear": "none", "cache_dir": tmp_path / "cache", "threads": 1}

    def write(model, **options):
        return model.generate(PROMPT, max_new_tokens=16, ignore_eos=True, **options)

    model = flambeau.LLM(DATA / "tiny-llama", lora={"calm": f"{paths[0]}:0.5", "loud": paths[1]}, **how)
    assert model.adapters == {"calm": 0.5, "loud": 1.0} and tiny_llama.adapters == {}
    merged = {
        name: write(flambeau.LLM(DATA / "tiny-llama", lora=lora, **how))
        for name, lora in {"calm": [f"{paths[0]}:0.5"], "loud": [paths[1]], "both": [f"{paths[0]}:0.5", paths[1]]}.items()
    }
    assert len({write(tiny_llama), *merged.values()}) == 4, "each choice has another text"
    assert write(model) == merged["both"]
    assert write(model, adapters={"calm": 0.5}) == merged["calm"]
    assert write(model, adapters=["loud"]) == merged["loud"]
    assert write(model, adapters=[]) == write(tiny_llama)
    assert model.eval(PROMPT * 9, window=16, adapters=()) == tiny_llama.eval(PROMPT * 9, window=16)
    assert model.eval(PROMPT * 9, window=16) != tiny_llama.eval(PROMPT * 9, window=16)
    with pytest.raises(flambeau.InputError, match="calm, loud"):
        write(model, adapters=["silent"])
    with pytest.raises(flambeau.InputError, match="no adapters"):
        write(tiny_llama, adapters=["calm"])
    with pytest.raises(TypeError, match="names"):
        write(model, adapters="calm")
