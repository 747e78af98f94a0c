#!/usr/bin/env python3
"""loopspec.ray with Ray from PyPI: rows that cannot be answered, a folder of another job, the example of docs/python.md.

  ray_check.py --venv FOLDER
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "serve"))

from client_support import inside_venv  # noqa: E402

MODEL = str(ROOT / "models" / "ouro-demo")
PARAMS = {"max_tokens": 6, "temperature": 1.0}


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def another_job_is_refused():
    from loopspec.ray import Predictor

    with tempfile.TemporaryDirectory() as folder:
        Predictor(MODEL, params=PARAMS, results=folder, engine={"threads": 1})
        try:
            Predictor(MODEL, params={"max_tokens": 7}, results=folder, engine={"threads": 1})
        except ValueError as error:
            check("another job" in str(error), error)
        else:
            raise AssertionError("another job's folder was taken")


def bad_rows_say_why():
    import numpy

    from loopspec.ray import Predictor

    predictor = Predictor(MODEL, params=PARAMS, engine={"threads": 1})
    prompts = numpy.empty(3, dtype=object)
    prompts[:] = ["Once", [10**6], "Tom had"]
    out = predictor({"prompt": prompts})
    check(list(out["finish_reason"]) == ["length", "error", "length"] and "token 1000000" in out["error"][1], out)


def finished_rows_are_kept():
    """A second worker answers what is missing, and by other batches the same texts come out."""
    import numpy

    from loopspec.ray import Predictor, read_results

    def batch(ids):
        return {"id": numpy.array(ids), "prompt": numpy.array([f"{index} cats and" for index in ids], dtype=object)}

    with tempfile.TemporaryDirectory() as folder:
        more = {"params": PARAMS, "key": "id", "engine": {"threads": 1}}
        first = Predictor(MODEL, results=folder, **more)(batch([0, 1, 2]))["text"]
        with open(next(pathlib.Path(folder).glob("*.jsonl")), "ab") as file:
            file.write(b'{"key": "7", "ro')  # killed in the middle of a line
        second = Predictor(MODEL, results=folder, **more)
        before = second._engine.metrics["finished"]
        out = second(batch([3, 2, 1, 0]))["text"]
        check(second._engine.metrics["finished"] == before + 1, "finished rows were answered again")
        check(list(out[:0:-1]) == list(first), "finished rows have other texts")
        alone = Predictor(MODEL, **more)
        check([alone(batch([index]))["text"][0] for index in (3, 2, 1, 0)] == list(out), "texts depend on the batch")
        check(sorted(row["id"] for row in read_results(folder)) == [0, 1, 2, 3], "rows on disk")


def the_guide():
    """The example of docs/python.md."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    [block] = [block for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M) if "import ray" in block]
    # Answers are kept where the program runs: a relative folder is the worker's.
    with tempfile.TemporaryDirectory() as folder:
        program = f"import ray\nray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)\nMODEL = {MODEL!r}\n"
        program += block.replace('"answers"', f'"{folder}/answers"')
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
        said = set(re.findall(r"(?m)^([0-7]) ", done.stdout))
        check(done.returncode == 0 and len(said) == 8, done.stdout + done.stderr[-3000:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", required=True)
    options = parser.parse_args()
    inside_venv(options.venv, ["ray[data]", "nanobind-backend>=1,<2", "numpy"], "ray.data, nanobind_backend, numpy")
    os.environ.update(RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")
    import ray

    another_job_is_refused()
    bad_rows_say_why()
    finished_rows_are_kept()
    the_guide()
    print(f"ray {ray.__version__}: all checks passed")


if __name__ == "__main__":
    main()
