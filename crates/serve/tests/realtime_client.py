"""Transcribes while it sends, as OpenAI's users do. Usage: realtime_client.py URL RECORDING TRANSCRIPT; prints what worked as JSON."""

import base64
import json
import math
import random
import struct
import sys
import wave

import openai
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

URL, RECORDING, TRANSCRIPT = sys.argv[1:]
client = openai.OpenAI(base_url=URL + "/v1", api_key="sk-test", max_retries=0)
MODEL = "parakeet-tdt"


def session(detection, rate=16000):
    audio = {"format": {"type": "audio/pcm", "rate": rate}, "transcription": {"model": MODEL}, "turn_detection": detection}
    return {"type": "transcription", "audio": {"input": audio}}


def send(connection, sound, block=3200):
    for at in range(0, len(sound), block):
        connection.input_audio_buffer.append(audio=base64.b64encode(sound[at : at + block]).decode())


def until(connection, kind):
    """The events up to the first of a kind."""
    events = []
    for event in connection:
        assert event.type != "error", event
        assert event.event_id, event
        events.append(event)
        if event.type == kind:
            return events


def check_transcript(events):
    deltas = "".join(event.delta for event in events if event.type.endswith("transcription.delta"))
    done = events[-1]
    assert deltas.strip() == done.transcript and done.usage.type == "duration" and done.content_index == 0, events
    return done


def commits():
    with wave.open(RECORDING) as recording:
        assert (recording.getframerate(), recording.getnchannels(), recording.getsampwidth()) == (16000, 1, 2)
        sound = recording.readframes(recording.getnframes())
    with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        assert connection.recv().type == "session.created"
        connection.session.update(session=session(None))
        updated = connection.recv()
        assert updated.type == "session.updated" and updated.session.audio.input.transcription.model == MODEL, updated
        items = []
        for _ in range(2):
            send(connection, sound)
            connection.input_audio_buffer.commit()
            events = until(connection, "conversation.item.input_audio_transcription.completed")
            [committed] = [event for event in events if event.type == "input_audio_buffer.committed"]
            assert committed.previous_item_id == (items[-1] if items else None), committed
            done = check_transcript(events)
            assert done.item_id == committed.item_id and done.transcript == TRANSCRIPT, (done, TRANSCRIPT)
            assert abs(done.usage.seconds - len(sound) / 32000) < 0.1, done
            assert {"conversation.item.added", "conversation.item.done"} <= {event.type for event in events}, events
            items.append(done.item_id)
        send(connection, sound)
        connection.input_audio_buffer.clear()
        until(connection, "input_audio_buffer.cleared")


def turns():
    draw = random.Random(1)

    def sound(seconds, loud):
        for at in range(int(seconds * 24000)):
            time = at / 24000
            tone = math.sin(time * 1500 * (1 + 0.1 * math.sin(time * 9))) * (0.6 + 0.4 * math.sin(time * 25))
            yield int(loud * tone + draw.random() * 20)

    parts = [(3, 0), (1.5, 9000), (2, 0), (1.5, 9000), (2, 0)]
    samples = [sample for part in parts for sample in sound(*part)]
    with client.realtime.connect(model=MODEL, extra_query={"intent": "transcription"}) as connection:
        connection.session.update(session=session({"type": "server_vad", "silence_duration_ms": 600}, rate=24000))
        send(connection, struct.pack(f"<{len(samples)}h", *samples), 48000)
        # The second turn may begin before the first is written down.
        parts = [until(connection, "conversation.item.input_audio_transcription.completed") for _ in range(2)]
        started, stopped, done = (
            [event for part in parts for event in part if event.type.endswith(kind)] for kind in ("started", "stopped", "completed")
        )
        check_transcript(parts[0])
        check_transcript(parts[1])
        times = [(first.audio_start_ms, last.audio_end_ms) for first, last in zip(started, stopped, strict=True)]
        wanted = [(3000, 5100), (6500, 8600)]
        assert all(abs(a - b) < 400 for pair in zip(times, wanted, strict=True) for a, b in zip(*pair)), times
        items = [event.item_id for event in started]
        assert items == [event.item_id for event in stopped] == [event.item_id for event in done] and len(set(items)) == 2, items


def errors():
    with client.realtime.connect(extra_query={"intent": "transcription"}) as connection:
        assert connection.recv().type == "session.created"
        for event, param in [
            ({"type": "response.create", "event_id": "mine"}, "type"),
            ({"type": "input_audio_buffer.commit", "event_id": "mine"}, "audio"),
            ({"type": "input_audio_buffer.append", "audio": "%", "event_id": "mine"}, "audio"),
            ({"type": "session.update", "event_id": "mine", "session": {"type": "realtime"}}, "session.type"),
        ]:
            connection.send(event)
            answer = connection.recv()
            assert (answer.type, answer.error.event_id, answer.error.param) == ("error", "mine", param), answer
        connection.send({"type": "session.update", "session": {"audio": {"input": {"transcription": {"model": "nobody"}}}}})
        assert connection.recv().error.code == "model_not_found"


def browsers():
    address = URL.replace("http:", "ws:") + "/v1/realtime?intent=transcription"
    with connect(address, subprotocols=["realtime", "openai-insecure-api-key.sk-test"]) as socket:
        assert socket.subprotocol == "realtime" and json.loads(socket.recv())["type"] == "session.created"
    for wrong, status in [(["realtime", "openai-insecure-api-key.other"], 401), (["realtime"], 401)]:
        try:
            connect(address, subprotocols=wrong)
        except InvalidStatus as error:
            assert error.response.status_code == status, error
        else:
            raise AssertionError(f"{wrong} opens a session")


worked = []
for step in [commits, turns, errors, browsers]:
    step()
    worked.append(step.__name__)
print(json.dumps(worked))
