"""Talks to a server as Ollama's users do. Usage: ollama_client.py URL; prints what worked as JSON."""

import json
import sys

import ollama

client = ollama.Client(host=sys.argv[1])
MESSAGES = [{"role": "user", "content": "where is the cat ?"}]
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}


def weather(city: str) -> str:
    """Tells the weather.

    Args:
      city: Name of the city
    """
    return f"sunny in {city}"


def chat():
    answer = client.chat("tiny", MESSAGES, options={"temperature": 0, "num_predict": 8, "num_ctx": 256})
    assert answer.prompt_eval_count == 9 and answer.done and answer.done_reason in ("stop", "length"), answer
    assert answer.eval_count <= 8 and answer.total_duration >= answer.eval_duration > 0, answer
    same = client.chat("tiny:latest", MESSAGES, options={"temperature": 0, "num_predict": 8}, stream=True)
    parts = list(same)
    assert "".join(part.message.content for part in parts) == answer.message.content, (parts, answer)
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True] and parts[-1].eval_count == answer.eval_count


def thoughts():
    answer = client.chat("thinker", MESSAGES, think=True)
    assert (answer.message.thinking, answer.message.content) == ("so be it", "yes"), answer
    parts = list(client.generate("thinker", "well?", stream=True))
    assert "".join(part.thinking or "" for part in parts) == "so be it", parts
    assert "".join(part.response for part in parts) == "yes", parts


def tools():
    for stream in [False, True]:
        answer = client.chat("caller", MESSAGES, tools=[weather], stream=stream)
        parts = list(answer) if stream else [answer]
        calls = [call for part in parts for call in part.message.tool_calls or []]
        assert [(call.function.name, call.function.arguments) for call in calls] == [("weather", {"city": "Ulm"})], parts
    message = {"role": "assistant", "content": "", "tool_calls": [call.model_dump() for call in calls]}
    result = {"role": "tool", "tool_name": "weather", "content": weather("Ulm")}
    assert client.chat("caller", MESSAGES + [message, result], tools=[weather]).message.tool_calls


def formats():
    answer = client.chat("former", MESSAGES, format=SCHEMA)
    assert json.loads(answer.message.content) == {"ok": True}, answer
    assert json.loads(client.generate("former", "x", format=SCHEMA).response) == {"ok": True}


def generate():
    options = {"temperature": 0, "num_predict": 4}
    raw = client.generate("tiny", "the cat sat", raw=True, options=options, logprobs=True, top_logprobs=2)
    assert raw.prompt_eval_count == 3 and raw.done, raw
    assert len(raw.logprobs) == raw.eval_count and len(raw.logprobs[0].top_logprobs) == 2, raw
    assert client.generate("tiny", "the cat sat", system="a dog", options=options).prompt_eval_count > 3
    loaded = client.generate("tiny")
    assert loaded.done_reason == "load" and loaded.response == "", loaded


def embed():
    answer = client.embed("encoder", ["A man is eating food.", "Fox"])
    assert len(answer.embeddings) == 2 and len(answer.embeddings[0]) == 16 and answer.prompt_eval_count == 16, answer
    assert abs(sum(x * x for x in answer.embeddings[0]) - 1) < 1e-5
    assert list(client.embed("encoder", "Fox").embeddings[0]) == list(client.embeddings("encoder", "Fox").embedding)


def models():
    names = [model.model for model in client.list().models]
    assert names[0] == "tiny:latest" and "encoder:latest" in names, names
    assert client.list().models[0].size > 0
    shown = client.show("tiny:latest")
    assert "completion" in shown.capabilities and shown.template, shown
    assert shown.modelinfo[shown.modelinfo["general.architecture"] + ".context_length"] == 512, shown
    assert client.show("encoder").capabilities == ["embedding"]
    running = [model.model for model in client.ps().models]
    assert running == names, running
    assert client.pull("tiny").status == "success"
    assert [part.status for part in client.pull("tiny", stream=True)][-1] == "success"


def errors():
    for status, ask in [
        (404, lambda: client.chat("nobody", MESSAGES)),
        (404, lambda: list(client.chat("nobody", MESSAGES, stream=True))),
        (404, lambda: client.pull("nobody")),
        (404, lambda: client.show("nobody")),
        (400, lambda: client.chat("tiny", MESSAGES, options={"temperature": 9})),
        (400, lambda: client.chat("encoder", MESSAGES)),
        (501, lambda: client.delete("tiny")),
        (501, lambda: client.create("other", from_="tiny")),
    ]:
        try:
            ask()
        except ollama.ResponseError as error:
            assert error.status_code == status and error.error, (status, error)
        else:
            raise AssertionError(f"no status {status}")


worked = []
for step in [chat, thoughts, tools, formats, generate, embed, models, errors]:
    step()
    worked.append(step.__name__)
print(json.dumps(worked))
