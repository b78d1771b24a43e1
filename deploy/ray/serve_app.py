"""A Ray Serve application: replicas of `flambeau serve` behind one address, in OpenAI's protocol.

    serve run serve.yaml

A request goes to the replica that has the beginning of its conversation in its cache, and to another one when that replica is busy.
The number of replicas follows the requests that run and wait in the servers. Answers stream through.
"""

import asyncio
import json
import logging
import math
import re

import httpx
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from flambeau_process import Process

logger = logging.getLogger("ray.serve")

# Ray's router that hashes a key onto the replicas.
ROUTER = "ray.serve.experimental.consistent_hash_router.ConsistentHashRouter"
# Bytes of a conversation that choose a replica: enough to tell conversations apart, and the same in each of their turns.
KEY_BYTES = 1024
# Tries of a request whose replica is restarting its server.
TRIES = 3
# Headers that belong to one connection. Bodies are passed on as they come, so their lengths and encodings hold.
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "upgrade", "host", "te", "trailer"}


class Options(BaseModel):
    """Arguments of the application."""

    # What `flambeau serve` takes: paths, NAME=PATH, or ORG/NAME on the hub.
    models: list[str]
    # More arguments of `flambeau serve`, such as ["--cache-ram=4096"].
    arguments: list[str] = []
    # The program; by default the one that the wheel installs.
    command: str = "flambeau"
    # Requests that a replica computes at a time.
    parallel: int = 4
    min_replicas: int = 1
    max_replicas: int = 4
    upscale_delay_s: float = 10
    downscale_delay_s: float = 300
    num_cpus: float = 1
    num_gpus: float = 0
    gateways: int = 1


def conversation_key(body):
    """The beginning of a conversation, up to its first question, or of a prompt. None for other bodies."""
    try:
        request = json.loads(body)
    except ValueError:
        return None
    if not isinstance(request, dict):
        return None
    start = request.get("messages", request.get("input", request.get("prompt")))
    if isinstance(start, list):
        questions = [i for i, message in enumerate(start) if isinstance(message, dict) and message.get("role") == "user"]
        start = start[: questions[0] + 1] if questions else start[:1]
    if not start:
        return None
    return json.dumps([request.get("model"), request.get("system"), request.get("instructions"), start])[:KEY_BYTES]


def by_queue(context):
    """Wants as many replicas as running and waiting requests fill. Ray applies the bounds and delays of the configuration."""
    metrics = context.aggregated_metrics or {}
    requests = sum(metrics.get("requests", {}).values()) + (context.total_queued_requests or 0)
    places = max([1, *metrics.get("parallel", {}).values()])
    return max(1, math.ceil(requests / places)), context.policy_state


@serve.deployment
class Replica:
    """One server. It restarts the server when that ends, and refuses requests with status 503 meanwhile."""

    def __init__(self, options: Options):
        self.options = options
        self.name = serve.get_replica_context().replica_id.unique_id
        arguments = [f"--parallel={options.parallel}", *options.arguments]
        self.process = Process(options.models, arguments, options.command)
        self.client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None))
        self.restart = None

    def _restart(self):
        """Starts the server anew, once for all requests that find it gone."""
        if self.restart is None or self.restart.done():
            self.restart = asyncio.get_running_loop().run_in_executor(None, self.process.start)

    async def check_health(self):
        """Ray replaces a replica whose server neither answers nor starts."""
        if self.restart is not None and not self.restart.done():
            return
        if not self.process.is_alive():
            if self.restart is not None and self.restart.exception():
                raise self.restart.exception()
            self._restart()
            return
        (await self.client.get(f"{self.process.url}/health", timeout=10)).raise_for_status()

    async def record_autoscaling_stats(self):
        if not self.process.is_alive():
            return {}
        text = (await self.client.get(f"{self.process.url}/metrics", timeout=5)).text
        requests = sum(float(value) for value in re.findall(r"^flambeau_(?:running|waiting)\{.*\} (\S+)$", text, re.MULTILINE))
        return {"requests": requests, "parallel": float(self.options.parallel)}

    async def forward(self, method, target, headers, body):
        """Yields the status and headers of the answer, and then its body."""
        has_begun = False
        try:
            async with self.client.stream(method, self.process.url + target, headers=headers, content=body) as reply:
                kept = [(k, v) for k, v in reply.headers.items() if k.lower() not in HOP_HEADERS]
                has_begun = True
                yield reply.status_code, [*kept, ("x-flambeau-replica", self.name)]
                async for piece in reply.aiter_raw():
                    yield piece
        except httpx.TransportError as error:
            logger.warning("the server did not answer: %r", error)
            if not self.process.is_alive():
                self._restart()
            # An answer that breaks off has to look like one.
            if has_begun:
                raise
            message = {"error": {"message": "the replica is restarting its server", "type": "server_error", "code": "restarting"}}
            yield 503, [("content-type", "application/json"), ("retry-after", "1")]
            yield json.dumps(message).encode()

    def __del__(self):
        if hasattr(self, "process"):
            self.process.stop()


routes = FastAPI(openapi_url=None)


@serve.deployment
@serve.ingress(routes)
class Gateway:
    """Takes requests, and gives each to the replica of its conversation."""

    def __init__(self, replicas):
        self.replicas = replicas

    @routes.api_route("/{path:path}", methods=["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
    async def forward(self, request: Request):
        body = await request.body()
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        headers = [(k, v) for k, v in request.headers.items() if k.lower() not in HOP_HEADERS]
        key = request.headers.get("x-session-id") or conversation_key(body)
        for attempt in range(TRIES):
            # Another key chooses another replica, as a rule.
            options = {"session_id": f"{key} {attempt}" if attempt else key} if key else {}
            pieces = self.replicas.options(stream=True, **options).forward.remote(request.method, target, headers, body)
            status, answered = await anext(pieces)
            if status != 503 or attempt == TRIES - 1:
                break
            pieces.cancel()
        return StreamingResponse(self._body(pieces), status, dict(answered))

    async def _body(self, pieces):
        """The rest of an answer. A client that goes away ends the request."""
        try:
            async for piece in pieces:
                yield piece
        finally:
            pieces.cancel()


def app(options: Options):
    """Builds the application: one address, and the replicas behind it."""
    replicas = Replica.options(
        # A busy replica's requests overflow to the next one before its queue fills.
        max_ongoing_requests=2 * options.parallel,
        ray_actor_options={"num_cpus": options.num_cpus, "num_gpus": options.num_gpus},
        request_router_config=RequestRouterConfig(request_router_class=ROUTER),
        autoscaling_config=AutoscalingConfig(
            min_replicas=options.min_replicas,
            max_replicas=options.max_replicas,
            upscale_delay_s=options.upscale_delay_s,
            downscale_delay_s=options.downscale_delay_s,
            look_back_period_s=10,
            metrics_interval_s=2,
            policy=AutoscalingPolicy(policy_function=by_queue),
        ),
        health_check_period_s=5,
        graceful_shutdown_timeout_s=60,
    ).bind(options)
    gateway = Gateway.options(num_replicas=options.gateways, max_ongoing_requests=1000, ray_actor_options={"num_cpus": 0.1})
    return gateway.bind(replicas)
