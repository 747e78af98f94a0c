#!/usr/bin/env python3
"""Fails when a file includes what its folder may not know. The rules are the architecture: see docs/architecture.md."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Headers of the CUDA backend's host/ that the folders below it may include: how weights lie in the GPU's memory, and what
# the code that launches kernels needs.
CUDA_MEMORY = ["src/backends/cuda/host/device_model.h", "src/backends/cuda/host/tensor_maps.h", "src/backends/cuda/host/weight_form.h"]
CUDA_RUNTIME = ["src/backends/cuda/host/architecture.h", "src/backends/cuda/host/cuda_memory.h", "src/backends/cuda/host/transfers.h"]

# folder -> folders whose headers it may include (its own is always allowed)
ALLOWED = {
    "src/base": set(),
    "src/tensor": {"src/base"},
    "src/model": {"src/tensor", "src/base"},
    "src/kv": {"src/model", "src/tensor", "src/base"},
    "src/fields": {"src/base"},  # and include/: what it describes
    "src/sampling": {"src/base"},
    "src/decode": {"src/grammar/grammar.h", "src/fields", "src/kv", "src/sampling", "src/model", "src/tensor", "src/base", "src/backends/backend.h"},
    "src/backends": {"src/kv", "src/sampling", "src/model", "src/tensor", "src/base"},
    "src/backends/cpu": {"src/backends/backend.h", "src/model", "src/kv", "src/sampling", "src/tensor", "src/base"},
    "src/backends/cuda/host": {"src/backends/cuda", "src/backends/backend.h", "src/model", "src/kv", "src/tensor", "src/base"},
    "src/backends/cuda/program": {"src/backends/cuda/host/device_model.h", "src/backends/cuda/sampling/sampling_kernel.h", "src/backends/backend.h", "src/kv", "src/base"},
    "src/backends/cuda/device": {"src/backends/cuda/program", *CUDA_MEMORY, "src/model", "src/kv", "src/base"},
    "src/backends/cuda/attention": {"src/backends/cuda/device", "src/kv"},
    "src/backends/cuda/decode": {"src/backends/cuda/attention", "src/backends/cuda/device", "src/backends/cuda/program", "src/backends/cuda/host/architecture.h", "src/kv", "src/base"},
    "src/backends/cuda/prefill": {"src/backends/cuda/device", *CUDA_MEMORY, *CUDA_RUNTIME, "src/backends/backend.h", "src/kv", "src/base"},
    "src/backends/cuda/sampling": {"src/backends/cuda/program/plan.h", "src/sampling", "src/base"},
    "src/backends/no_cuda": {"src/backends/backend.h", "src/base"},
    "src/grammar": {"src/base"},
    "src/hub": {"src/base"},
    "src/jinja": {"src/base"},
    "src/text": {"src/jinja/template.h", "src/base"},
    "src/engine": {"src/grammar/grammar.h", "src/fields", "src/decode", "src/backends/backend.h", "src/kv", "src/sampling", "src/model", "src/tensor", "src/text", "src/base"},
    "src/serve/http": {"src/base"},
    "src/serve/openai": {"src/fields", "src/text/answer_parts.h", "src/text/chat_json.h", "src/text/reasoning.h", "src/text/tool_format.h", "src/text/tool_grammar.h", "src/text/tool_reader.h", "src/text/unicode.h", "src/base"},  # and include/: the engine's public face
    "src/serve/messages": {"src/serve/openai", "src/text/answer_parts.h", "src/base"},
    "src/serve/responses": {"src/fields", "src/serve/openai", "src/text/answer_parts.h", "src/base"},
    "src/serve/page": set(),
    "src/serve/server": {"src/fields", "src/serve", "src/text/chat_json.h", "src/base"},
    "src/report": {"src/base"},
    "src/calibrate": {"src/fields", "src/report", "src/engine", "src/decode", "src/backends/backend.h", "src/kv", "src/sampling", "src/model", "src/tensor", "src/text", "src/base"},
    "src/lens": {"src/calibrate/exit_gate.h", "src/report", "src/backends/backend.h", "src/kv", "src/sampling", "src/model", "src/tensor", "src/base"},
    "src/quantize": {"src/backends/backend.h", "src/kv", "src/model", "src/tensor", "src/base"},
    "src/experiments": {"src/fields", "src/calibrate", "src/report", "src/engine", "src/decode", "src/backends/backend.h", "src/kv", "src/sampling", "src/model", "src/tensor", "src/text", "src/base"},
    "src/experiments/tasks": {"src/base"},
    "src/engine/load": {"src/fields", "src/hub/cache.h", "src/decode", "src/backends/backend.h", "src/kv", "src/sampling", "src/model", "src/tensor", "src/text", "src/base"},
    "src/engine/pages": {"src/backends/backend.h", "src/kv", "src/model", "src/tensor", "src/base"},
    "src/engine/schedule": {"src/engine/load", "src/engine/pages", "src/engine/prompt_scores.h", "src/engine/token_stream.h", "src/grammar/grammar.h", "src/fields", "src/decode", "src/backends/backend.h", "src/kv", "src/sampling", "src/model", "src/tensor", "src/text", "src/base"},
    "tools": {"src", "tools"},
    "python": {"src/fields", "src/calibrate", "src/report/trace_picture.h", "src/engine/session.h", "src/engine/load", "src/hub/pull.h", "src/model/model_spec.h", "src/sampling/filters.h", "src/base"},
}
# headers from outside -> files or folders that may include them. CUDA's stay in the backend; the others take seconds to
# compile, or are a choice that the rest of the code need not know.
OUTSIDE = {
    re.compile(r"^(cuda|cublas|cooperative_groups|mma|nv)"): {"src/backends/cuda"},
    re.compile(r"^nlohmann/"): {"src/base/json.h", "src/base/json_fwd.h"},
    re.compile(r"^boost/"): {"src/serve/http"},
    re.compile(r"^prometheus/"): {"src/serve/server/metrics.cc"},
    re.compile(r"^nanobind/"): {"python"},
    re.compile(r"^hwy/"): {"src/backends/cpu"},
    re.compile(r"^curl/"): {"src/hub/http.cc"},
    re.compile(r"^openssl/"): {"src/hub/digest.cc"},
    re.compile(r"^(histedit|editline)"): {"tools"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s+(["<])([^">]+)[">]')


def folder_of(path):
    parts = path.relative_to(ROOT).parts
    nested = parts[:2] in {("src", "backends"), ("src", "experiments"), ("src", "engine"), ("src", "serve")} and len(parts) > 3
    depth = 4 if parts[:3] == ("src", "backends", "cuda") else 3 if nested else 2 if parts[0] == "src" else 1
    return "/".join(parts[:depth])


def within(path, places):
    return any(path == place or path.startswith((place + "/", place + ":")) for place in places)


def allowed(folder, target):
    return target.startswith(folder + "/") or within(target, ALLOWED[folder])


def main():
    failures = []
    for path in sorted([*ROOT.glob("src/**/*"), *ROOT.glob("tools/**/*"), *ROOT.glob("python/module/*")]):
        if path.suffix not in {".h", ".cc", ".cu", ".cuh", ".inc"}:
            continue
        folder = folder_of(path)
        if folder not in ALLOWED:
            failures.append(f"{path.relative_to(ROOT)}: folder {folder} has no rule")
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            quote, name = match.groups()
            where = f"{path.relative_to(ROOT)}:{number}"
            if quote == "<" or not any((ROOT / base / name).exists() for base in ("src", ".", "include")):
                for pattern, homes in OUTSIDE.items():
                    if pattern.match(name) and not within(where, homes):
                        failures.append(f"{where}: {name} may be included in {', '.join(sorted(homes))} only")
                continue
            if (ROOT / "include" / name).exists():
                continue
            target = ("src/" + name) if (ROOT / "src" / name).exists() else name
            if not allowed(folder, target):
                failures.append(f"{where}: {folder} may not include {target}")
    for failure in failures:
        print(failure)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
