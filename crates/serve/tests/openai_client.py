"""Talks to a server as OpenAI's users do. Usage: openai_client.py URL RECORDING; prints what worked as JSON."""

import json
import struct
import sys
import time

import openai
import pydantic

client = openai.OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
MESSAGES = [{"role": "user", "content": "where is the cat ?"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]


def chat():
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=8, logprobs=True, top_logprobs=2)
    assert answer.usage.prompt_tokens == 9, answer.usage
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


def stream():
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=8)
    events = client.chat.completions.create(
        model="tiny", messages=MESSAGES, temperature=0, max_tokens=8, stream=True, stream_options={"include_usage": True}
    )
    text, usage = "", None
    for event in events:
        usage = event.usage or usage
        text += "".join(choice.delta.content or "" for choice in event.choices)
    assert text == whole.choices[0].message.content and usage.total_tokens > 9, (text, whole, usage)


def tools():
    answer = client.chat.completions.create(model="caller", messages=MESSAGES, tools=TOOLS)
    call = answer.choices[0].message.tool_calls[0]
    assert answer.choices[0].finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Ulm"})
    with client.chat.completions.stream(model="caller", messages=MESSAGES, tools=TOOLS) as events:
        final = events.get_final_completion()
    assert json.loads(final.choices[0].message.tool_calls[0].function.arguments) == {"city": "Ulm"}
    reply = [answer.choices[0].message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
    client.chat.completions.create(model="caller", messages=MESSAGES + reply, tools=TOOLS)


class Form(pydantic.BaseModel):
    ok: bool


def parse():
    answer = client.chat.completions.parse(model="former", messages=MESSAGES, response_format=Form)
    assert answer.choices[0].message.parsed == Form(ok=True), answer


def responses():
    whole = client.responses.create(model="tiny", input=MESSAGES, instructions="the cat", max_output_tokens=8, temperature=0)
    assert whole.usage.input_tokens == 13 and whole.status in ("completed", "incomplete"), whole
    with client.responses.stream(model="tiny", input=MESSAGES, instructions="the cat", max_output_tokens=8, temperature=0) as events:
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        final = events.get_final_response() if whole.status == "completed" else None
    assert text == whole.output_text and (not final or final.output_text == text), (text, whole)
    tool = {"type": "function", "strict": False, **TOOLS[0]["function"]}
    called = client.responses.create(model="caller", input="weather?", tools=[tool])
    call = called.output[-1]
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "weather", {"city": "Ulm"}), called
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    history = [{"role": "user", "content": "weather?"}, *[item.model_dump() for item in called.output], output]
    with client.responses.stream(model="caller", input=history, tools=[tool]) as events:
        final = events.get_final_response()
    assert json.loads(final.output[-1].arguments) == {"city": "Ulm"}, final
    parsed = client.responses.parse(model="former", input="x", text_format=Form)
    assert parsed.output_parsed == Form(ok=True), parsed


def agent():
    """What coding agents send: tools of many kinds, and hints without effect."""
    function = {"type": "function", "strict": False, **TOOLS[0]["function"]}
    grammar = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
    patch = {"type": "custom", "name": "patch", "description": "edits a file", "format": grammar}
    hints = {
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "k",
        "text": {"verbosity": "low"},
        "reasoning": {"effort": "medium", "summary": "auto"},
        "parallel_tool_calls": False,
    }
    tools = [function, patch, {"type": "local_shell"}, {"type": "web_search"}]
    answer = client.responses.with_raw_response.create(model="caller", input="weather?", tools=tools, **hints)
    assert answer.headers["x-flambeau-dropped-tools"] == "web_search", answer.headers
    called = answer.parse()
    assert called.output[-1].name == "weather" and called.text.verbosity == "low" and called.store is False, called
    with client.responses.stream(model="patcher", input="go", tools=tools, **hints) as events:
        kinds = [event.type for event in events]
        final = events.get_final_response()
    call = final.output[-1]
    assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", "x = 1"), final
    assert "response.custom_tool_call_input.done" in kinds, kinds
    output = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "done"}
    history = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "go"}, call.model_dump(), output]
    client.responses.create(model="patcher", input=history, tools=tools, **hints)
    with client.responses.stream(model="thinker", input="go", reasoning={"summary": "auto"}) as events:
        summary = "".join(event.delta for event in events if event.type == "response.reasoning_summary_text.delta")
        final = events.get_final_response()
    assert summary == final.output[0].summary[0].text == "so be it" and final.output_text == "yes", final
    thoughts = client.responses.create(model="thinker", input="go")
    assert not thoughts.output[0].summary and thoughts.output[0].content[0].text == "so be it", thoughts
    counted = client.responses.input_tokens.count(model="tiny", input=MESSAGES, instructions="the cat")
    assert counted.input_tokens == 13, counted


def kept():
    """Conversations that the server keeps."""
    first = client.responses.create(model="tiny", input=MESSAGES, instructions="the cat", max_output_tokens=8, temperature=0)
    assert first.store is True and client.responses.retrieve(first.id).output_text == first.output_text, first
    next_input = [{"role": "user", "content": "where is the dog ?"}]
    second = client.responses.create(model="tiny", input=next_input, previous_response_id=first.id, max_output_tokens=8, temperature=0)
    whole = MESSAGES + [{"role": "assistant", "content": first.output_text}] + next_input
    same = client.responses.create(model="tiny", input=whole, max_output_tokens=8, temperature=0, store=False)
    assert second.previous_response_id == first.id
    assert (second.output_text, second.usage.input_tokens) == (same.output_text, same.usage.input_tokens), (second, same)
    items = list(client.responses.input_items.list(second.id))
    assert [item.role for item in items] == ["user", "assistant", "user"], items
    reference = {"type": "item_reference", "id": first.output[-1].id}
    client.responses.create(model="tiny", input=[MESSAGES[0], reference, *next_input], max_output_tokens=8)
    client.responses.delete(first.id)
    for missing in [first.id, same.id]:
        try:
            client.responses.create(model="tiny", input="a", previous_response_id=missing)
        except openai.BadRequestError as error:
            assert error.code == "previous_response_not_found", error
        else:
            raise AssertionError("a response that is not kept was continued")
        try:
            client.responses.retrieve(missing)
        except openai.NotFoundError:
            pass
        else:
            raise AssertionError("a response that is not kept was found")


