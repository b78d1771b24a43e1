"""Language models and text encoders of a few kilobytes."""

import asyncio
import json
import threading

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
