"""Times prompts of Nanbeige4.2-3B and Huginn-0125 in PyTorch, as a peer of cuda_prefill_bench: the same work in bf16, with
random weights, a compiled function for each kind of block and PyTorch's own attention.
  prefill_peer.py nanbeige|huginn TOKENS ...
P, every recurrence (Huginn's with the adapter) and C's blocks at three readout depths; all keys and values are kept, and a
stack that nothing reads ends with its last keys and values, as ours do. The embedding and the head are left out."""

import statistics
import sys
from dataclasses import dataclass

import torch
from torch.nn import functional

REPEATS = 5


@dataclass
class Shape:
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ff: int
    recurrences: int
    prelude: int
    core: int
    coda: int
    readouts: tuple  # depths at which C runs
    norms_of_sums: bool  # Huginn's: the stream itself is normed; and q and k have biases


SHAPES = {
    "nanbeige": Shape(3072, 48, 8, 128, 10752, 2, 0, 22, 0, (), False),
    "huginn": Shape(5280, 55, 55, 96, 17920, 32, 2, 4, 2, (4, 16, 32), True),
}


def weights(*sizes):
    return torch.empty(sizes, device="cuda", dtype=torch.bfloat16).uniform_(-0.02, 0.02)


def make_block(shape):
    q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    return {
        "norms": [torch.ones(shape.hidden, device="cuda", dtype=torch.bfloat16) for _ in range(4)],
        "qkv": weights(q + 2 * kv, shape.hidden),
        "bias": weights(q + kv),
        "out": weights(shape.hidden, q),
        "gate_up": weights(2 * shape.ff, shape.hidden),
        "down": weights(shape.hidden, shape.ff),
    }


def norm(x, weight):
    return functional.rms_norm(x, (x.shape[-1],), weight, 1e-5)


def turn(x, cosine, sine):
    low, high = x.chunk(2, -1)
    return torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)


def queries_keys_values(shape, block, x, rope):
    q_size, kv_size = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    q, k, v = functional.linear(norm(x, block["norms"][0]), block["qkv"]).split([q_size, kv_size, kv_size], -1)
    if shape.norms_of_sums:
        q, k = q + block["bias"][:q_size], k + block["bias"][q_size:]
    q, k, v = (part.unflatten(-1, (-1, shape.head_dim)) for part in (q, k, v))
    return turn(q, *rope), turn(k, *rope), v


def run_block(shape, block, x, rope):
    q, k, v = queries_keys_values(shape, block, x, rope)
    heads = functional.scaled_dot_product_attention(
        *(part.transpose(0, 1).unsqueeze(0) for part in (q, k, v)), is_causal=True, enable_gqa=shape.heads != shape.kv_heads
    )
    x = x + functional.linear(heads.squeeze(0).transpose(0, 1).flatten(1), block["out"])
    if shape.norms_of_sums:
        x = norm(x, block["norms"][1])
    gate, up = functional.linear(norm(x, block["norms"][2]), block["gate_up"]).chunk(2, -1)
    x = x + functional.linear(functional.silu(gate) * up, block["down"])
    if shape.norms_of_sums:
        x = norm(x, block["norms"][3])
    return x, k, v


class Prompt:
    def __init__(self, shape, tokens):
        self.shape = shape
        self.stacks = [[make_block(shape) for _ in range(n)] for n in (shape.prelude, shape.core, shape.coda)]
        self.adapter = weights(shape.hidden, 2 * shape.hidden) if shape.prelude else None
        self.last_norm = torch.ones(shape.hidden, device="cuda", dtype=torch.bfloat16)
        self.x = torch.randn(tokens, shape.hidden, device="cuda", dtype=torch.bfloat16)
        angles = torch.arange(tokens, device="cuda").unsqueeze(1) * torch.logspace(0, -5, shape.head_dim // 2, device="cuda")
        self.rope = [part(angles).to(torch.bfloat16).unsqueeze(1) for part in (torch.cos, torch.sin)]
        self.block = torch.compile(lambda block, x: run_block(shape, block, x, self.rope), dynamic=False)
        self.keys = torch.compile(lambda block, x: queries_keys_values(shape, block, x, self.rope)[1:], dynamic=False)
        self.enter = torch.compile(
            lambda x, e: functional.linear(torch.cat((x, e), -1), self.adapter), dynamic=False
        )

    def run_stack(self, stack, x, kept, nobody_reads):
        for i, block in enumerate(stack):
            if nobody_reads and i + 1 == len(stack):
                kept.append(self.keys(block, x))
            else:
                x, k, v = self.block(block, x)
                kept.append((k, v))
        return x

    def run(self):
        kept = []
        prelude, core, coda = self.stacks
        x = e = self.run_stack(prelude, self.x, kept, False)
        for depth in range(1, self.shape.recurrences + 1):
            if self.adapter is not None:
                x = self.enter(x, e)
            x = self.run_stack(core, x, kept, depth == self.shape.recurrences and not coda)
            if not coda and depth < self.shape.recurrences:
                x = norm(x, self.last_norm)  # Nanbeige's, between the loops
            if depth in self.shape.readouts:
                self.run_stack(coda, norm(x, self.last_norm), kept, True)
        return kept

    def flop(self):
        """As cuda_prefill_bench counts it: all layers whole."""
        shape, tokens = self.shape, self.x.shape[0]
        q, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        block = 2 * tokens * shape.hidden * (2 * q + 2 * kv + 3 * shape.ff) + 2 * tokens * tokens * q
        adapter = 4 * tokens * shape.hidden**2 if self.adapter is not None else 0
        blocks = shape.prelude + shape.recurrences * shape.core + len(shape.readouts) * shape.coda
        return blocks * block + shape.recurrences * adapter


@torch.no_grad()
def time_prompt(family, tokens):
    prompt = Prompt(SHAPES[family], tokens)
    milliseconds = []
    for i in range(REPEATS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        prompt.run()
        end.record()
        end.synchronize()
        if i >= 2:
            milliseconds.append(begin.elapsed_time(end))
    median, flop = statistics.median(milliseconds), prompt.flop()
    print(
        f"{family} prefill T={tokens} ms={median:.2f} ({min(milliseconds):.2f} to {max(milliseconds):.2f})"
        f" TFLOP={flop * 1e-12:.1f} TFLOPs={flop / median * 1e-9:.0f}",
        flush=True,
    )


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in SHAPES:
        sys.exit("usage: prefill_peer.py nanbeige|huginn TOKENS ...")
    torch.manual_seed(0)
    for tokens in sys.argv[2:]:
        time_prompt(sys.argv[1], int(tokens))
        torch.compiler.reset()


main()
