#!/usr/bin/env python3
"""Measures a server of OpenAI's protocol, and a rival in turn with it.

    python3 scripts/bench/serve.py MODEL [--threads N] [--rounds N] [--rival 'COMMAND --port {port}']
    python3 scripts/bench/serve.py smollm2.pte --threads 2 \\
        --rival 'llama-server -m smollm2-Q4_1.gguf -t 2 -np 8 -c 16384 --no-webui --port {port}'

Tells, as medians of the rounds:
- the tokens a second of 1, 4 and 8 clients together, from the first token of the last one to the last token of the first one;
- the seconds to the first token of a prompt of some 400 words, alone and while 7 others generate;
- the same for a prompt of some 800 words, the first time and when it is known but for its end.
Every answer is a stream, and greedy. Build Flambeau first: cargo build --release -p flambeau-cli
"""
import argparse
import http.client
import json
import pathlib
import random
import shlex
import socket
import statistics
import subprocess
import sys
import threading
import time

FLAMBEAU = pathlib.Path(__file__).resolve().parents[2] / "target/release/flambeau"
WORDS = "time year people way day man thing woman life child world school state family student group country problem hand part".split()


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Server:
    def __init__(self, command):
        self.port = free_port()
        words = [word.format(port=self.port) for word in command]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            if self.process.poll() is not None:
                sys.exit(f"{words[0]} ended with code {self.process.returncode}")
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
                connection.request("GET", "/health")
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        sys.exit(f"{words[0]} does not answer")

    def stop(self):
        self.process.terminate()
        self.process.wait(60)

    def times(self, prompt, tokens):
        """When the request was sent, and when each piece of its answer came."""
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        times = [time.monotonic()]
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            sys.exit(f"status {response.status}: {response.read()[:300]}")
        for line in response:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["text"]:
                times.append(time.monotonic())
        connection.close()
        return times


def text(words, seed):
    draw = random.Random(seed)
    return " ".join(draw.choice(WORDS) for _ in range(words))


def together(server, count, tokens, seed):
    found = [None] * count
    threads = [threading.Thread(target=lambda i=i: found.__setitem__(i, server.times(text(8, seed + i), tokens))) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def rate(server, count, tokens, seed):
    """Pieces a second while all generate."""
    found = together(server, count, tokens, seed)
    start, end = max(times[1] for times in found), min(times[-1] for times in found)
    return sum(start < at <= end for times in found for at in times[1:]) / (end - start)


def first(server, prompt):
    times = server.times(prompt, 4)
    return times[1] - times[0]


def busy(server, prompt, seed):
    """The seconds to the first token while 7 others generate."""
    others = threading.Thread(target=together, args=(server, 7, 300, seed))
    others.start()
    time.sleep(1.0)
    took = first(server, prompt)
    others.join()
    return took


def measure(server, seed):
    system = text(800, seed)
    cold, known = first(server, system + " one"), first(server, system + " two")
    return {
        "tokens/s of 1": rate(server, 1, 200, seed + 1000),
        "tokens/s of 4": rate(server, 4, 200, seed + 2000),
        "tokens/s of 8": rate(server, 8, 200, seed + 3000),
        "first token, 400 words, s": first(server, text(400, seed + 1)),
        "the same beside 7 others, s": busy(server, text(400, seed + 2), seed + 4000),
        "first token, 800 words, s": cold,
        "the same, known but for the end, s": known,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rival")
    args = parser.parse_args()
    ours = [str(FLAMBEAU), "serve", args.model, "--port", "{port}", "--parallel", "8", "--sequences", "16", "--threads", str(args.threads)]
    commands = {"Flambeau": ours} | ({"rival": shlex.split(args.rival)} if args.rival else {})
    found = {name: [] for name in commands}
    for number in range(args.rounds):
        for name, command in commands.items():
            server = Server(command)
            first(server, "warm up")
            found[name].append(measure(server, 10_000 * (number + 1)))
            server.stop()
            print(f"round {number + 1}: {name} is done", file=sys.stderr)
    print("| | " + " | ".join(commands) + " |\n|---|" + "---:|" * len(commands))
    for key in found["Flambeau"][0]:
        medians = [statistics.median(run[key] for run in runs) for runs in found.values()]
        print(f"| {key} | " + " | ".join(f"{value:.3f}" if "s" == key[-1] and "/" not in key else f"{value:.1f}" for value in medians) + " |")


if __name__ == "__main__":
    main()
