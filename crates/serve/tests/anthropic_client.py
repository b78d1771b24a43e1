"""Talks to a server as Anthropic's users do. Usage: anthropic_client.py URL; prints what worked as JSON."""

import json
import sys
import time

import anthropic

client = anthropic.Anthropic(base_url=sys.argv[1], api_key="none", max_retries=0)
MESSAGES = [{"role": "user", "content": "where is the cat ?"}]
TOOLS = [{"name": "weather", "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}}}]


def chat():
    answer = client.messages.create(model="tiny", max_tokens=8, messages=MESSAGES)
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == 9, usage
    assert answer.stop_reason in ("end_turn", "max_tokens"), answer


def stream():
    whole = client.messages.create(model="tiny", max_tokens=8, messages=MESSAGES)
    with client.messages.stream(model="tiny", max_tokens=8, messages=MESSAGES) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    assert text == final.content[0].text == whole.content[0].text, (text, final, whole)


def tools():
    with client.messages.stream(model="caller", max_tokens=50, messages=MESSAGES, tools=TOOLS) as events:
        final = events.get_final_message()
    call = final.content[-1]
    assert (final.stop_reason, call.type, call.name, call.input) == ("tool_use", "tool_use", "weather", {"city": "Ulm"}), final
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}]}
    history = MESSAGES + [{"role": "assistant", "content": final.content}, result]
    client.messages.create(model="caller", max_tokens=50, messages=history, tools=TOOLS, tool_choice={"type": "any"})


def agent():
    """What coding agents send: caching, effort, betas, and tools without a schema."""
    cached = {"cache_control": {"type": "ephemeral"}}
    tools = [
        {**TOOLS[0], **cached, "eager_input_streaming": True},
        {"type": "bash_20250124", "name": "bash"},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
        {"type": "web_search_20250305", "name": "web_search"},
    ]
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "the mat"}, "title": "x"}
    history = [
        {"role": "user", "content": [document, {"type": "text", "text": "where is the cat ?", **cached}]},
        {"role": "system", "content": "the dog is on the mat"},
    ]
    request = {
        "model": "caller",
        "messages": history,
        "system": [{"type": "text", "text": "the cat", **cached}],
        "tools": tools,
        "thinking": {"type": "adaptive", "display": "summarized"},
        "output_config": {"effort": "high"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "betas": ["context-management-2025-06-27", "some-beta-2030-01-01"],
    }
    answer = client.beta.messages.with_raw_response.create(max_tokens=50, **request)
    assert answer.headers["x-flambeau-dropped-tools"] == "web_search_20250305", answer.headers
    assert answer.headers["request-id"] == answer.headers["x-request-id"]
    message = answer.parse()
    assert message.content[-1].input == {"city": "Ulm"} and message.context_management.applied_edits == [], message
    counted = client.beta.messages.count_tokens(**request)
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens, (counted, usage)
    with client.beta.messages.stream(max_tokens=50, **request) as events:
        assert events.get_final_message().content[-1].input == {"city": "Ulm"}


def count_tokens():
    assert client.messages.count_tokens(model="tiny", messages=MESSAGES).input_tokens == 9


def thoughts():
    with client.messages.stream(model="thinker", max_tokens=50, messages=MESSAGES) as events:
        final = events.get_final_message()
    thinking, text = final.content
    assert (thinking.thinking, text.text) == ("so be it", "yes") and thinking.signature, final
    history = MESSAGES + [{"role": "assistant", "content": final.content}, MESSAGES[0]]
    omitted = {"type": "adaptive", "display": "omitted"}
    with client.messages.stream(model="thinker", max_tokens=50, messages=history, thinking=omitted) as events:
        final = events.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"] and not final.content[0].thinking, final


def prefill():
    begun = MESSAGES + [{"role": "assistant", "content": "the cat"}]
    answer = client.messages.create(model="tiny", max_tokens=8, messages=begun)
    # The beginning stands at the end of the prompt, which no turn follows.
    assert client.messages.count_tokens(model="tiny", messages=begun).input_tokens == 11, answer


def formats():
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    config = {"format": {"type": "json_schema", "schema": schema}}
    answer = client.messages.create(model="former", max_tokens=50, messages=MESSAGES, output_config=config)
    assert json.loads(answer.content[0].text) == {"ok": True}, answer


def models():
    names = [model.id for model in client.models.list()]
    assert names == ["tiny", "caller", "former", "endless", "thinker", "patcher", "encoder", "ranker", "parakeet-tdt"], names
    assert client.models.retrieve("tiny").display_name == "tiny"


def batches():
    params = {"model": "tiny", "max_tokens": 8, "messages": MESSAGES}
    requests = [{"custom_id": "good", "params": params}, {"custom_id": "bad", "params": {**params, "temperature": 9}}]
    begun = client.messages.batches.create(requests=requests)
    assert begun.id in [batch.id for batch in client.messages.batches.list(limit=1)], begun
    while (batch := client.messages.batches.retrieve(begun.id)).processing_status != "ended":
        time.sleep(0.01)
    counts = batch.request_counts
    assert (counts.succeeded, counts.errored, counts.processing) == (1, 1, 0) and batch.ended_at, batch
    results = {line.custom_id: line.result for line in client.messages.batches.results(begun.id)}
    assert results["good"].message.usage.output_tokens > 0, results
    assert results["bad"].error.error.type == "invalid_request_error", results
    assert client.messages.batches.delete(begun.id).type == "message_batch_deleted"


def errors():
    for kind, fields in [(anthropic.NotFoundError, {"model": "nobody"}), (anthropic.BadRequestError, {"model": "tiny", "extra_body": {"temperature": 9}})]:
        try:
            client.messages.create(max_tokens=8, messages=MESSAGES, **fields)
        except kind as error:
            assert error.body["error"]["message"], error
        else:
            raise AssertionError(f"no {kind.__name__} for {fields}")


worked = []
for step in [chat, stream, tools, agent, count_tokens, thoughts, prefill, formats, models, batches, errors]:
    step()
    worked.append(step.__name__)
print(json.dumps(worked))
