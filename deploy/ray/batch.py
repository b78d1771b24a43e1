#!/usr/bin/env python3
"""Answers the prompts of a Parquet data set with Ray Data, a server in each actor.

Usage: batch.py IN OUT --model MODEL [--actors N] [--parallel N] [--max-tokens N] [--flambeau FLAMBEAU] [-- SERVE ARGUMENTS]

IN and OUT are folders or files of Parquet, on a disk or in an object store. IN has a column `prompt`, a text, or `messages`, a list of
{role, content}. OUT has all columns of IN, and `answer`, `finish_reason`, `prompt_tokens`, `completion_tokens` and `error`. A request that
fails has its error in its row, and no answer. Rows that begin alike and stand together share the work for their beginning.
"""

import argparse
import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pyarrow
import ray
from ray.data.aggregate import Count, Sum

from flambeau_process import Process

# Requests that wait in the server for each one that runs, so that no place is empty.
QUEUED = 2


class Answer:
    """An actor with its own server. A batch is as many requests as the server takes at a time."""

    def __init__(self, model, parallel, arguments, command, request):
        self.process = Process([f"model={model}"], [f"--parallel={parallel}", f"--queue={(QUEUED + 1) * parallel}", *arguments], command)
        self.client = httpx.Client(base_url=self.process.url, timeout=None)
        self.pool = ThreadPoolExecutor(QUEUED * parallel)
        self.request = request

    def __call__(self, rows: pyarrow.Table) -> pyarrow.Table:
        column = "messages" if "messages" in rows.column_names else "prompt"
        answers = list(self.pool.map(self.answer, rows[column].to_pylist()))
        for name, kind in SCHEMA:
            rows = rows.append_column(name, pyarrow.array([answer.get(name) for answer in answers], kind))
        return rows

    def answer(self, prompt):
        messages = prompt if isinstance(prompt, list) else [{"role": "user", "content": prompt}]
        reply = self.client.post("/v1/chat/completions", json={"messages": messages, **self.request})
        if reply.status_code != 200:
            return {"error": reply.json()["error"]["message"]}
        answer = reply.json()
        choice, usage = answer["choices"][0], answer["usage"]
        counts = {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}
        return {"answer": choice["message"]["content"], "finish_reason": choice["finish_reason"], **counts}


SCHEMA = [
    ("answer", pyarrow.string()),
    ("finish_reason", pyarrow.string()),
    ("prompt_tokens", pyarrow.int64()),
    ("completion_tokens", pyarrow.int64()),
    ("error", pyarrow.string()),
]


def run(source, target, model, *, actors=1, parallel=4, num_cpus=1.0, num_gpus=0.0, arguments=(), command="flambeau", request=None):
    """Reads `source`, answers each row, and writes `target`. Returns the number of rows, of errors, and of generated tokens."""
    given = (model, parallel, list(arguments), command, request or {})
    answered = ray.data.read_parquet(source).map_batches(
        Answer,
        fn_constructor_args=given,
        batch_format="pyarrow",
        batch_size=8 * parallel,
        compute=ray.data.ActorPoolStrategy(size=actors),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
    )
    answered.write_parquet(target)
    errors = Count("error", ignore_nulls=True, alias_name="errors")
    counts = ray.data.read_parquet(target).aggregate(Count(), errors, Sum("completion_tokens"))
    return {"rows": counts["count()"], "errors": counts["errors"], "completion_tokens": counts["sum(completion_tokens)"] or 0}


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("source")
    arguments.add_argument("target")
    arguments.add_argument("--model", required=True)
    arguments.add_argument("--actors", type=int, default=1)
    arguments.add_argument("--parallel", type=int, default=4)
    arguments.add_argument("--max-tokens", type=int, default=256)
    arguments.add_argument("--temperature", type=float, default=0)
    arguments.add_argument("--cpus", type=float, default=1, help="CPUs of an actor")
    arguments.add_argument("--gpus", type=float, default=0, help="GPUs of an actor")
    arguments.add_argument("--flambeau", default="flambeau")
    arguments.add_argument("serve", nargs="*", help="more arguments of `flambeau serve`")
    args = arguments.parse_args()
    request = {"max_tokens": args.max_tokens, "temperature": args.temperature}
    places = {"actors": args.actors, "parallel": args.parallel, "num_cpus": args.cpus, "num_gpus": args.gpus}
    print(json.dumps(run(args.source, args.target, args.model, arguments=args.serve, command=args.flambeau, request=request, **places)))


if __name__ == "__main__":
    main()
