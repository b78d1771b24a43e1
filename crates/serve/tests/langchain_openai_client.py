"""Talks to a server as LangChain's users do. Usage: langchain_openai_client.py URL; prints what worked as JSON."""

import json
import sys

import openai
import pydantic
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

ADDRESS = dict(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0)
MESSAGES = [SystemMessage("the cat"), HumanMessage("where is the cat ?")]


def model(name, **fields):
    return ChatOpenAI(model=name, **ADDRESS, **fields)


def chat():
    answer = model("tiny", temperature=0, max_tokens=8).invoke(MESSAGES)
    assert answer.content and answer.usage_metadata["input_tokens"] > 9, answer
    assert len(model("tiny", max_tokens=2).batch([MESSAGES, MESSAGES])) == 2


def stream():
    tiny = model("tiny", temperature=0, max_tokens=8, stream_usage=True)
    whole = None
    for chunk in tiny.stream(MESSAGES):
        whole = chunk if whole is None else whole + chunk
    assert whole.content == tiny.invoke(MESSAGES).content and whole.usage_metadata["output_tokens"] > 0, whole


class Weather(pydantic.BaseModel):
    """The weather of a city."""

    city: str


def tools():
    caller = model("caller").bind_tools([{"type": "function", "function": {"name": "weather", "parameters": Weather.model_json_schema()}}])
    answer = caller.invoke(MESSAGES)
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("weather", {"city": "Ulm"})], answer
    caller.invoke([*MESSAGES, answer, ToolMessage("sunny", tool_call_id=answer.tool_calls[0]["id"])])


class Form(pydantic.BaseModel):
    ok: bool


def structured_output():
    assert model("former").with_structured_output(Form, method="json_schema").invoke(MESSAGES) == Form(ok=True)


def embeddings():
    # Its own way of counting tokens is that of OpenAI's models.
    encoder = OpenAIEmbeddings(model="encoder", check_embedding_ctx_length=False, **ADDRESS)
    vectors = encoder.embed_documents(["A man is eating food.", "Fox"])
    assert [len(vector) for vector in vectors] == [16, 16]
    query = encoder.embed_query("Fox")
    assert max(abs(a - b) for a, b in zip(query, vectors[1])) < 1e-5


def errors():
    try:
        model("nobody").invoke(MESSAGES)
    except openai.NotFoundError as error:
        assert error.body["code"] == "model_not_found", error
    else:
        raise AssertionError("nobody answered")


worked = []
for step in [chat, stream, tools, structured_output, embeddings, errors]:
    step()
    worked.append(step.__name__)
print(json.dumps(worked))
