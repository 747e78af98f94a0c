"""What goes wrong: which exception, in which words; signals; forks; the end of the program."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from support import OURO, PROMPTS, engine, python

import loopspec
from loopspec import Engine, SamplingParams


class Refusals(unittest.TestCase):
    def test_models(self):
        for model in ("/nowhere/at/all", "ORG/NAME", "models/ouro-dem"):
            with self.subTest(model=model), self.assertRaisesRegex(FileNotFoundError, f"^model is {model}, "):
                Engine(model)
        with self.assertRaisesRegex(ValueError, "^model is empty"):
            Engine("")
        with self.assertRaisesRegex(TypeError, "^model is None, expected a folder or ORG/NAME"):
            Engine(None)
        # What can be done about it in Python, not at the command line.
        with self.assertRaisesRegex(FileNotFoundError, r'download it with: Engine\("ORG/NAME", pull=True\), or hf download ORG/NAME'):
            Engine("ORG/NAME")
        with self.assertRaisesRegex(ValueError, "^model is .*, a file, expected the folder"):
            Engine(__file__)
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(FileNotFoundError, "has no config.json: not a model folder"):
            Engine(folder)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
                file.write("{")
            with self.assertRaisesRegex(ValueError, "config.json"):
                Engine(folder)

    def test_arguments_of_an_engine(self):
        wrong = [({"device": "tpu"}, ValueError, "tpu"), ({"dtype": "int3"}, ValueError, "^dtype is 'int3', expected one of auto"),
                 ({"kv_type": "fp8"}, ValueError, "^kv_type is 'fp8', expected one of auto, bf16, int8"),
                 ({"kv_type": "loops", "recurrence": 3}, ValueError, "^kv_type is loops, expected .*no plan of keys was measured"),
                 ({"threads": -1}, ValueError, "^threads is -1"), ({"threads": 1.5}, TypeError, "^threads is 1.5, expected an integer"),
                 ({"kv_memory": "lots"}, ValueError, "^kv_memory is 'lots'"), ({"kv_memory": "120%"}, ValueError, "^kv_memory is '120%'"), ({"kv_memory": 0}, ValueError, "^kv_memory is 0"),
                 ({"depths": (2, 1)}, ValueError, "depths"), ({"depths": "1,2"}, TypeError, "^depths is '1,2'"),
                 ({"recurrences": [9]}, ValueError, "^recurrences is 9"), ({"max_queued": 0}, ValueError, "^max_queued is 0"),
                 ({"config": {"": 1}}, ValueError, "^config is "), ({"colour": 1}, TypeError, "colour")]
        for arguments, kind, words in wrong:
            with self.subTest(arguments=arguments), self.assertRaisesRegex(kind, words):
                Engine(OURO, **arguments)
        with self.assertRaises(TypeError):
            Engine(OURO, "cpu")  # by name alone

    def test_kv_memory_in_words(self):
        with Engine(OURO, kv_memory="64MiB", threads=1) as one, Engine(OURO, kv_memory=64 << 20, threads=1) as other:
            self.assertEqual(one.metrics["pages"], other.metrics["pages"])

    def test_parameters(self):
        wrong = [({"temperature": -1}, ValueError, "temperature is -1"), ({"temperature": "hot"}, TypeError, "^temperature is 'hot'"),
                 ({"top_p": 2}, ValueError, "^top_p is 2"), ({"max_tokens": -1}, ValueError, "^max_tokens is -1"),
                 ({"max_tokens": 2**40}, ValueError, "^max_tokens is"), ({"n": 0}, ValueError, "^n is 0"),
                 ({"seed": -1}, ValueError, "^seed is -1"), ({"stop_token_ids": [10**6]}, ValueError, "^stop_token_ids is 1000000"),
                 ({"stop": [3]}, TypeError, r"^stop\[0\] is 3"), ({"stop": 5}, TypeError, "^stop is 5, expected text, or a list"),
                 ({"stop": 0}, TypeError, "^stop is 0"), ({"ignore_eos": "false"}, TypeError, "^ignore_eos is 'false', expected True or False"),
                 ({"skip_special_tokens": 2}, TypeError, "^skip_special_tokens is 2"), ({"chat_template_kwargs": 5}, TypeError, "^chat_template_kwargs is 5"),
                 ({"max_tokens": "3"}, TypeError, "^max_tokens is '3'"), ({"max_tokns": 3}, TypeError, "'max_tokns': did you mean max_tokens"),
                 ({"logit_bias": {"cat": 1.0}}, TypeError, "^a key of logit_bias is 'cat'"), ({"logit_bias": {1: "x"}}, TypeError, r"^logit_bias\[1\] is 'x'"),
                 ({"top_k": -2}, ValueError, "^top_k is -2"), ({"min_p": 2}, ValueError, "^min_p is 2"), ({"logprobs": 10**6}, ValueError, "^logprobs is"),
                 ({"decoding": "magic"}, ValueError, "^decoding is 'magic', expected one of loopspec, ar, lookup"),
                 ({"sampler": "x"}, ValueError, "^sampler is 'x'"), ({"depths": (3,)}, ValueError, "^depths is 3, expected .*, which are loaded"),
                 ({"recurrence": 9}, ValueError, "^recurrence is 9, expected one of .* named when it is loaded"),
                 ({"temprature": 1}, TypeError, "'temprature': did you mean temperature"),
                 ({"logit_bias": {10**6: 1.0}}, ValueError, "^logit_bias is for token 1000000")]
        for arguments, kind, words in wrong:
            with self.subTest(arguments=arguments), self.assertRaisesRegex(kind, words):
                engine().generate("Hello", **arguments)
        with self.assertRaises(TypeError):
            SamplingParams(1)

    def test_prompts(self):
        wrong = [(3, TypeError, "^prompts is a int"), (b"x", TypeError, "bytes"), ([], None, ""), ([[]], ValueError, r"prompts\[0\] is empty"),
                 ("", ValueError, "empty"), ([1, "x"], TypeError, r"^prompt\[1\] is 'x'"), ([10**6], ValueError, "token 1000000"),
                 ([-5], ValueError, "token -5"), ("\ud800", ValueError, "^prompt has '.ud800' at 0, which is half a character"),
                 ({"role": "user"}, TypeError, "^prompt is one message"), ({"x": 1}, TypeError, "^prompt has x"),
                 ([1] * 100000, ValueError, "context"), (["Hello", [10**6]], ValueError, r"^prompts\[1\]: .*token 1000000"),
                 ([{"role": "user", "content": object()}], ValueError, "^prompt cannot be written as JSON")]
        for prompt, kind, words in wrong:
            with self.subTest(prompt=str(prompt)[:40]):
                if kind is None:
                    self.assertEqual(engine().generate(prompt), [])
                    continue
                with self.assertRaisesRegex(kind, words):
                    engine().generate(prompt)
        with self.assertRaisesRegex(TypeError, "^messages is"):
            engine().chat([1, 2])
        with self.assertRaisesRegex(TypeError, "^messages is a int"):
            engine().chat(5)
        for params, words in ((5, "^params is 5, expected SamplingParams"), ({"max_tokens": 3}, "^params is {'max_tokens': 3}"), ([5], r"^params\[0\] is 5")):
            with self.subTest(params=params), self.assertRaisesRegex(TypeError, words):
                engine().generate("Hello", params)
        with self.assertRaisesRegex(ValueError, "^params has 1 entries, expected one for each of 2"):
            engine().generate(["a", "b"], [SamplingParams()])

    def test_ids(self):
        with self.assertRaisesRegex(ValueError, r"^ids\[1\] is 1000000000, expected 0 to 8191"):
            engine().decode([1, 10**9])
        with self.assertRaisesRegex(ValueError, r"^ids\[0\] is -1, expected 0 to 8191"):
            engine().decode(-1)
        with self.assertRaisesRegex(TypeError, r"^ids\[0\] is 'x'"):
            engine().decode(["x"])
        with self.assertRaisesRegex(ValueError, "^id is 1000000000, expected 0 to 8191"):
            engine().token_bytes(10**9)
        with self.assertRaisesRegex(ValueError, r"^ids\[0\] is 1000000000, expected 0 to 8191"):
            engine().logits([10**9])

    def test_logits_without_numpy(self):
        program = f"""
