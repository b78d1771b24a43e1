#!/usr/bin/env python3
"""Runs both Ray applications of this folder on a real Ray of this machine.

Usage: check.py FLAMBEAU MODEL [--skip batch|serve]
"""

import argparse
import collections
import concurrent.futures
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER))
sys.path.append(str(FOLDER.parent))
os.environ.update(RAY_TRAIN_V2_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0")

import httpx  # noqa: E402
import pyarrow  # noqa: E402
import pyarrow.parquet  # noqa: E402
import ray  # noqa: E402
from ray import serve  # noqa: E402

import batch  # noqa: E402
import serve_app  # noqa: E402
from report import Report  # noqa: E402

PORT = 18432
ADDRESS = f"http://127.0.0.1:{PORT}"
CONVERSATIONS = 8
# Context in tokens of models that can write long answers.
LONG = 1024


def wait_for(what, attempt, seconds=180):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if result := attempt():
            return result
        time.sleep(0.5)
    raise SystemExit(f"{what} did not come within {seconds} s")


def servers():
    """Process IDs of the servers that descend from this process."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines() if ":\t" in line)
            except OSError:
                continue
            parents[int(entry.name)], names[int(entry.name)] = int(status["PPid"]), status["Name"]

    def is_mine(pid):
        while pid > 1:
            pid = parents.get(pid, 0)
            if pid == os.getpid():
                return True
        return False

    return [pid for pid, name in names.items() if "flambeau" in name and is_mine(pid)]


def is_running(pid):
    """Whether a process exists and is no zombie, wherever it descends from."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def check_batch(report, flambeau, model, folder):
    prompts = [f"the cat {number} sat on the mat" for number in range(40)]
    # One prompt is longer than any context.
    prompts[7] = "the dog ran " * 200_000
    table = pyarrow.table({"id": list(range(40)), "prompt": prompts})
    (folder / "in").mkdir()
    for part in range(4):
        pyarrow.parquet.write_table(table.slice(10 * part, 10), folder / "in" / f"{part}.parquet")
    request = {"max_tokens": 8, "temperature": 0}
    done = batch.run(str(folder / "in"), str(folder / "out"), model, actors=2, parallel=2, num_cpus=0.5, command=flambeau, request=request)
    print(f"batch: {done}")
    rows = sorted(pyarrow.parquet.read_table(folder / "out").to_pylist(), key=lambda row: row["id"])
    report.check([row["id"] for row in rows] == list(range(40)), "the batch lost or repeated rows")
    report.check(done["rows"] == 40 and done["errors"] == 1, f"the batch counts {done}")
    failed = [row["id"] for row in rows if row["error"]]
    report.check(failed == [7] and rows[7]["answer"] is None, f"the rows {failed} have errors: {rows[7]['error']}")
    answered = [row for row in rows if row["id"] != 7]
    report.check(all(row["answer"] is not None and row["completion_tokens"] > 0 for row in answered), "a row has no answer")
    wait_for("the end of the batch's servers", lambda: not servers())


def ask(messages, key=None, **more):
    headers = {"x-session-id": key} if key else {}
    return httpx.post(f"{ADDRESS}/v1/chat/completions", json={"messages": messages, **more}, headers=headers, timeout=120)


def replicas():
    status = serve.status().applications["flambeau"].deployments["Replica"]
    return sum(count for state, count in status.replica_states.items() if state == "RUNNING")


def check_scaling(report):
    """Many clients make a second replica start."""
    report.check(replicas() == 1, f"{replicas()} replicas at the start")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        is_done = False

        def load(number):
            replies = []
            while not is_done:
                replies.append(ask([{"role": "user", "content": f"go {number}"}], max_tokens=40))
            return replies

        clients = [pool.submit(load, number) for number in range(16)]
        try:
            wait_for("the second replica", lambda: replicas() == 2)
        finally:
            is_done = True
        replies = [reply for client in clients for reply in client.result()]
    statuses = collections.Counter(reply.status_code for reply in replies)
    others = [reply.text[:500] for reply in replies if reply.status_code != 200]
    report.check(set(statuses) == {200}, f"answers while the application grew: {statuses}, such as {others[:1]}")
    print(f"serve: {len(replies)} answers while a second replica started")


def check_routing(report):
    """Every turn of a conversation reaches the same replica, which has its beginning in the cache."""
    seen = set()
    for number in range(CONVERSATIONS):
        messages, places = [{"role": "user", "content": f"{number} the cat sat"}], []
        for turn in range(3):
            reply = ask(messages, max_tokens=4)
            report.check(reply.status_code == 200, f"conversation {number}, turn {turn}: {reply.status_code} {reply.text[:200]}")
            answer = reply.json()
            places.append(reply.headers["x-flambeau-replica"])
            cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            report.check(cached > 0 or turn == 0, f"conversation {number}, turn {turn} computed its whole prompt")
            messages += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, {"role": "user", "content": "on"}]
        report.check(len(set(places)) == 1, f"conversation {number} went to {places}")
        seen.add(places[0])
    report.check(len(seen) == 2, f"all conversations went to {seen}")
    places = {ask([{"role": "user", "content": f"{i}"}], key="one", max_tokens=1).headers["x-flambeau-replica"] for i in range(4)}
    report.check(len(places) == 1, f"requests of one session went to {places}")


