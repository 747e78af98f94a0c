"""Engine(..., pull=True) against a Hub on loopback, and models that packages bring."""

import os
import pathlib
import sys
import tempfile
import unittest

from support import OURO, engine, python

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "hub"))
from fake_hub import FakeHub  # noqa: E402


PROGRAM = """
import loopspec
engine = loopspec.Engine("org/demo", threads=1{more})
print(engine.generate("Tom had a cat", max_tokens=5).text)
"""


class Pull(unittest.TestCase):
    def run_program(self, hub, cache, more=""):
        environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_CACHE": cache, "PYTHONPATH": os.environ["PYTHONPATH"]}
        environment.pop("HF_HUB_OFFLINE", None)
        with python(PROGRAM.format(more=more), env=environment) as process:
            return (*process.communicate(timeout=300), process.returncode)

    def test_downloads_with_progress_and_once(self):
        files = {path.name: path.read_bytes() for path in pathlib.Path(OURO).iterdir()}
        expected = engine().generate("Tom had a cat", max_tokens=5).text + "\n"
        with FakeHub() as hub, tempfile.TemporaryDirectory(prefix="loopspec-test-") as cache:
            hub.add("org/demo", files)
            out, err, code = self.run_program(hub, cache)
            self.assertNotEqual(code, 0)
            self.assertIn('Engine("org/demo", pull=True)', err)
            self.assertEqual(hub.requests, [], "nothing is asked for without pull=True")
            out, err, code = self.run_program(hub, cache, ", pull=True")
            self.assertEqual((out, code), (expected, 0), err)
            self.assertIn("org/demo", err)
            self.assertIn("MB", err)
            asked = len(hub.requests)
            out, err, code = self.run_program(hub, cache, ", pull=True")
            self.assertEqual((out, code), (expected, 0), err)
            self.assertEqual(len(hub.requests), asked, "it is there")

    def test_what_is_not_there_is_said(self):
        with FakeHub() as hub, tempfile.TemporaryDirectory(prefix="loopspec-test-") as cache:
            _, err, code = self.run_program(hub, cache, ", pull=True")
            self.assertNotEqual(code, 0)
            self.assertIn("org/demo", err.splitlines()[-1])


class Installed(unittest.TestCase):
    def test_the_demo_model_from_any_folder(self):
        program = """
import loopspec
print(loopspec.Engine("ouro-demo", threads=1).generate("Tom had a cat", max_tokens=5).text)
"""
        with tempfile.TemporaryDirectory(prefix="loopspec-test-") as folder, python(program, cwd=folder) as process:
            out, err = process.communicate(timeout=120)
        self.assertEqual(out, engine().generate("Tom had a cat", max_tokens=5).text + "\n", err)


if __name__ == "__main__":
    unittest.main()