import sys
sys.modules["numpy"] = None
import loopspec
try:
    loopspec.Engine({OURO!r}, threads=1).logits("Once")
except ImportError as error:
    print(error)
"""
        with python(program) as process:
            out, err = process.communicate(timeout=120)
        self.assertEqual(out, "logits are NumPy arrays, and NumPy is not installed: pip install 'loopspec[numpy]'\n", err)

    def test_names_that_people_look_for(self):
        self.assertEqual(loopspec.QueueFull.__module__, "loopspec")
        self.assertEqual(repr(loopspec.Engine), "<class 'loopspec.Engine'>")
        self.assertRegex(loopspec.__version__, r"^\d+\.\d+\.\d+$")
        for name in loopspec.__all__:
            self.assertTrue(getattr(loopspec, name).__doc__, name)
        for name, member in vars(loopspec.Engine).items():
            if not name.startswith("_"):
                self.assertTrue(member.__doc__, name)


LONG = f"""
import os, signal, sys, time
import loopspec
engine = loopspec.Engine({OURO!r}, threads=1)
def interrupted(work):
    print("ready", flush=True)
    try:
        work()
    except KeyboardInterrupt:
        print(time.time(), flush=True)
    end = time.monotonic() + 60
    while any(engine.metrics[key] for key in ("waiting", "prefilling", "decoding")):
        assert time.monotonic() < end
        time.sleep(0.01)
    print(engine.generate("Tom had a cat", max_tokens=5).text, flush=True)
