"""`loopspec` as pip installs it; its demo runs in wheel_check.py."""

import os
import subprocess
import sys
import tempfile
import unittest

from support import BINARY


def program(*words, path):
    return subprocess.run([sys.executable, "-m", "loopspec", *words], capture_output=True, text=True, check=False, timeout=300,
                          env={**os.environ, "PATH": path})


class Program(unittest.TestCase):
    @unittest.skipUnless(BINARY, "there is no binary in this build")
    def test_the_program_on_the_path_does_the_work(self):
        """Past a script of that name, such as this one, in a folder before it."""
        with tempfile.TemporaryDirectory(prefix="loopspec-test-") as folder:
            script = os.path.join(folder, "loopspec")
            with open(script, "w", encoding="utf-8") as file:
                file.write("#!/bin/sh\nexit 9\n")
            os.chmod(script, 0o755)
            done = program("--version", path=os.pathsep.join((folder, os.path.dirname(BINARY))))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout)

    def test_without_it_one_sentence_says_where_it_comes_from(self):
        for words in (["serve", "ouro-demo"], [], ["demo", "--model", "x"]):
            done = program(*words, path="/nowhere")
            self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn("the Debian package or the tarball", done.stderr)
            self.assertIn(" ".join(words) or "no command", done.stderr)
        done = program("demo", "/nowhere/model", path="/nowhere")
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"\Aloopspec: [^\n]*/nowhere/model[^\n]*\n\Z")


if __name__ == "__main__":
    unittest.main()
