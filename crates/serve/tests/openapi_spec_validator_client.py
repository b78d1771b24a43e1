"""Checks the server's description of itself. Usage: openapi_spec_validator_client.py URL; prints what worked as JSON."""

import json
import sys
import urllib.request

import openapi_spec_validator

with urllib.request.urlopen(sys.argv[1] + "/openapi.json") as response:
    document = json.load(response)


def fields(path):
    content = document["paths"][path]["post"]["requestBody"]["content"]
    return content["application/json"]["schema"]


def valid():
    openapi_spec_validator.validate(document)


def chat():
    schema = fields("/v1/chat/completions")
    assert schema["required"] == ["messages"], schema
    assert schema["properties"]["temperature"] == {"type": "number", "minimum": 0.0, "maximum": 2.0}, schema
    assert {"tools", "tool_choice", "response_format", "stream_options", "seed", "logit_bias"} <= set(schema["properties"])


def others():
    assert "context_management" in fields("/v1/messages")["properties"]
    assert "previous_response_id" in fields("/v1/responses")["properties"]
    assert fields("/v1/completions")["properties"]["suffix"] == {"type": "string"}
    assert fields("/api/chat")["properties"]["options"] == {"type": "object"}
    assert fields("/infill")["properties"]["input_extra"] == {"type": "array"}
    assert document["paths"]["/v1/models/{name}"]["get"]["parameters"][0]["name"] == "name"


def answered():
    """Each path is there, and takes its method."""
    for path, methods in document["paths"].items():
        for method in methods:
            request = urllib.request.Request(sys.argv[1] + path.replace("{", "").replace("}", ""), method=method.upper())
            try:
                urllib.request.urlopen(request).close()
            except urllib.error.HTTPError as error:
                assert error.code != 405 and b"no such path" not in error.read(), (path, method, error)


worked = []
for step in [valid, chat, others, answered]:
    step()
    worked.append(step.__name__)
print(json.dumps(worked))