"""
WORKS = {
    "generate": "interrupted(lambda: engine.generate(['Once upon a time'] * 400, max_tokens=900, ignore_eos=True))",
    "stream": "interrupted(lambda: list(engine.stream('Once upon a time', n=60, temperature=1, max_tokens=900, ignore_eos=True)))",
    "encode": "interrupted(lambda: [engine.encode('Once upon a time there was ' * 2_000_000) for _ in range(50)])",
    "calibrate": "interrupted(lambda: engine.calibrate(['Once upon a time', 'Tom had a cat'] * 40, save=False, use_tqdm=False))",
    "asyncio": """
import asyncio
async def read():
    async def one():
        async for token in engine.astream('Once upon a time', max_tokens=900, ignore_eos=True): pass
    await asyncio.gather(*(one() for _ in range(60)))
interrupted(lambda: asyncio.run(read()))""",
}


class Signals(unittest.TestCase):
    def test_ctrl_c_ends_the_wait_and_cancels(self):
        text = engine().generate("Tom had a cat", max_tokens=5).text
        for name, work in WORKS.items():
            with self.subTest(work=name), python(LONG + work) as process:
                self.assertEqual(process.stdout.readline(), "ready\n")
                time.sleep(0.3)
                sent = time.time()
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=120)
                self.assertEqual(process.returncode, 0, err)
                raised, after = out.splitlines()[0], "\n".join(out.splitlines()[1:])
                took = float(raised) - sent
                self.assertEqual(after, text)
                # 100 ms on a machine with nothing else to do; a busy one may let a process wait far longer.
                self.assertLess(took, 5)
                print(f"Ctrl-C in {name}: {1000 * took:.0f} ms")

    def test_a_calibration_is_given_up_in_the_middle_of_a_measurement(self):
        """What it is at ends by itself: nobody waits for it."""
        program = f"""
import os, loopspec
engine = loopspec.Engine({OURO!r}, threads=1)
def threads():
    return len(os.listdir("/proc/self/task"))
before = threads()
print("ready", flush=True)
try:
    engine.calibrate(["Once upon a time"], save=False, use_tqdm=False)
except KeyboardInterrupt:
    print("still at it" if threads() > before else "it was waited for", flush=True)
print(engine.generate("Tom had a cat", max_tokens=5).text, flush=True)
"""
        text = engine().generate("Tom had a cat", max_tokens=5).text
        for attempt in range(5):  # a process that gets no time for a while may find it at its end
            with python(program) as process:
                self.assertEqual(process.stdout.readline(), "ready\n")
                time.sleep(0.05)
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=120)
            self.assertEqual((process.returncode, out.splitlines()[1:]), (0, text.splitlines()), err)
            if out.startswith("still at it"):
                return
        self.fail(out)

    def test_a_handler_of_ones_own(self):
        program = LONG + """
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 0.2)
try:
    engine.generate(['Once upon a time'] * 400, max_tokens=900, ignore_eos=True)
except Stop:
    print("stopped")
"""
        with python(program) as process:
            out, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, out), (0, "stopped\n"), err)

    def test_loading_can_be_given_up(self):
        program = f"""
import signal
import loopspec
class Stop(Exception): pass
def stop(*_): raise Stop
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 0.02)
try:
    loopspec.Engine({OURO!r})
except Stop:
    print("stopped")
print(loopspec.Engine({OURO!r}).generate("Tom had a cat", max_tokens=5).text)
"""
        # Without a cache the costs of steps are measured, which takes half a second.
        environment = {**os.environ, "XDG_CACHE_HOME": "/dev/null/none"}
        with python(program, env=environment) as process:
            out, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, out), (0, "stopped\n" + engine().generate("Tom had a cat", max_tokens=5).text + "\n"), err)


class Processes(unittest.TestCase):
    def test_a_forked_child_gets_an_error_and_no_hang(self):
        program = LONG + """
