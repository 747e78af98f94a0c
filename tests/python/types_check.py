#!/usr/bin/env python3
"""mypy from PyPI in strict mode: over the package, and over a program that uses it.

  types_check.py --venv FOLDER
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = """
import asyncio
import loopspec

engine = loopspec.Engine("model", threads=2, depths=(1, 2), kv_memory="1GiB")
one: loopspec.RequestOutput = engine.generate("Hello", temperature=0.5)
many: list[loopspec.RequestOutput] = engine.generate(["Hello", "there"], loopspec.SamplingParams(max_tokens=3))
said: loopspec.RequestOutput = engine.chat("Hello", max_tokens=3, tools=[])
talk: loopspec.RequestOutput = engine.chat([{"role": "user", "content": "Hello"}], chat_template_kwargs={})
talks: list[loopspec.RequestOutput] = engine.chat([[{"role": "user", "content": "Hello"}]])
text: str = one.text
rate: float = one.statistics.tokens_per_second
for token in engine.stream("Hello"):
    source: int = token.source
    logprob: float | None = token.logprob
ids: list[int] = engine.encode("Hello")
shape: tuple[int, ...] = engine.logits(ids).shape
with loopspec.LLM("model") as llm:
    llm.generate("Hello")
    outputs: list[loopspec.RequestOutput] = llm.chat("Hello", sampling_params=loopspec.SamplingParams().replace(max_tokens=3))

async def read() -> None:
    async for token in engine.astream("Hello"):
        print(token.text)

asyncio.run(read())
try:
    pass
except loopspec.QueueFull:
    pass
"""
WRONG = ['x: int = engine.generate("Hello").text', 'engine.generate("Hello", max_tokns=3)', 'engine.generate("Hello", max_tokens="3")',
         'engine.generate(["Hello"], top_p="0.9")', 'engine.stream("Hello", temprature=1)', 'x: int = engine.chat("Hello").text',
         'engine.chat("Hello", max_tokns=3)', 'loopspec.LLM("model").generate("Hello", max_tokns=3)',
         'loopspec.LLM("model").chat("Hello", max_tokens="3")', 'loopspec.SamplingParams(max_tokns=3)',
         'loopspec.SamplingParams().replace(max_tokns=3)', 'engine.trace("Hello", max_tokns=3)']


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--venv", required=True)
    options = parser.parse_args()
    python = pathlib.Path(options.venv).absolute() / "bin" / "python"
    try:
        if not python.exists():
            venv.create(options.venv, with_pip=True, symlinks=True)
        subprocess.run([python, "-m", "pip", "install", "-q", "mypy", "numpy"], check=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"SKIPPED: mypy cannot be installed ({error})")
        sys.exit(77)
    package = pathlib.Path(os.environ["PYTHONPATH"]) / "loopspec"
    with tempfile.TemporaryDirectory(prefix="loopspec-test-") as folder:
        # As installed: files, not links into the sources.
        copy = pathlib.Path(folder) / "loopspec"
        copy.mkdir()
        for file in package.iterdir():
            if file.suffix in {".py", ".pyi"} or file.name == "py.typed":
                (copy / file.name).write_bytes(file.read_bytes())

        def mypy(*what):
            # Packages that only some users have, and that are not here, have no types.
            return subprocess.run([python, "-m", "mypy", "--strict", "--cache-dir", os.devnull, "--disable-error-code",
                                   "import-not-found", "--disable-error-code", "untyped-decorator", *what],
                                  cwd=folder, capture_output=True, text=True, check=False)

        result = mypy("-p", "loopspec")
        if result.returncode != 0:
            sys.exit(result.stdout + result.stderr)
        (pathlib.Path(folder) / "program.py").write_text(PROGRAM)
        result = mypy("program.py")
        if result.returncode != 0:
            sys.exit(f"program.py: expected no error\n{result.stdout}{result.stderr}")
        (pathlib.Path(folder) / "wrong.py").write_text("\n".join(['import loopspec', 'engine = loopspec.Engine("model")', *WRONG]) + "\n")
        result = mypy("wrong.py")
        for number, line in enumerate(WRONG, 3):
            if f"wrong.py:{number}: error" not in result.stdout:
                sys.exit(f"{line}: expected an error\n{result.stdout}{result.stderr}")
    print("mypy --strict: the package and a program that uses it are clean, a wrong one is not")


if __name__ == "__main__":
    main()
