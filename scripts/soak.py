#!/usr/bin/env python3
"""Keeps a server busy with many clients of all kinds, and says whether it stays well.

    python3 scripts/soak.py MODEL [--speech MODEL --recording FILE] [--clients 64] [--minutes 20] [-- OPTIONS OF flambeau serve]
    python3 scripts/soak.py models/smollm2-4bit.pte --speech models/whisper-tiny-en.pte --recording talk.wav
    python3 scripts/soak.py models/smollm2-4bit.pte --clients 2 --pause 3 --minutes 60
    python3 scripts/soak.py models/smollm2-4bit.pte --clients 2 --only distinct --minutes 60

Clients stream or wait, chat, continue texts, ask for JSON of a schema, for calls of tools and for transcripts, go away in the midst of an
answer, and send what is no request. Three things must hold: nobody gets an answer that its request does not explain; a greedy answer is what
the server gave to the same request when it was alone, unless a part of its prompt was there already; and no client waits much longer than the others. The
server's memory is read every second (Linux), and printed every five minutes; its slope is that of the run's second half.
Exits with 1 if something is wrong.
Build Flambeau first: cargo build --release -p flambeau-cli
"""
import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import threading
import time

FLAMBEAU = os.environ.get("FLAMBEAU") or pathlib.Path(__file__).resolve().parent.parent / "target/release/flambeau"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"]}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "town", "schema": {
    "type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "size": {"type": "integer", "maximum": 9}},
    "required": ["name", "size"], "additionalProperties": False}}}
QUESTIONS = ["What is the capital of France?", "Name three colours.", "Why is the sky blue?", "Tell me a joke about a cat.",
             "What is seven times eight?", "Who wrote Hamlet?", "How do bees make honey?", "What is a prime number?"]


class Wrong(Exception):
    """What a client must not see."""