def completions():
    answer = client.completions.create(model="tiny", prompt=["the cat", "a dog"], max_tokens=4, n=2, temperature=1, seed=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


def embeddings():
    # The client asks for base64 unless it is told otherwise.
    texts = ["A man is eating food.", "Fox"]
    answer = client.embeddings.create(model="encoder", input=texts)
    floats = client.embeddings.create(model="encoder", input=texts, encoding_format="float", dimensions=16)
    assert [len(entry.embedding) for entry in answer.data] == [16, 16] and answer.usage.prompt_tokens == 16, answer
    assert [entry.embedding for entry in answer.data] == [struct_round(entry.embedding) for entry in floats.data]
    assert abs(sum(x * x for x in answer.data[0].embedding) - 1) < 1e-5
    short = client.embeddings.create(model="encoder", input=texts, dimensions=8)
    assert len(short.data[0].embedding) == 8 and abs(sum(x * x for x in short.data[0].embedding) - 1) < 1e-5
    try:
        client.embeddings.create(model="encoder", input=texts, dimensions=17)
    except openai.BadRequestError as error:
        assert error.param == "dimensions", error
    else:
        raise AssertionError("vectors were made longer")


def struct_round(values):
    """The nearest numbers of 32 bits, which JSON writes with fewer digits."""
    return list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))


def transcribe():
    def ask(**fields):
        with open(sys.argv[2], "rb") as recording:
            return client.audio.transcriptions.create(model="parakeet-tdt", file=recording, **fields)

    text = ask().text
    assert text and ask(response_format="text") == text + "\n"
    words = ask(response_format="verbose_json", timestamp_granularities=["word", "segment"])
    assert words.text == text and words.words[0].end > words.words[0].start and words.segments[0].avg_logprob < 0, words
    events = list(ask(stream=True))
    assert events[-1].type == "transcript.text.done" and events[-1].text == text, events
    assert "".join(event.delta for event in events[:-1]) == text, events


def batches():
    def line(name, **body):
        return {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": {"messages": MESSAGES, "temperature": 0, "max_tokens": 8, **body}}

    lines = [line("first", model="tiny"), line("second", model="tiny", seed=3), line("third", model="nobody")]
    text = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("input.jsonl", text), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600})
    assert (file.bytes, file.filename, file.status, file.expires_at - file.created_at) == (len(text), "input.jsonl", "processed", 3600)
    assert client.files.retrieve(file.id) == file and file in list(client.files.list(purpose="batch"))
    assert client.files.content(file.id).read() == text
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"for": "test"})
    while batch.status in ("validating", "in_progress", "finalizing"):
        time.sleep(0.01)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed" and batch.errors is None and batch.metadata == {"for": "test"}, batch
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (3, 2, 1) and batch.usage.output_tokens > 0, batch
    assert batch.created_at <= batch.in_progress_at <= batch.completed_at < batch.expires_at, batch
    whole = client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=0, max_tokens=8)
    answers = {line["custom_id"]: line for line in map(json.loads, client.files.content(batch.output_file_id).text.splitlines())}
    assert sorted(answers) == ["first", "second"], answers
    for answer in answers.values():
        response = answer["response"]
        assert response["status_code"] == 200 and answer["error"] is None and response["request_id"].startswith("req_"), answer
        assert response["body"]["choices"][0]["message"]["content"] == whole.choices[0].message.content, answer
    [failure] = map(json.loads, client.files.content(batch.error_file_id).text.splitlines())
    assert failure["custom_id"] == "third" and failure["response"]["status_code"] == 404, failure
    assert client.batches.list(limit=1).data[0].id == batch.id
    endless = "\n".join(json.dumps(line(str(i), model="endless", max_tokens=100000)) for i in range(9)).encode()
    file = client.files.create(file=endless, purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert client.batches.cancel(batch.id).status == "cancelling"
    while client.batches.retrieve(batch.id).status != "cancelled":
        time.sleep(0.01)
    assert client.files.delete(file.id).deleted
    try:
        client.files.retrieve(file.id)
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("the file is gone")


def models():
    assert [model.id for model in client.models.list()] == ["tiny", "caller", "former", "endless", "thinker", "patcher", "encoder", "ranker", "parakeet-tdt"]
    assert client.models.retrieve("tiny").owned_by == "flambeau"


def errors():
    for kind, fields in [
        (openai.NotFoundError, {"model": "nobody"}),
        (openai.BadRequestError, {"model": "tiny", "temperature": 9}),
        (openai.BadRequestError, {"model": "tiny", "response_format": {"type": "nonsense"}}),
    ]:
        try:
            client.chat.completions.create(messages=MESSAGES, **fields)
        except kind as error:
            assert error.body["message"] and error.request_id.startswith("req_"), error
        else:
            raise AssertionError(f"no {kind.__name__} for {fields}")


worked = []
for step in [chat, stream, tools, parse, responses, agent, kept, completions, embeddings, transcribe, batches, models, errors]:
    step()
    worked.append(step.__name__)
print(json.dumps(worked))
