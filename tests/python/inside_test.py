"""A look inside: logits, traces, calibrations."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

import numpy
from support import BINARY, OURO, PROBLEM, PROMPTS, RAVEN, engine, python

from loopspec import Engine


def read_safetensors(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        return numpy.frombuffer(file.read(), dtype="<f4").reshape(header["logits"]["shape"])


class Logits(unittest.TestCase):
    @unittest.skipUnless(BINARY, "there is no binary to compare with")
    def test_the_same_bits_as_the_command_line(self):
        for model, depths in ((OURO, [1, 2, 4]), (RAVEN, [4, 8, 32])):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "logits.safetensors")
                subprocess.run([BINARY, "logits", "-m", model, "-p", PROBLEM, "--depths", ",".join(map(str, depths)), "-o", path],
                               check=True, capture_output=True)
                told = read_safetensors(path)
            ids = engine(model).encode(PROBLEM)
            found = engine(model).logits(ids, depths)
            self.assertEqual(found.dtype, numpy.float32)
            self.assertTrue(numpy.array_equal(found, told), model)
            self.assertTrue(numpy.array_equal(engine(model).logits(PROBLEM), told[-1]), model)
            self.assertTrue(numpy.array_equal(engine(model).logits(ids, depths[0]), told[0]), model)
            self.assertTrue(numpy.array_equal(engine(model).logits(ids, depths[::-1]), told[::-1]), model)

    def test_long_texts_come_in_parts_and_beside_others(self):
        ids = (engine().encode(PROBLEM) * 50)[:1000]
        stream = engine().stream(PROMPTS[0], max_tokens=60, ignore_eos=True)
        logits = engine().logits(ids)
        self.assertEqual("".join(token.text for token in stream),
                         engine().generate(PROMPTS[0], max_tokens=60, ignore_eos=True).text)
        self.assertEqual(logits.shape, (1000, engine().vocab_size))
        self.assertTrue(numpy.array_equal(logits[:700], engine().logits(ids[:700])))
        scores = engine().generate(ids, prompt_logprobs=0, max_tokens=0).prompt_logprobs
        shifted = logits.astype(numpy.float64)
        total = numpy.log(numpy.exp(shifted - shifted.max(axis=1, keepdims=True)).sum(axis=1)) + shifted.max(axis=1)
        expected = shifted[numpy.arange(999), ids[1:]] - total[:-1]
        self.assertLess(numpy.abs(expected - [token.logprob for token in scores]).max(), 1e-5)

    def test_the_likeliest_token_is_what_greedy_decoding_says(self):
        ids = engine().encode(PROMPTS[1])
        said = engine().generate(ids, max_tokens=20, ignore_eos=True).token_ids
        logits = engine().logits(ids + said)
        self.assertEqual(logits.argmax(axis=1)[len(ids) - 1:-1].tolist(), said)

    def test_nothing_is_copied(self):
        array = engine().logits([5, 6, 7], [4])
        self.assertFalse(array.flags.owndata)
        shared = numpy.from_dlpack(array)
        self.assertEqual(shared.__array_interface__["data"][0], array.__array_interface__["data"][0])
        array[0, 0, 0] = 3.5  # ours alone
        self.assertEqual(shared[0, 0, 0], 3.5)
        self.assertNotEqual(engine().logits([5, 6, 7], [4])[0, 0, 0], 3.5)

    def test_they_outlive_the_engine(self):
        with Engine(OURO, threads=1) as other:
            array = other.logits([5, 6, 7])
        self.assertTrue(numpy.array_equal(array, engine().logits([5, 6, 7])))

    def test_refusals(self):
        for ids, depths, words in (([], None, "^ids is empty"), ([10**6], None, r"^ids\[0\] is 1000000"), ([1], [99], "^depths has 99"),
                                   ([1], [4, 4], "^depths has 4 twice"), ([1] * 100000, None, "context")):
            with self.subTest(words=words), self.assertRaisesRegex(ValueError, words):
                engine().logits(ids, depths)


class Traces(unittest.TestCase):
    def test_events_and_picture(self):
        trace = engine().trace(PROBLEM, max_tokens=24)
        self.assertEqual(trace.output.text, engine().generate(PROBLEM, max_tokens=24).text)
        self.assertEqual((trace.recurrence, trace.depths), (4, engine().depths[0]))
        decided = [event["token"] for event in trace.events if event["kind"] in ("accept", "fallback")]
        self.assertEqual(decided[:24], trace.output.token_ids)
        self.assertTrue(trace._repr_svg_().startswith("<svg"))
        self.assertEqual(json.loads(trace.to_json())["tokens"], trace.output.token_ids)
        self.assertEqual(json.loads(trace.to_json())["kv_type"], engine().kv_type)
        with tempfile.TemporaryDirectory() as folder:
            trace.save(os.path.join(folder, "trace.svg"))
            trace.save(os.path.join(folder, "trace.json"))
            if BINARY:  # draws ours as we do
                subprocess.run([BINARY, "trace", "trace.json", "--svg", "theirs.svg"], cwd=folder, check=True, capture_output=True)
                with open(os.path.join(folder, "theirs.svg"), encoding="utf-8") as theirs:
                    self.assertEqual(theirs.read(), trace.svg())


class Calibrations(unittest.TestCase):
    def test_depths_are_found_and_used(self):
        with tempfile.TemporaryDirectory() as folder, \
                unittest.mock.patch.dict(os.environ, {"XDG_CACHE_HOME": os.path.join(folder, "cache")}):
            model = os.path.join(folder, "model")
            shutil.copytree(OURO, model)
            with Engine(model) as fresh:
                found = fresh.calibrate(PROMPTS, positions=200, max_tokens=16, measure=1, measure_prompts=1, repeat=1,
                                        proposals=2, views=["greedy"], force=True)
            self.assertIsNone(found.sampled_depths)
            self.assertEqual(os.path.dirname(found.path), model)
            self.assertTrue(os.path.exists(found.path.replace(".json", ".html")))
            with open(found.path, encoding="utf-8") as file:
                self.assertEqual(json.load(file), found.data)
            self.assertIn("<iframe", found._repr_html_())
            self.assertIn("depth", str(found))
            with Engine(model) as again:
                self.assertEqual(again.depths[0], found.depths)

    def test_nothing_is_written_unless_asked_for(self):
        found = engine().calibrate(PROMPTS[:2], positions=60, max_tokens=8, measure=0, repeat=1, proposals=1,
                                   views=["sampling"], save=False, top_n_sigma=2)
        self.assertIsNone(found.path)
        self.assertFalse(os.path.exists(os.path.join(OURO, "loopspec-calibration.json")))
        self.assertEqual(engine().generate(PROMPTS[0], max_tokens=4).text, engine().generate(PROMPTS[0], max_tokens=4).text)

    @unittest.skipUnless("LOOPSPEC_BUSY_CLOCK" in os.environ, "there is no clock of a busy machine in this build")
    def test_a_busy_machine_is_asked_again(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "model")
            shutil.copytree(OURO, model)
            used, pending = (os.path.join(model, f"loopspec-calibration{kind}.json") for kind in ("", ".pending"))

            def calibrate(more=""):
                """In a process whose clock says that the machine is busy."""
                program = (f"import json, loopspec\nwith loopspec.Engine({model!r}, threads=1, dtype='f32') as engine:\n"
                           f"    found = engine.calibrate(['Once upon a time there was'], positions=32, max_tokens=8, measure=0, proposals=1,"
                           f" views=['greedy'], use_tqdm=False, {more})\n"
                           "print(json.dumps([found.busy, found.path, found.depths]))")
                process = python(program, env={**os.environ, "LD_PRELOAD": os.environ["LOOPSPEC_BUSY_CLOCK"],
                                               "XDG_CACHE_HOME": os.path.join(folder, "cache")})
                out, err = process.communicate(timeout=300)
                self.assertEqual(process.returncode, 0, err)
                return json.loads(out)

            busy, path, depths = calibrate()
            self.assertEqual((busy, path), (True, None))
            for _ in range(10):  # a further run is used if it chooses what the one before it chose
                before = depths
                busy, path, depths = calibrate()
                self.assertTrue(busy)
                self.assertEqual(path, used if depths == before else None)
                self.assertEqual((os.path.exists(used), os.path.exists(pending)), (depths == before, depths != before))
                if path:
                    break
            self.assertEqual(path, used)
            os.unlink(used)
            with open(pending, "w", encoding="utf-8") as file:
                file.write('{"choices": {"greedy": [99]}}')
            self.assertEqual(calibrate("force=True")[:2], [True, used])
            self.assertFalse(os.path.exists(pending))

    def test_refusals(self):
        with self.assertRaisesRegex(ValueError, "^views is 'x'"):
            engine().calibrate(PROMPTS, views=["x"])
        with self.assertRaisesRegex(ValueError, "^temperature is 0"):
            engine().calibrate(PROMPTS, temperature=0)
        with self.assertRaisesRegex(TypeError, "^calibrate has no parameter 'repetition_penalty'"):
            engine().calibrate(PROMPTS, repetition_penalty=1.1)
        with self.assertRaisesRegex(ValueError, "^prompts is empty"):
            engine().calibrate([])
        with self.assertRaisesRegex(TypeError, "^views is 'greedy', expected a list"):
            engine().calibrate(PROMPTS, views="greedy")


class Progress(unittest.TestCase):
    def test_a_bar_where_it_is_asked_for(self):
        import contextlib
        import io

        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            engine().generate(PROMPTS, max_tokens=4, use_tqdm=True)
        self.assertIn("6/6", told.getvalue())
        self.assertIn("tokens/s", told.getvalue())
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            engine().generate(PROMPTS, max_tokens=4)
        self.assertEqual(told.getvalue(), "")

    def test_without_tqdm(self):
        with unittest.mock.patch.dict(sys.modules, {"tqdm": None, "tqdm.auto": None}):
            with self.assertRaisesRegex(ImportError, "pip install tqdm"):
                engine().generate(PROMPTS, max_tokens=4, use_tqdm=True)
            engine().generate(PROMPTS, max_tokens=4)


if __name__ == "__main__":
    unittest.main()
