#!/usr/bin/env python3
"""One recurrence of a looped model in PyTorch, timed by itself: what cuda_step_bench's rows stand beside.

  python3 bench/peers/torch_step.py ouro --rows 1,4,64 [--context 1024] [--parts core,head] [--device cuda]

The looped blocks (core) and the last norm with the head (head), in bf16 with random weights, each compiled by torch.compile and, on a GPU,
replayed as a CUDA graph, so that neither Python nor launches are timed. Rows are new tokens of one text; each attends to --context positions
and to the new ones before it, whose keys and values the step writes. That is less work than LoopSpec's step, whose rows read keys of several
depths. Nothing else runs: no embedding, no adapter of Raven's, no choice of a token.

Every part is timed --repeat times after --warm-up; the median is printed with the least and the most, and what the part must read (weights,
and keys and values once) over the median.
"""

import argparse
import math
import statistics
import time
from dataclasses import dataclass

import torch
from torch.nn import functional


@dataclass
class Shape:
    name: str  # as scripts/gpu-check.py looks for it
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed: int
    vocab: int
    norm_after: bool  # Ouro's: a norm on what a sublayer adds as well

    def layer_elements(self):
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden * (2 * queries + 2 * keys + 3 * self.feed) + (4 if self.norm_after else 2) * self.hidden


SHAPES = {
    "ouro": Shape("ouro-1.4B", 24, 2048, 16, 16, 128, 5632, 49152, True),
    "raven": Shape("raven-llama-core", 6, 2048, 32, 8, 64, 8192, 128256, False),
    "tiny": Shape("tiny", 2, 64, 4, 2, 16, 160, 512, True),  # for a trial
}
ELEMENT = 2  # bytes of bf16


class Step:
    """A recurrence of `rows` rows of one text. Keys and values of the layers are buffers that the step itself fills at its end."""

    def __init__(self, shape, rows, context, device):
        self.shape, self.rows, self.context, self.device = shape, rows, context, device
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.layers = [
            {
                "norms": [torch.ones(shape.hidden, device=device, dtype=torch.bfloat16) for _ in range(4 if shape.norm_after else 2)],
                "into": self.random(queries + 2 * keys, shape.hidden),
                "out": self.random(shape.hidden, queries),
                "gate_up": self.random(2 * shape.feed, shape.hidden),
                "down": self.random(shape.hidden, shape.feed),
                # All positions of a head lie together.
                "keys": self.random(shape.kv_heads, context + rows, shape.head_dim),
                "values": self.random(shape.kv_heads, context + rows, shape.head_dim),
            }
            for _ in range(shape.layers)
        ]
        self.last_norm = torch.ones(shape.hidden, device=device, dtype=torch.bfloat16)
        self.head = self.random(shape.vocab, shape.hidden)
        self.state = self.random(rows, shape.hidden)
        at = torch.arange(context, context + rows, device=device, dtype=torch.float32)
        rates = torch.exp(torch.arange(shape.head_dim // 2, device=device) * (-2 * math.log(1e6) / shape.head_dim))
        self.cosine, self.sine = (part(torch.outer(at, rates)).to(torch.bfloat16)[:, None, :] for part in (torch.cos, torch.sin))
        # A row sees the context, the rows before it and itself. A single row sees everything, and needs no mask.
        sees = torch.ones(rows, context + rows, dtype=torch.bool, device=device).tril(context)
        self.mask = sees if rows > 1 else None

    def random(self, *sizes):
        return torch.empty(sizes, device=self.device, dtype=torch.bfloat16).uniform_(-0.03, 0.03)

    def norm(self, x, weight):
        return functional.rms_norm(x, (self.shape.hidden,), weight, 1e-6)

    def rotated(self, x):
        first, second = x.chunk(2, -1)
        return torch.cat((first * self.cosine - second * self.sine, second * self.cosine + first * self.sine), -1)

    def attended(self, layer, x):
        shape = self.shape
        parts = functional.linear(x, layer["into"]).unflatten(-1, (-1, shape.head_dim))
        query, key, value = parts.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        layer["keys"][:, self.context :].copy_(self.rotated(key).transpose(0, 1))
        layer["values"][:, self.context :].copy_(value.transpose(0, 1))
        heads = functional.scaled_dot_product_attention(
            self.rotated(query).transpose(0, 1)[None], layer["keys"][None], layer["values"][None],
            attn_mask=self.mask, enable_gqa=shape.heads != shape.kv_heads,
        )
        return functional.linear(heads[0].transpose(0, 1).flatten(1), layer["out"])

    def fed(self, layer, x):
        gate, up = functional.linear(x, layer["gate_up"]).chunk(2, -1)
        return functional.linear(functional.silu(gate) * up, layer["down"])

    def core(self, x):
        for layer in self.layers:
            norms = iter(layer["norms"])
            for sublayer in (self.attended, self.fed):
                added = sublayer(layer, self.norm(x, next(norms)))
                x = x + (self.norm(added, next(norms)) if self.shape.norm_after else added)
        return x

    def readout(self, x):
        return functional.linear(self.norm(x, self.last_norm), self.head).argmax(-1)

    def core_bytes(self):
        shape = self.shape
        kept = 2 * shape.kv_heads * shape.head_dim * (self.context + self.rows)
        return ELEMENT * shape.layers * (shape.layer_elements() + kept)

    def head_bytes(self):
        return ELEMENT * self.shape.hidden * (self.shape.vocab + 1)


def prepared(part, x, device):
    """A call without arguments that runs the compiled part once; on a GPU the replay of a graph."""
    compiled = torch.compile(part, mode="max-autotune-no-cudagraphs" if device == "cuda" else "default", dynamic=False)
    if device != "cuda":
        return lambda: compiled(x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            compiled(x)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compiled(x)
    return graph.replay


def milliseconds(call, device):
    if device != "cuda":
        begin = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - begin)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end)


def timed(call, options):
    for _ in range(options.warm_up):
        call()
    return [milliseconds(call, options.device) for _ in range(options.repeat)]


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("--rows", default="1,4,64")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--parts", default="core,head")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=50)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    print(f"PyTorch {torch.__version__}, {where}; medians of {options.repeat} (least to most)", flush=True)
    shape = SHAPES[options.shape]
    for rows in map(int, options.rows.split(",")):
        step = Step(shape, rows, options.context, options.device)
        for letter, name, part, size in (("B", "core", step.core, step.core_bytes()), ("C", "head", step.readout, step.head_bytes())):
            if name not in options.parts.split(","):
                continue
            times = timed(prepared(part, step.state, options.device), options)
            middle = statistics.median(times)
            print(
                f"{shape.name} {letter} rows={rows} ctx={options.context} ms={middle:.4f} ({min(times):.4f} to {max(times):.4f})"
                f" GB={size * 1e-9:.3f} TBps={size / middle * 1e-9:.3f}",
                flush=True,
            )
            torch.compiler.reset()


if __name__ == "__main__":
    main()
