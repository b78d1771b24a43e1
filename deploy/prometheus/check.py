#!/usr/bin/env python3
"""Checks the configuration, rules and dashboard of this folder against a real Prometheus that reads a running server under load.

Usage: check.py FLAMBEAU MODEL [--seconds N]

FLAMBEAU is the program, MODEL what `flambeau serve` takes. Needs the programs prometheus and promtool, and nothing else than Python.
Every query of the dashboard, every recorded series, and the left side of every alert must return numbers.
"""

import argparse
import json
import math
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent))

from report import Report  # noqa: E402

CLIENTS = 6
# An alert is one expression beside one number.
ALERT = re.compile(r"(?P<left>.*) (?:>|<|>=|<=|==|!=) [0-9.]+", re.DOTALL)
# What Grafana puts in for its variables.
VARIABLES = {"$__rate_interval": "1m", "$model": ".*", "$instance": ".*"}


def fetch(url, body=None):
    headers = {"content-type": "application/json"} if body else {}
    data = json.dumps(body).encode() if body else None
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=60) as reply:
        return reply.read().decode()


def run(*command):
    """Runs a program; returns whether it succeeded, and what it printed."""
    done = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout + done.stderr


@contextmanager
def process(command, log):
    with open(log, "w") as output:
        child = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(timeout=60)


def wait_for(what, attempt, seconds=120):
    """The first result of `attempt` that is not empty."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            if result := attempt():
                return result
        except OSError:
            pass
        time.sleep(0.2)
    raise SystemExit(f"{what} did not come within {seconds} s")


def load(server, stop, errors):
    """Asks one question after the other. All questions have the same beginning; every second answer streams."""
    number = 0
    while not stop.is_set():
        number += 1
        question = "the cat sat on a mat " + "and the dog " * (number % 3)
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 24, "n": 1 + number % 2, "stream": number % 2 == 0}
        try:
            fetch(f"{server}/v1/chat/completions", body)
        except urllib.error.HTTPError as error:
            if error.code != 429:
                errors.append(f"{error.code}: {error.read().decode()[:200]}")
        stop.wait(0.02)


def numbers(prometheus, query):
    """The values that a query has now."""
    url = f"{prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    result = json.loads(fetch(url))["data"]["result"]
    return [float(sample["value"][1]) for sample in result]


def check_query(failures, prometheus, name, query):
    try:
        values = numbers(prometheus, query)
    except urllib.error.HTTPError as error:
        failures.check(False, f"{name}: {query}: {error.read().decode()}")
        return
    failures.check(values, f"{name}: no data: {query}")
    failures.check(not any(map(math.isnan, values)), f"{name}: not a number: {query}")


def check_dashboard(failures, prometheus):
    board = json.loads((FOLDER / "dashboard.json").read_text())
    ids = [panel["id"] for panel in board["panels"]]
    failures.check(len(ids) == len(set(ids)), "the dashboard: two panels have the same id")
    taken = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        failures.check(not cells & taken and at["x"] + at["w"] <= 24, f"the dashboard: {panel['title']} lies over another panel")
        taken |= cells
        for target in panel.get("targets", []):
            query = target["expr"]
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            check_query(failures, prometheus, panel["title"], query)
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            query = f"count by ({metric[2]}) ({metric[1].replace('$model', '.*')})"
            check_query(failures, prometheus, variable["label"], query)


def check_rules(failures, prometheus):
    groups = json.loads(fetch(f"{prometheus}/api/v1/rules"))["data"]["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        name = rule["name"]
        failures.check(rule["health"] == "ok", f"{name}: {rule['health']}: {rule.get('lastError')}")
        if rule["type"] == "recording":
            check_query(failures, prometheus, name, name)
            continue
        alert = ALERT.fullmatch(rule["query"])
        failures.check(alert, f"{name}: the alert is not one expression beside one number: {rule['query']}")
        if alert:
            check_query(failures, prometheus, name, alert["left"])


def check_exposition(failures, text):
    """Lints the server's metrics. vLLM's names have a colon, which promtool reserves for recorded series."""
    lint = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    others = [line for line in lint.stderr.splitlines() if not re.fullmatch(r"vllm:\S+ metric names should not contain ':'", line)]
    failures.check(not others, "\n".join(["promtool check metrics", *others]))


def configuration(server, folder):
    """A copy of the configuration that reads this server twice a second."""
    text = (FOLDER / "prometheus.yml").read_text()
    for old, new in (("127.0.0.1:8080", server.removeprefix("http://")), ("15s", "500ms"), ("rules.yml", str(FOLDER / "rules.yml"))):
        if old not in text:
            raise SystemExit(f"prometheus.yml does not hold {old}")
        text = text.replace(old, new)
    path = folder / "prometheus.yml"
    path.write_text(text)
    return path


def observe(failures, server, folder, seconds):
    """Reads the server by a Prometheus while clients use it."""
    stop, errors = threading.Event(), []
    clients = [threading.Thread(target=load, args=(server, stop, errors)) for _ in range(CLIENTS)]
    config, log = configuration(server, folder), folder / "prometheus.log"
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}", "--web.listen-address=127.0.0.1:0"]
    with process(command, log):
        # The log names the port.
        found = wait_for("Prometheus", lambda: re.search(r'address=(?:127\.0\.0\.1|\S*):([1-9]\d*)', log.read_text()))
        prometheus = f"http://127.0.0.1:{found[1]}"
        wait_for("Prometheus", lambda: fetch(f"{prometheus}/-/ready"))
        for client in clients:
            client.start()
        try:
            time.sleep(seconds)
            check_dashboard(failures, prometheus)
            check_rules(failures, prometheus)
            check_exposition(failures, fetch(f"{server}/metrics"))
            rate = numbers(prometheus, "sum(rate(vllm:generation_tokens_total[1m]))")
            print(f"{sum(rate):.0f} tokens/s while Prometheus read the server")
        finally:
            stop.set()
            for client in clients:
                client.join()
    failures.check(not errors, f"{len(errors)} requests failed, such as {errors[:1]}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("flambeau")
    arguments.add_argument("model")
    arguments.add_argument("--seconds", type=float, default=20, help="time of the load before the queries")
    args = arguments.parse_args()
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            print(f"skipped: there is no {program}", file=sys.stderr)
            return 0
    failures = Report()
    for command in (("check", "config", "prometheus.yml"), ("check", "rules", "rules.yml"), ("test", "rules", "rules-test.yml")):
        holds, output = run("promtool", *command)
        failures.check(holds, f"promtool {' '.join(command)}:\n{output}")
    with tempfile.TemporaryDirectory() as name:
        folder, log = Path(name), Path(name) / "server.log"
        # Few places, so that requests also wait.
        command = [args.flambeau, "serve", args.model, "--metrics", "--port", "0", "--parallel", "2", "--log-level", "warn"]
        with process(command, log):
            found = wait_for("the server", lambda: re.search(r"listening on (http://\S+)", log.read_text()))
            observe(failures, found[1], folder, args.seconds)
    print(f"{failures.passed} passed, {failures.failed} failed")
    return int(failures.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
