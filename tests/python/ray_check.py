#!/usr/bin/env python3
"""loopspec.ray with Ray from PyPI: rows that cannot be answered, a folder of another job, the examples of docs/python.md.

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


def failures_are_not_kept():
    """A row that the engine failed at is answered by the next try."""
    import types

    import numpy

    from loopspec.ray import Predictor, read_results

    with tempfile.TemporaryDirectory() as folder:
        predictor = Predictor(MODEL, params=PARAMS, results=folder, engine={"threads": 1})
        batch = {"prompt": numpy.array(["Once"], dtype=object)}
        answers = predictor._engine._answers
        predictor._engine._answers = lambda requests, bar, finished: finished(0, types.SimpleNamespace(error="no memory", refused=False))
        try:
            predictor(dict(batch))
        except RuntimeError as error:
            check("no memory" in str(error), error)
        else:
            raise AssertionError("a failure went by")
        check(len(read_results(folder)) == 0, "a failure was kept")
        predictor._engine._answers = answers
        check(predictor(dict(batch))["finish_reason"][0] == "length" and len(read_results(folder)) == 1, "the next try")


def another_prompt_is_refused():
    """A row's name that comes with another prompt is not taken for the same row."""
    import numpy

    from loopspec.ray import Predictor, run

    def batch(text):
        return {"id": numpy.array([1]), "prompt": numpy.array([text], dtype=object)}

    with tempfile.TemporaryDirectory() as folder:
        more = {"params": PARAMS, "key": "id", "results": folder, "engine": {"threads": 1}}
        Predictor(MODEL, **more)(batch("Once"))
        check(len(run([{"id": 1, "prompt": "Once"}], folder, model=MODEL, params=PARAMS, key="id")) == 1, "a finished job")
        for again in (lambda: Predictor(MODEL, **more)(batch("Twice")),
                      lambda: run([{"id": 1, "prompt": "Twice"}], folder, model=MODEL, params=PARAMS, key="id")):
            try:
                again()
            except ValueError as error:
                check("answered for the prompt 'Once'" in str(error), error)
            else:
                raise AssertionError("an answer to another prompt was taken")


def wrong_rows_are_refused():
    import ray

    from loopspec.ray import run

    ray.init(num_cpus=1, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False)
    for rows, key, said in (([{"row": 0, "prompt": "a"}], None, "name the column"), ([{"prompt": "a"}], "id", "expected id"),
                            ([{"id": 1, "prompt": "a"}, {"id": 1, "prompt": "b"}], "id", "as one before"),
                            (ray.data.range(2), None, "key is None")):
        with tempfile.TemporaryDirectory() as folder:
            try:
                run(rows, folder, model=MODEL, key=key)
            except ValueError as error:
                check(said in str(error), error)
            else:
                raise AssertionError(f"{rows} was taken")
    ray.shutdown()


def the_guide():
    """Those examples of docs/python.md that need no server, each as a program of its own."""
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = [block for block in re.findall(r"^```python\n(.*?)^```", text, flags=re.S | re.M)
              if re.search("loopspec.ray import (run|Predictor)", block)]
    check(len(blocks) == 2, "expected two examples")
    for block in blocks:
        with tempfile.TemporaryDirectory() as folder:
            program = "import ray\nray.init(num_cpus=2, _node_ip_address='127.0.0.1', include_dashboard=False, log_to_driver=False)\n"
            program += f"MODEL = {MODEL!r}\nANSWERS = {folder + '/answers'!r}\n" + block
            done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False, cwd=folder)
            check(done.returncode == 0, done.stdout + done.stderr[-3000:])
            from loopspec.ray import read_results

            found = [row["text"] for row in read_results(folder + "/answers")]
            check(len(found) == 8 and all(said in done.stdout or repr(said)[1:-1] in done.stdout for said in found), done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", required=True)
    options = parser.parse_args()
    inside_venv(options.venv, ["ray[data,serve]", "nanobind-backend>=1,<2", "numpy"], "ray.data, ray.serve, nanobind_backend, numpy")
    os.environ.update(RAY_DEDUP_LOGS="0", RAY_USAGE_STATS_ENABLED="0")
    import ray

    another_job_is_refused()
    bad_rows_say_why()
    finished_rows_are_kept()
    failures_are_not_kept()
    another_prompt_is_refused()
    wrong_rows_are_refused()
    the_guide()
    print(f"ray {ray.__version__}: all checks passed")


if __name__ == "__main__":
    main()
