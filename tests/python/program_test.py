"""`loopspec` as pip installs it; its demo runs in wheel_check.py."""

import os
import subprocess
import sys
import tempfile
import unittest

from support import BINARY, OURO, engine

import loopspec


def program(*words, path, **options):
    return subprocess.run([sys.executable, "-m", "loopspec", *words], capture_output=True, text=True, check=False, timeout=300,
                          env={**os.environ, "PATH": path}, **options)


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

    def test_chat(self):
        messages = ["A dog.", "Tell me a story about a cat."]
        done = program("chat", OURO, path="/nowhere", input="\n".join([*messages, "/bye", "never said"]) + "\n")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        expected, talk = "", []
        for message in messages:
            talk.append({"role": "user", "content": message})
            said = engine().chat(talk, max_tokens=1500).text
            talk.append({"role": "assistant", "content": said})
            expected += said + "\n"
        self.assertEqual(done.stdout, expected)
        if BINARY:  # what the program's own says
            ours = subprocess.run([BINARY, "chat", OURO], input="\n".join(messages) + "\n", capture_output=True, text=True, check=True)
            self.assertEqual(ours.stdout, expected)

    def test_a_chat_that_outgrows_the_context(self):
        from loopspec.__main__ import _make_room

        long = "One day a dog ran in the park with a ball. " * 20
        talk = [{"role": role, "content": f"{long}{number}"} for number in range(6) for role in ("user", "assistant")]
        messages = [*talk, {"role": "user", "content": "A cat."}]
        whole = list(messages)
        _make_room(engine(), messages)
        self.assertTrue(2 < len(messages) < len(whole))
        self.assertEqual(messages, whole[-len(messages):])
        self.assertEqual(messages[0]["role"], "user")
        self.assertLess(len(engine().apply_chat_template(messages, tokenize=True)), engine().context * 3 / 4)
        done = program("chat", OURO, path="/nowhere", input=long * 20)
        self.assertEqual(done.returncode, 2)
        self.assertRegex(done.stderr, r"\Aloopspec: [^\n]*tokens[^\n]*\n\Z")

    def test_version(self):
        done = program("--version", path="/nowhere")
        self.assertEqual((done.returncode, done.stdout), (0, f"loopspec {loopspec.__version__}, the Python package alone\n"))


if __name__ == "__main__":
    unittest.main()