stream = engine.stream("Once upon a time", max_tokens=900, ignore_eos=True)
next(stream)
pid = os.fork()
if pid == 0:
    for work in (lambda: engine.generate("x"), lambda: engine.encode("x"), lambda: next(engine.stream("x")), stream.cancel,
                 engine.close, lambda: [None for _ in stream], lambda: engine.metrics):
        try:
            work()
        except RuntimeError as error:
            assert "forked" in str(error), error
        else:
            os._exit(3)
    del stream, engine
    sys.exit(0)
_, status = os.waitpid(pid, 0)
print(os.waitstatus_to_exitcode(status))
stream.close()
print(len(engine.generate("Once", max_tokens=3).token_ids))
"""
        with python(program) as process:
            out, err = process.communicate(timeout=120)
        self.assertEqual((process.returncode, out), (0, "0\n3\n"), err)

    def test_multiprocessing(self):
        """With spawn a child loads a model of its own."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "several.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"""
import multiprocessing
import loopspec
def answer(prompt):
    with loopspec.Engine({OURO!r}, threads=1) as engine:
        return engine.generate(prompt, max_tokens=6).text
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(pool.map(answer, {PROMPTS[:2]!r}))
""")
            import sys

            done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=300, check=False)
        self.assertEqual(done.stdout, f"{[output.text for output in engine().generate(PROMPTS[:2], max_tokens=6)]}\n", done.stderr)

    def test_the_program_may_end_at_any_time(self):
        for end in ("", "sys.exit(5)", "stream = engine.stream('Once', max_tokens=900, ignore_eos=True); next(stream)",
                    "import threading; threading.Thread(target=lambda: engine.generate(['Once'] * 50, max_tokens=900, ignore_eos=True), "
                    "daemon=True).start(); time.sleep(0.1)"):
            with self.subTest(end=end), python(LONG + end) as process:
                process.communicate(timeout=120)
                self.assertEqual(process.returncode, 5 if "exit" in end else 0)

    def test_the_program_may_end_beside_a_thread_that_calls(self):
        """A call that begins when the others were waited for would come back to an interpreter that is gone."""
        end = """
import threading
def call():
    while True:
        try:
            engine.encode("Once")
        except Exception:
            pass
for _ in range(4):
    threading.Thread(target=call, daemon=True).start()
time.sleep(0.05)
"""
        for _ in range(5):
            with python(LONG + end) as process:
                process.communicate(timeout=120)
                self.assertEqual(process.returncode, 0)


class CudaPackage(unittest.TestCase):
    """loopspec-cuda, with the plain module in its place: it is found by name, and what does not fit is said and left alone."""

    PROGRAM = ("import warnings; warnings.simplefilter('always'); import loopspec; "
               "print(loopspec._core.__name__, loopspec.Engine({model!r}).generate('Once upon a', max_tokens=1).text)")

    def run_with(self, files):
        with tempfile.TemporaryDirectory(prefix="loopspec-test-") as folder:
            for name, content in files.items():
                path = pathlib.Path(folder) / name
                path.parent.mkdir(exist_ok=True)
                path.write_bytes(content)
            done = subprocess.run([sys.executable, "-c", self.PROGRAM.format(model=OURO)], capture_output=True, text=True, timeout=300,
                                  check=False, env={**os.environ, "PYTHONPATH": f"{folder}:{os.environ['PYTHONPATH']}"})
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.strip(), done.stderr

    def test_it_is_taken(self):
        module = pathlib.Path(loopspec._core.__file__)
        files = {"loopspec_cuda/__init__.py": b"", f"loopspec_cuda/{module.name}": module.read_bytes()}
        self.assertEqual(self.run_with(files)[0], "loopspec_cuda._core  time")
        for name, version in (("loopspec", "9.9.9"), ("loopspec-cuda", "9.9.8")):
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
            files[f"{name.replace('-', '_')}-{version}.dist-info/METADATA"] = text.encode()
        said, warned = self.run_with(files)
        self.assertEqual(said, "loopspec._core  time")
        self.assertIn("loopspec-cuda is 9.9.8, expected 9.9.9 as loopspec", warned)

    def test_it_cannot_be_loaded(self):
        said, warned = self.run_with({"loopspec_cuda/__init__.py": b"", "loopspec_cuda/_core.abi3.so": b"no library"})
        self.assertEqual(said, "loopspec._core  time")
        self.assertIn("loopspec-cuda cannot be loaded, so there is only the CPU", warned)

    def test_it_is_not_there(self):
        with self.assertRaisesRegex(ValueError, "^device is 'cuda', and the package loopspec-cuda is not installed"):
            Engine(OURO, device="cuda")


if __name__ == "__main__":
    unittest.main()
