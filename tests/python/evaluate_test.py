"""`python -m loopspec.evaluate` without the scorers: what it reads, what it refuses, and in which words. evaluate_check.py has them."""

import contextlib
import io
import json
import pathlib
import subprocess
import tempfile
import unittest
import unittest.mock

from support import BINARY, OURO, ROOT

from loopspec import evaluate
from loopspec._answers import AnswersError, find_answers, read_answers


def record(group, spec, item, text, repeat=0):
    return {"group": group, "way": spec, "item": item, "repeat": repeat, "text": text}


def write(path, settings, records, end="\n"):
    path.write_text("\n".join(json.dumps(line) for line in [{"loopspec_records": settings}, *records]) + end, encoding="utf-8")
    return path


class Answers(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="loopspec-test-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def run_command(self, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()) as complained:
            code = evaluate.main([*map(str, arguments), "--benchmarks", str(self.folder)])
        return code, said.getvalue(), complained.getvalue()

    def test_specs_with_the_same_answers_are_one(self):
        texts = [record("gsm8k_cot/greedy", spec, f"gsm8k/{item}", f"It is {item}.") for item in (0, 1) for spec in ("ar", "loopspec:1,2")]
        sampled = [record("gsm8k_cot/sampled", "ar", "gsm8k/0", "It is 4."), record("gsm8k_cot/sampled", "lookup", "gsm8k/0", "It is 5.")]
        others = [{"distance": [0.1], "group": "gsm8k_cot/greedy", "item": "gsm8k/0"}, {"peak_memory": 7},
                  record("gsm8k_cot/greedy", "ar", "gsm8k/0", "again", repeat=1)]
        path = write(self.folder / "e.jsonl", {"experiment": {"tasks": [{"task": "gsm8k_cot", "chat": False}]}}, texts + sampled + others)
        found = [(one.task, one.sampling, one.specs, one.texts) for one in read_answers(path)]
        self.assertEqual(found, [("gsm8k_cot", "greedy", ["ar", "loopspec:1,2"], {"gsm8k/0": "It is 0.", "gsm8k/1": "It is 1."}),
                                 ("gsm8k_cot", "sampled", ["ar"], {"gsm8k/0": "It is 4."}),
                                 ("gsm8k_cot", "sampled", ["lookup"], {"gsm8k/0": "It is 5."})])

    def test_thoughts_are_no_part_of_a_chat_answer(self):
        for chat, expected in ((True, "It is 5."), (False, "It is 4.</think>It is 5.")):
            path = write(self.folder / "b.jsonl", {"task": "gsm8k_cot", "chat": chat},
                         [record("", "ar", "gsm8k/0", "It is 4.</think>It is 5.")])
            self.assertEqual(read_answers(path)[0].texts, {"gsm8k/0": expected})

    def test_a_line_that_was_cut_off_is_left_out(self):
        records = [record("", "ar", "gsm8k/0", "4"), record("", "ar", "gsm8k/1", "5")]
        path = write(self.folder / "b.jsonl", {"task": "gsm8k_cot"}, records, end="")
        self.assertEqual(read_answers(path)[0].texts, {"gsm8k/0": "4"})

    def test_what_is_refused(self):
        plain = write(self.folder / "prompts.jsonl", {"seed": 1}, [])
        (self.folder / "other.txt").write_text("{}\n", encoding="utf-8")
        (self.folder / "empty").mkdir()
        for path, sentence in ((plain, "its prompts are no task's"), (self.folder / "other.txt", "holds no records of a measurement"),
                               (self.folder / "none", "no such file or folder"), (self.folder / "empty", "holds no .jsonl file")):
            with self.assertRaisesRegex(AnswersError, sentence):
                find_answers(path)
            code, said, complained = self.run_command(path)
            self.assertEqual((code, said), (2, ""))
            self.assertIn(sentence, complained)

    def test_names_the_extra_that_is_missing(self):
        for task, item, option, name, extra in (("gsm8k_cot", "gsm8k/0", (), "lm-evaluation-harness", "evaluate"),
                                                ("mbpp_plus", "Mbpp/2", ("--run-programs",), "evalplus", "evaluate-programs")):
            path = write(self.folder / "b.jsonl", {"task": task}, [record("", "ar", item, "x")])
            with unittest.mock.patch.object(evaluate, "find_spec", return_value=None):
                code, said, complained = self.run_command(path, *option)
            self.assertEqual((code, said), (2, ""))
            self.assertIn(f"error: {task}: {name} is not installed, expected it from pip install 'loopspec[{extra}]'\n", complained)

    def test_programs_run_only_when_asked(self):
        path = write(self.folder / "b.jsonl", {"task": "humaneval_plus"}, [record("", "ar", "HumanEval/0", "raise SystemExit")])
        with unittest.mock.patch.object(evaluate, "score_with_evalplus", side_effect=AssertionError):
            code, said, complained = self.run_command(path)
        self.assertEqual((code, complained), (0, ""))
        self.assertEqual(said, "humaneval_plus, 1 answers of ar\n  answers are programs, which --run-programs runs\n")
        scored = unittest.mock.patch.object(evaluate, "score_with_evalplus", return_value=({"pass@1": 0.5}, 1))
        with scored, unittest.mock.patch.object(evaluate, "find_spec", return_value=True):
            code, said, complained = self.run_command(path, "--run-programs", "--json")
        self.assertEqual(code, 0)
        self.assertIn("WARNING: evalplus executes programs that a model wrote", complained)
        self.assertEqual(json.loads(said)["scores"], {"pass@1": 0.5})

    @unittest.skipUnless(BINARY, "no command line in this build")
    def test_reads_what_bench_keeps(self):
        path = self.folder / "answers.jsonl"
        subprocess.run([BINARY, "bench", OURO, "--task", "stories", "--limit", "2", "--max-tokens", "8", "--repeat", "1", "--records", path],
                       check=True, capture_output=True)
        (answers,) = find_answers(path)
        self.assertEqual((answers.task, len(answers.specs), list(answers.texts)), ("stories", 2, ["stories/0", "stories/1"]))
        self.assertTrue(all(answers.texts.values()))
        code, said, _ = self.run_command(path)
        self.assertEqual((code, said.splitlines()[1]), (0, "  has no score"))

    @unittest.skipUnless(BINARY, "no command line in this build")
    def test_reads_what_experiments_keep(self):
        output = self.folder / "results"
        subprocess.run([BINARY, "experiment", "run", ROOT / "experiments" / "demo-rows.json", "--model", OURO, "--limit", "1", "--max-tokens", "8",
                        "--repeat", "1", "--output", output], check=True, capture_output=True)
        found = find_answers(output)
        self.assertTrue(found)
        for answers in found:
            self.assertIn(answers.task, ("stories", "heldout_problems"))
            self.assertTrue(answers.sampling and answers.specs and all(answers.texts.values()))


if __name__ == "__main__":
    unittest.main()
