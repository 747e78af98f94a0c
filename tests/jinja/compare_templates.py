#!/usr/bin/env python3
"""Compares our template engine with jinja2, set up as transformers sets it up: the same text, or a refusal on both sides.

  compare_templates.py RUNNER --venv DIR [--templates DIR]... [--store FILE]

RUNNER is the template_runner binary. --templates names folders with *.jinja files or tokenizer_config.json files.
--store writes the cases whose templates may be shipped, with jinja2's results, for the test that needs no Python.
Exits with 77, which ctest reports as skipped, when jinja2 cannot be installed.
"""

import argparse
import datetime
import functools
import json
import os
import pathlib
import subprocess
import sys
import venv

NOW = 1750000000
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
SHIPPABLE = ("Qwen", "SmolLM", "HuggingFaceTB", "Nanbeige", "Huginn")
JINJA2 = "jinja2==3.1.6"


def reexecute_in_venv(folder):
    """Runs this script again with a Python that has jinja2."""
    python = folder / "bin" / "python"
    if pathlib.Path(sys.prefix).resolve() == folder.resolve():
        return
    try:
        if not python.exists():
            venv.create(folder, with_pip=True, symlinks=True)
        has = subprocess.run([python, "-c", "import jinja2"], capture_output=True)
        if has.returncode != 0:
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", JINJA2], check=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"SKIPPED: jinja2 cannot be installed in {folder} ({error})")
        sys.exit(77)
    os.execv(python, [str(python), *sys.argv])


def make_environment():
    import jinja2
    import jinja2.ext
    import jinja2.nodes
    import jinja2.sandbox

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_pass_through"), [], [], body).set_lineno(line)

        def _pass_through(self, caller):
            return caller()

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(format):
        return datetime.datetime.fromtimestamp(NOW).strftime(format)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


@functools.lru_cache(maxsize=None)
def compiled(environment, source):
    return environment.from_string(source)


def expected_result(environment, case):
    """The text, or the error with what raise_exception said."""
    try:
        template = compiled(environment, case["source"])
        variables = {"tools": None, "documents": None, **case.get("variables", {}), **case.get("arguments", {})}
        variables["messages"] = case.get("messages", [])
        variables["add_generation_prompt"] = case.get("add_generation_prompt", False)
        text = template.render(**variables)
        text.encode("utf-8")
        return {"text": text}
    except Exception as error:  # whatever jinja2 or the operations of Python raise
        return {"error": str(error), "type": type(error).__name__}


def find_templates(folders):
    found = {}
    for folder in map(pathlib.Path, folders):
        for path in sorted(folder.rglob("*.jinja")):
            found[path.stem] = (path.read_text(encoding="utf-8"), dict(TOKENS))
        for path in sorted(folder.rglob("tokenizer_config.json")):
            config = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(config.get("chat_template"), str):
                tokens = {k: v for k, v in config.items() if k.endswith("_token") and isinstance(v, str)}
                found[path.parent.name] = (config["chat_template"], tokens)
    return found


def make_cases(folders):
    import template_cases as cases
    out = []
    templates = {**{n: (s, dict(TOKENS)) for n, s in cases.FAMILIES.items()}, **find_templates(folders)}
    conversations = cases.conversations()
    for name, (source, tokens) in templates.items():
        ours = name in cases.FAMILIES or name.endswith("-demo") or name.startswith(SHIPPABLE)
        for messages in conversations:
            for arguments, prompt in cases.argument_sets():
                out.append({"name": name, "source": source, "variables": tokens, "messages": messages, "arguments": arguments,
                            "add_generation_prompt": prompt, "now": NOW, "ship": ours})
    for source in cases.snippets():
        out.append({"name": "snippet", "source": source, "variables": cases.VARIABLES,
                    "messages": [cases.U("hi"), cases.A("ho")], "now": NOW, "ship": True})
    return out, len(templates), len(conversations)


def run_ours(runner, cases):
    keys = ("source", "variables", "messages", "arguments", "add_generation_prompt", "now")
    lines = "".join(json.dumps({k: c[k] for k in keys if k in c}) + "\n" for c in cases)
    done = subprocess.run([runner], input=lines, capture_output=True, text=True, encoding="utf-8")
    if done.returncode != 0:
        sys.exit(f"the runner ended with {done.returncode}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def comparable(expected):
    """Addresses of Python objects cannot be the same."""
    return " at 0x" not in expected.get("text", "")


def differs(expected, got):
    if ("error" in expected) != ("error" in got):
        return True
    if "text" in expected:
        return expected["text"] != got["text"]
    return expected["type"] == "TemplateError" and expected["error"] not in got["error"]


def store(path, cases, results):
    """A sample small enough to commit: every snippet, and every seventeenth conversation of what may be shipped."""
    import template_cases
    templates, kept = {}, []
    for i, (case, result) in enumerate(zip(cases, results)):
        if not case["ship"] or not comparable(result):
            continue
        entry = {k: result[k] for k in ("text", "error") if k in result}
        if "error" in entry and result["type"] != "TemplateError":
            entry["error"] = ""  # the wording of Python's own errors is no part of it
        if case["name"] == "snippet":
            kept.append({"source": case["source"], **entry})
        elif i % 17 == 0:
            templates[case["name"]] = {"source": case["source"], "variables": case["variables"]}
            kept.append({"template": case["name"], "messages": case["messages"], "arguments": case["arguments"],
                         "add_generation_prompt": case["add_generation_prompt"], **entry})
    lines = ",\n".join(json.dumps(k, ensure_ascii=False) for k in kept)
    header = json.dumps({"now": NOW, "variables": template_cases.VARIABLES, "templates": templates}, ensure_ascii=False)
    path.write_text(header[:-1] + ', "cases": [\n' + lines + "\n]}\n", encoding="utf-8")
    print(f"stored {len(kept)} cases in {path}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runner")
    parser.add_argument("--venv", type=pathlib.Path, required=True)
    parser.add_argument("--templates", action="append", default=[])
    parser.add_argument("--store", type=pathlib.Path)
    parser.add_argument("--show", type=int, default=20, help="how many differences to print")
    arguments = parser.parse_args()
    os.environ["TZ"] = "UTC"
    reexecute_in_venv(arguments.venv)
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    sys.setrecursionlimit(3000)
    environment = make_environment()
    cases, template_count, conversation_count = make_cases(arguments.templates)
    expected = [expected_result(environment, case) for case in cases]
    got = run_ours(arguments.runner, cases)
    if len(got) != len(cases):
        sys.exit(f"the runner answered {len(got)} of {len(cases)} cases")
    compared = [i for i in range(len(cases)) if comparable(expected[i])]
    wrong = [i for i in compared if differs(expected[i], got[i])]
    for i in wrong[:arguments.show]:
        case = cases[i]
        shown = case["source"] if case["name"] == "snippet" else f"{case['name']} {case['messages']} {case['arguments']}"
        print(f"DIFFERS {shown!r}\n  jinja2 {expected[i]}\n  ours   {got[i]}")
    refused = sum("error" in expected[i] for i in compared)
    print(f"{len(compared)} cases ({template_count} templates x {conversation_count} conversations, and snippets), "
          f"{refused} of them refusals: {len(wrong)} differences")
    if arguments.store:
        store(arguments.store, cases, expected)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