class Server:
    def __init__(self, args):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        models = [f"text={args.model}"] + ([f"speech={args.speech}"] if args.speech else [])
        options = ["--port", str(self.port), "--metrics", "--log-level", "warn", "--queue", str(2 * args.clients), *args.options]
        self.process = subprocess.Popen([FLAMBEAU, "serve", *models, *options], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            print("  " + line.rstrip(), file=sys.stderr)
            if line.startswith("listening on"):
                break
        else:
            sys.exit("the server did not start")
        self.complaints = []
        threading.Thread(target=self.read_log, daemon=True).start()

    def read_log(self):
        for line in self.process.stderr:
            self.complaints.append(line.rstrip())

    def memory(self):
        """Resident MiB; None where the system does not tell."""
        try:
            pages = int(pathlib.Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        except (OSError, IndexError):
            return None
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def request(self, path, body, kind="application/json"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        connection.request("POST", path, body if isinstance(body, bytes) else json.dumps(body), {"content-type": kind})
        return connection, connection.getresponse()

    def ask(self, path, body, kind="application/json"):
        connection, response = self.request(path, body, kind)
        data = response.read()
        connection.close()
        if response.status != 200:
            raise Wrong(f"{path}: status {response.status}: {data[:300]}")
        return json.loads(data)

    def events(self, path, body, most=None):
        """The events of a stream, of which no more than `most` are read."""
        connection, response = self.request(path, {**body, "stream": True})
        if response.status != 200:
            raise Wrong(f"{path}: status {response.status}: {response.read()[:300]}")
        events = []
        for line in response:
            if line.startswith(b"data: [DONE]"):
                break
            if line.startswith(b"data: "):
                events.append(json.loads(line[6:]))
                if "error" in events[-1]:
                    raise Wrong(f"{path}: {events[-1]}")
            if most and len(events) >= most:
                break
        else:
            raise Wrong(f"{path}: the stream breaks off")
        connection.close()
        return events


def chat(question, **more):
    return {"model": "text", "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 40, **more}


class Kinds:
    """What clients do."""

    def __init__(self, server, args):
        self.server = server
        self.only = args.only
        # Computed alone, and from the beginning.
        self.alone = {q: self.text(server.ask("/v1/chat/completions", chat(q, cache_prompt=False))) for q in QUESTIONS}
        self.form = None
        if args.speech:
            sound = pathlib.Path(args.recording).read_bytes()
            parts = [b"--x\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\nspeech\r\n",
                     b"--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n", sound, b"\r\n--x--\r\n"]
            self.form = b"".join(parts)
            self.said = self.transcript()

    def transcript(self):
        return self.server.ask("/v1/audio/transcriptions", self.form, "multipart/form-data; boundary=x")["text"]

    @staticmethod
    def text(answer):
        return answer["choices"][0]["message"]["content"]

    def whole(self, draw):
        question = draw.choice(QUESTIONS)
        text = self.text(self.server.ask("/v1/chat/completions", chat(question, cache_prompt=False)))
        if text != self.alone[question]:
            raise Wrong(f"{question} {text!r}, alone {self.alone[question]!r}")

    def stream(self, draw):
        question = draw.choice(QUESTIONS)
        events = self.server.events("/v1/chat/completions", chat(question, cache_prompt=False))
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events if event["choices"])
        if text != self.alone[question]:
            raise Wrong(f"{question} {text!r}, alone {self.alone[question]!r}")

    def continued(self, draw):
        told = " ".join(draw.choice(QUESTIONS) for _ in range(draw.randint(1, 30)))
        answer = self.server.ask("/v1/chat/completions", chat(told, temperature=0.8, seed=draw.randint(0, 99), n=draw.randint(1, 2)))
        if not all(choice["finish_reason"] in ("stop", "length") for choice in answer["choices"]):
            raise Wrong(str(answer))

    def distinct(self, draw):
        """A prompt of 20 to 400 words that no other request begins like."""
        words = " ".join("".join(draw.choices("abcdefghiklmnoprstuvw", k=draw.randint(1, 6))) for _ in range(draw.randint(20, 400)))
        self.server.ask("/v1/completions", {"model": "text", "prompt": words, "max_tokens": 12})

    def completion(self, draw):
        prompts = draw.sample(QUESTIONS, 2)
        answer = self.server.ask("/v1/completions", {"model": "text", "prompt": prompts, "max_tokens": 20, "logprobs": 1})
        if len(answer["choices"]) != 2:
            raise Wrong(str(answer))

    def schema(self, draw):
        answer = self.server.ask("/v1/chat/completions", chat("Name a town.", response_format=SCHEMA, temperature=1, max_tokens=80))
        found = json.loads(self.text(answer))
        if set(found) != {"name", "size"}:
            raise Wrong(str(found))

    def messages(self, draw):
        events = self.server.events("/v1/messages", {"model": "text", "max_tokens": 30,
                                                      "messages": [{"role": "user", "content": draw.choice(QUESTIONS)}]}, most=4)
        if events[0]["type"] != "message_start":
            raise Wrong(str(events))

    def gone(self, draw):
        self.server.events("/v1/chat/completions", chat("Tell me a very long story.", max_tokens=500), most=draw.randint(1, 20))

    def hostile(self, draw):
        body = draw.choice([b"", b"{", b'{"messages": 3}', b'{"messages": [], "temperature": 9}', os.urandom(2000)])
        connection, response = self.server.request("/v1/chat/completions", body)
        if response.status not in (400, 413, 415):
            raise Wrong(f"status {response.status} for {body[:40]}")
        response.read()
        connection.close()

    def spoken(self, draw):
        text = self.transcript()
        if text != self.said:
            raise Wrong(f"{text!r}, alone {self.said!r}")

    def all(self):
        kinds = [self.whole, self.stream, self.continued, self.distinct, self.completion, self.schema, self.messages, self.gone, self.hostile]
        kinds += [self.spoken] if self.form else []
        return [kind for kind in kinds if not self.only or kind.__name__ in self.only]


class Tally:
    def __init__(self):
        self.lock = threading.Lock()
        self.done = collections.Counter()
        self.longest = collections.Counter()
        self.by_client = collections.Counter()
        self.wrong = []

    def note(self, client, kind, took, error):
        with self.lock:
            self.done[kind] += 1
            self.by_client[client] += 1
            self.longest[kind] = max(self.longest[kind], took)
            if error:
                self.wrong.append(f"{kind}: {error}")


def work(client, kinds, tally, end, pause):
    draw = random.Random(client)
    while time.monotonic() < end:
        time.sleep(draw.uniform(0, 2 * pause))
        kind = draw.choice(kinds.all())
        began, error = time.monotonic(), None
        try:
            kind(draw)
        except Exception as failure:  # Whatever a client meets is told at the end.
            error = f"{type(failure).__name__}: {failure}"
        tally.note(client, kind.__name__, time.monotonic() - began, error)


def slope(samples):
    """MiB a minute of the later half, by least squares."""
    late = samples[len(samples) // 2:]
    if len(late) < 2:
        return None
    x0, y0 = (sum(v) / len(late) for v in zip(*late))
    return 60 * sum((x - x0) * (y - y0) for x, y in late) / sum((x - x0) ** 2 for x, _ in late)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--speech")
    parser.add_argument("--recording")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--pause", type=float, default=0, help="mean seconds that a client waits before a request")
    parser.add_argument("--only", nargs="+", metavar="KIND", help="kinds of requests, such as distinct; all without it")
    # By hand: the parser takes nothing behind `--` when options stand between the model and it.
    own, options = sys.argv[1:], []
    if "--" in own:
        own, options = own[: own.index("--")], own[own.index("--") + 1 :]
    args = parser.parse_args(own, argparse.Namespace(options=options))
    if bool(args.speech) != bool(args.recording):
        parser.error("--speech and --recording go together")
    server = Server(args)
    kinds, tally = Kinds(server, args), Tally()
    if not kinds.all():
        parser.error(f"--only {' '.join(args.only)} names no kind")
    end = time.monotonic() + 60 * args.minutes
    threads = [threading.Thread(target=work, args=(client, kinds, tally, end, args.pause)) for client in range(args.clients)]
    for thread in threads:
        thread.start()
    began, memory = time.monotonic(), []
    while any(thread.is_alive() for thread in threads):
        time.sleep(1)
        if (used := server.memory()) is not None:
            memory.append((time.monotonic() - began, used))
            if len(memory) % 300 == 1:
                print(f"{memory[-1][0] / 60:4.0f} min {used:6.0f} MiB", flush=True)
    server.process.terminate()
    code = server.process.wait(60)
    seconds = time.monotonic() - began
    for kind, count in sorted(tally.done.items()):
        print(f"{kind:12} {count:7} requests, the longest {tally.longest[kind]:6.1f} s")
    fewest, most = min(tally.by_client.values()), max(tally.by_client.values())
    print(f"{sum(tally.done.values())} requests of {args.clients} clients in {seconds:.0f} s; each client had {fewest} to {most}")
    if memory:
        grows = slope(memory)
        print(f"memory {memory[0][1]:.0f} MiB at the start, {max(m for _, m in memory):.0f} at most, {memory[-1][1]:.0f} at the end"
              + ("" if grows is None else f"; {grows:+.2f} MiB a minute in the second half"))
    for line in (tally.wrong + server.complaints)[:20]:
        print("WRONG " + line)
    print(f"{len(tally.wrong)} wrong answers, {len(server.complaints)} complaints of the server, exit code {code}")
    sys.exit(bool(tally.wrong or server.complaints or code))


if __name__ == "__main__":
    main()