def check_streaming(report):
    request = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 40, "stream": True}
    with httpx.stream("POST", f"{ADDRESS}/v1/chat/completions", json=request, timeout=120) as reply:
        report.check(reply.headers["content-type"].startswith("text/event-stream"), f"a stream has {reply.headers['content-type']}")
        began, times, text = time.monotonic(), [], b""
        for piece in reply.iter_raw():
            times.append(time.monotonic() - began)
            text += piece
    report.check(text.endswith(b"data: [DONE]\n\n"), f"a stream ends with {text[-80:]}")
    report.check(len(times) > 1, "a stream came in one piece")
    print(f"serve: a stream of {text.count(b'data: ')} events came in {len(times)} pieces, from {times[0]:.3f} s to {times[-1]:.3f} s")


def check_disconnect(report):
    """A client that goes away ends its request. Needs an answer that lasts."""
    model = httpx.get(f"{ADDRESS}/v1/models", timeout=30).json()["data"][0]
    if (model["context_length"] or 0) < LONG:
        print("serve: left out, the model's answers are too short to leave one")
        return
    # A form that takes many tokens.
    form = {"type": "array", "items": {"type": "integer"}, "minItems": LONG}
    request = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": LONG // 2, "stream": True}
    request["response_format"] = {"type": "json_schema", "json_schema": {"name": "numbers", "schema": form}}
    with httpx.stream("POST", f"{ADDRESS}/v1/chat/completions", json=request, timeout=120) as reply:
        # The stream closes when its iterator is dropped.
        pieces = reply.iter_raw()
        next(pieces)
        wait_for("the running request", lambda: metric("running") == 1)
        pieces.close()
    wait_for("the end of the left request", lambda: metric("running") == 0)
    report.check(metric("cancelled_total") == 1, "the left request was not cancelled")


def metric(name):
    """A metric of the only replica."""
    return int(re.search(rf"^flambeau_{name}{{.*}} (\d+)$", httpx.get(f"{ADDRESS}/metrics", timeout=30).text, re.MULTILINE)[1])


def check_errors(report):
    reply = ask([], max_tokens=4)
    report.check(reply.status_code == 400 and "error" in reply.json(), f"no messages: {reply.status_code}")
    report.check(httpx.get(f"{ADDRESS}/none", timeout=30).status_code == 404, "an unknown path is found")
    report.check(httpx.get(f"{ADDRESS}/v1/models", timeout=30).json()["data"], "there are no models")


def check_restart(report):
    """The end of a server refuses a few requests at most, and another one takes its place."""
    before = servers()
    report.check(len(before) == 2, f"servers: {before}")
    os.kill(before[0], signal.SIGKILL)
    statuses = []

    def is_back():
        replies = [ask([{"role": "user", "content": f"{number} again"}], max_tokens=4) for number in range(8)]
        statuses.extend(reply.status_code for reply in replies)
        now = servers()
        return len(now) == 2 and before[0] not in now and all(reply.status_code == 200 for reply in replies)

    wait_for("the second server", is_back)
    actor = int(re.search(r"PPid:\t(\d+)", Path(f"/proc/{before[1]}/status").read_text())[1])
    os.kill(actor, signal.SIGKILL)
    wait_for("the end of the server whose actor ended", lambda: not is_running(before[1]))
    wait_for("the replica in its place", lambda: len(servers()) == 2)
    report.check(set(statuses) <= {200, 503}, f"answers while a server restarted: {statuses}")
    print(f"serve: {statuses.count(200)} answers and {statuses.count(503)} refusals while a server restarted")


def check_serve(report, flambeau, model):
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    scale = {"min_replicas": 1, "max_replicas": 2, "upscale_delay_s": 0, "downscale_delay_s": 3600}
    options = serve_app.Options(models=[f"chat={model}"], command=flambeau, parallel=1, num_cpus=0.5, **scale)
    began = time.monotonic()
    serve.run(serve_app.app(options), name="flambeau")
    print(f"serve: up in {time.monotonic() - began:.1f} s")
    check_errors(report)
    check_streaming(report)
    check_disconnect(report)
    check_scaling(report)
    check_routing(report)
    check_restart(report)
    last = servers()
    serve.shutdown()
    wait_for("the end of the servers", lambda: not any(map(is_running, last)))


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("flambeau")
    arguments.add_argument("model")
    arguments.add_argument("--skip", choices=["batch", "serve"])
    args = arguments.parse_args()
    flambeau, model = (str(Path(path).resolve()) for path in (args.flambeau, args.model))
    report = Report()
    environment = {"working_dir": str(FOLDER)}
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, runtime_env=environment, log_to_driver=False)
    if args.skip != "batch":
        with tempfile.TemporaryDirectory() as folder:
            check_batch(report, flambeau, model, Path(folder))
    if args.skip != "serve":
        check_serve(report, flambeau, model)
    ray.shutdown()
    print(f"{report.passed} passed, {report.failed} failed")
    return int(report.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
