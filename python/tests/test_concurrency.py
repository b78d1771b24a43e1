"""Threads, forks, signals and memory."""

import gc
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from cases import DATA, values

import flambeau
from flambeau.runtime import Runtime

MLP = DATA / "mlp.pte"


def test_fifty_threads_share_a_method(mlp):
    inputs = [np.full((1 + i % 3, 4), i, np.float32) for i in range(50)]
    expected = [values(mlp.execute([x])[0]).copy() for x in inputs]
    wrong = []

    def work(i):
        for _ in range(20):
            if not np.array_equal(values(mlp.execute([inputs[i]])[0]), expected[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_fifty_threads_load_and_run_programs():
    failures = []

    def work():
        try:
            method = Runtime.get().load_program(MLP).load_method("forward")
            assert method.execute([np.ones((1, 4), np.float32)])[0].shape == (1, 2)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_ten_thousand_calls_do_not_leak(mlp):
    x = np.ones((64, 4), np.float32)

    def call(count):
        for _ in range(count):
            mlp.execute([x])
            flambeau.Tensor(x).__dlpack__()
            try:
                mlp.execute([x, x])
            except flambeau.InputError:
                pass
        gc.collect()

    call(500)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    references = sys.getrefcount(x)
    call(10_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # A leaked output would take 5 MB in total, a leaked input 10 MB.
    assert grown < 3000, f"{grown} KiB"
    assert sys.getrefcount(x) == references


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_process_is_told_to_load_again(mlp):
    mlp.execute([np.ones((1, 4), np.float32)])

    def child(results):
        x = np.ones((1, 4), np.float32)
        try:
            mlp.execute([x])
            results.put("no error")
        except flambeau.ExecutionError as error:
            results.put(str(error))
        again = Runtime.get().load_program(MLP).load_method("forward")
        results.put(values(again.execute([x])[0]).tolist())

    context = multiprocessing.get_context("fork")
    results = context.Queue()
    process = context.Process(target=child, args=(results,))
    process.start()
    assert "load it again in this process" in results.get(timeout=60)
    assert results.get(timeout=60) == values(mlp.execute([np.ones((1, 4), np.float32)])[0]).tolist()
    process.join(60)
    assert process.exitcode == 0


def test_other_threads_run_while_a_method_computes(mlp):
    # Without releasing the interpreter lock, the counter would not advance during a call.
    program = Runtime.get().load_program(MLP)
    method = program.load_method("forward")
    x = np.ones((64, 4), np.float32)
    counted, done = [0], threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    for _ in range(300):
        method.execute([x])
    done.set()
    thread.join()
    assert counted[0] > 10


@pytest.mark.skipif(sys.platform == "win32", reason="signals are POSIX's")
def test_ctrl_c_ends_a_generation(tmp_path):
    # A job that a shell starts in the background ignores SIGINT, and so do its children.
    script = f"""
import flambeau, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
model = flambeau.LLM({str(DATA / "tiny-llama")!r}, qlinear="none", cache_dir={str(tmp_path)!r}, threads=1)
stream = model.generate("the cat", stream=True, max_new_tokens=8)
print("ready", flush=True)
try:
    while True:
        model.generate("the cat sat on", max_new_tokens=48, ignore_eos=True)
except KeyboardInterrupt:
    assert model.generate("the cat", max_new_tokens=4, ignore_eos=True).generated_tokens == 4
    print("interrupted", flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == "ready"
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline().strip() == "interrupted"
    assert process.wait(30) == 0
