"""Takes traces as a collector does (OTLP over HTTP), and prints each span in a line of JSON. The first line is its port."""

import http.server
import json
import sys

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span


def value(any_value):
    kind = any_value.WhichOneof("value")
    if kind == "array_value":
        return [value(entry) for entry in any_value.array_value.values]
    return getattr(any_value, kind)


def attributes(pairs):
    return {pair.key: value(pair.value) for pair in pairs}


def describe(resource, span):
    return {
        "name": span.name,
        "kind": Span.SpanKind.Name(span.kind),
        "trace": span.trace_id.hex(),
        "parent": span.parent_span_id.hex(),
        "state": span.trace_state,
        "seconds": (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
        "status": span.status.code,
        "attributes": attributes(span.attributes),
        "resource": attributes(resource.attributes),
    }


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/x-protobuf"), (self.path, self.headers)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    print(json.dumps(describe(resource.resource, span)), flush=True)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
try:
    server.serve_forever()
except KeyboardInterrupt:
    sys.exit(0)
