"""The examples of docs/python.md and the example program, run as they stand."""

import contextlib
import io
import os
import re
import runpy
import sys
import tempfile
import unittest
import unittest.mock

from support import OURO, ROOT

import loopspec


def blocks():
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)


class Documentation(unittest.TestCase):
    def test_the_guide(self):
        """One after the other, in a folder that looks like a clone."""
        found = blocks()
        self.assertGreater(len(found), 5)
        names = {}
        with tempfile.TemporaryDirectory(prefix="loopspec-test-") as folder:
            os.symlink(ROOT / "models", os.path.join(folder, "models"))
            before = os.getcwd()
            os.chdir(folder)
            try:
                for block in found:
                    if "import ray" in block or "loopspec.ray" in block:
                        continue  # ray_check.py and ray_serve_check.py run them
                    with self.subTest(block=block.splitlines()[0]), contextlib.redirect_stdout(io.StringIO()) as said:
                        exec(compile(block, "docs/python.md", "exec"), names)  # pylint: disable=exec-used
                        self.assertTrue(said.getvalue())
                self.assertTrue(os.path.exists("trace.svg"))
            finally:
                os.chdir(before)
                names["engine"].close()

    def test_the_example(self):
        with contextlib.redirect_stdout(io.StringIO()) as said, \
                unittest.mock.patch.object(sys, "argv", ["tell_story.py", OURO]):
            runpy.run_path(str(ROOT / "examples" / "python" / "tell_story.py"), run_name="__main__")
        self.assertRegex(said.getvalue(), r"\n\d+ tokens, \d+ per second, gamma \d\.\d\d\n$")

    def test_every_parameter_is_explained(self):
        import dataclasses
        import inspect

        for field in dataclasses.fields(loopspec.SamplingParams):
            self.assertRegex(loopspec.SamplingParams.__doc__, rf"(?m)^    [a-z_, ]*\b{field.name}\b[a-z_, ]*:", field.name)
        for name in inspect.signature(loopspec.Engine.__init__).parameters:
            if name != "self":
                self.assertRegex(loopspec.Engine.__doc__, rf"(?m)^    [a-z_, ]*\b{name}\b[a-z_, ]*:", name)


if __name__ == "__main__":
    unittest.main()
