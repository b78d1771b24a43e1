"""Talks to a server as Anthropic's users do. Usage: anthropic_client.py URL; prints what worked as JSON."""

import json
import sys

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


def errors():
    for kind, fields in [(anthropic.NotFoundError, {"model": "nobody"}), (anthropic.BadRequestError, {"model": "tiny", "extra_body": {"temperature": 9}})]:
        try:
            client.messages.create(max_tokens=8, messages=MESSAGES, **fields)
        except kind as error:
            assert error.body["error"]["message"], error
        else:
            raise AssertionError(f"no {kind.__name__} for {fields}")


worked = []
for step in [chat, stream, tools, errors]:
    step()
    worked.append(step.__name__)
print(json.dumps(worked))
