"""Train a small looped transformer and export it in the released checkpoint format.

  python3 train_looped.py ouro  CORPUS_DIR OUT_DIR --minutes 10
  python3 train_looped.py raven CORPUS_DIR OUT_DIR --minutes 10

CORPUS_DIR holds tokens.bin (uint16), valid.bin and tokenizer.json, as prepare_corpus.py writes them.
OUT_DIR receives config.json and model.safetensors with the tensor names of ByteDance/Ouro-* or of the
retrofitted-recurrence (Raven) checkpoints, so that any loader of those reads it.

Ouro: every depth's readout is trained (mean cross-entropy over depths, the last one weighted double).
Raven: the depth of each step is drawn from a Poisson-lognormal with the given mean; gradients flow
through the last few recurrences only; the initial state is a truncated normal.
"""

import argparse
import json
import math
import os
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn

DEVICE = "cuda"
ROPE_THETA = 10000.0
MAX_POSITIONS = 2048
OURO_EPS, RAVEN_EPS = 1e-6, 1e-5


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=["ouro", "raven"])
    parser.add_argument("corpus")
    parser.add_argument("out")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--ff", type=int, default=1024, help="width of the MLP")
    parser.add_argument("--heads", type=int, default=6)
    parser.add_argument("--kv", type=int, default=0, help="KV heads; 0: as many as heads")
    parser.add_argument("--layers", type=int, default=6, help="of Ouro's one shared stack")
    parser.add_argument("--pre", type=int, default=2, help="Raven's layers before the loop")
    parser.add_argument("--core", type=int, default=3, help="Raven's layers in the loop")
    parser.add_argument("--post", type=int, default=2, help="Raven's layers after the loop")
    parser.add_argument("--R", dest="recurrence", type=int, default=4)
    parser.add_argument("--ctx", dest="context", type=int, default=512)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--backprop", type=int, default=6, help="recurrences that gradients flow through (Raven)")
    parser.add_argument("--mean-depth", type=float, default=12.0, help="of Raven's training steps")
    options = parser.parse_args()
    options.kv = options.kv or options.heads
    options.head_dim = options.hidden // options.heads
    return options


# ---- Corpus


class Corpus:
    def __init__(self, folder):
        self.train = self._read(f"{folder}/tokens.bin")
        self.valid = self._read(f"{folder}/valid.bin")
        with open(f"{folder}/tokenizer.json", encoding="utf-8") as file:
            tokenizer = json.load(file)
        self.special = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
        largest = max(*tokenizer["model"]["vocab"].values(), *self.special.values())
        self.vocab = (largest + 1 + 63) // 64 * 64  # a multiple of 64, for the GPU

    @staticmethod
    def _read(path):
        return torch.from_numpy(np.fromfile(path, dtype=np.uint16).astype(np.int32)).to(DEVICE)

    @staticmethod
    def batch(tokens, count, context):
        """Inputs and targets, each [count, context]: pieces from anywhere in the text."""
        starts = torch.randint(0, len(tokens) - context - 1, (count,), device=DEVICE)
        pieces = tokens[starts[:, None] + torch.arange(context + 1, device=DEVICE)[None]].long()
        return pieces[:, :-1], pieces[:, 1:]


# ---- Model


class RmsNorm(nn.Module):
    def __init__(self, size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), (x.shape[-1],), eps=self.eps).to(x.dtype) * self.weight.to(x.dtype)


class Rope:
    """cos and sin [context, head_dim], the two halves of a head rotated against each other."""

    def __init__(self, context, head_dim):
        frequencies = 1.0 / ROPE_THETA ** (torch.arange(0, head_dim, 2, device=DEVICE).float() / head_dim)
        angles = torch.outer(torch.arange(context, device=DEVICE).float(), frequencies)
        angles = torch.cat((angles, angles), -1)
        self.cos, self.sin = angles.cos(), angles.sin()

    def rotate(self, x):
        half = x.shape[-1] // 2
        turned = torch.cat((-x[..., half:], x[..., :half]), -1)
        return x * self.cos.to(x.dtype) + turned * self.sin.to(x.dtype)


class Attention(nn.Module):
    def __init__(self, options, rope):
        super().__init__()
        self.heads, self.kv, self.head_dim, self.rope = options.heads, options.kv, options.head_dim, rope
        self.qkv = nn.Linear(options.hidden, (self.heads + 2 * self.kv) * self.head_dim, bias=False)
        self.out = nn.Linear(self.heads * self.head_dim, options.hidden, bias=False)

    def sizes(self):
        return [self.heads * self.head_dim, self.kv * self.head_dim, self.kv * self.head_dim]

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, -1, self.head_dim).transpose(1, 2) for part in self.qkv(x).split(self.sizes(), -1))
        y = F.scaled_dot_product_attention(self.rope.rotate(q), self.rope.rotate(k), v, is_causal=True, enable_gqa=self.heads != self.kv)
        return self.out(y.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.gate_up = nn.Linear(options.hidden, 2 * options.ff, bias=False)
        self.down = nn.Linear(options.ff, options.hidden, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    """Norms before attention and MLP; with `sandwich` (Ouro) after them too."""

    def __init__(self, options, rope, eps, sandwich):
        super().__init__()
        self.attention, self.mlp = Attention(options, rope), Mlp(options)
        self.norm_1, self.norm_2 = RmsNorm(options.hidden, eps), RmsNorm(options.hidden, eps)
        self.after_1, self.after_2 = (RmsNorm(options.hidden, eps) if sandwich else nn.Identity() for _ in range(2))

    def forward(self, x):
        x = x + self.after_1(self.attention(self.norm_1(x)))
        return x + self.after_2(self.mlp(self.norm_2(x)))


class Ouro(nn.Module):
    def __init__(self, options, vocab, rope):
        super().__init__()
        self.options = options
        self.embedding = nn.Embedding(vocab, options.hidden)
        self.blocks = nn.ModuleList(Block(options, rope, OURO_EPS, True) for _ in range(options.layers))
        self.norm = RmsNorm(options.hidden, OURO_EPS)

    def compile_parts(self):
        self.recur = torch.compile(self.recur, dynamic=False)

    def recur(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def readouts(self, ids):
        """Hidden states that the head reads, of every depth."""
        x, states = self.embedding(ids), {}
        for depth in range(1, self.options.recurrence + 1):
            x = states[depth] = self.recur(x)
        return states

    def head(self, x):
        return F.linear(x, self.embedding.weight)

    def losses(self, ids, targets, cross_entropy, _):
        """What is minimised, and the losses to print: of every depth."""
        each = [cross_entropy(x, targets, self.head) for x in self.readouts(ids).values()]
        return (sum(each) + each[-1]) / (len(each) + 1), each


class Raven(nn.Module):
    def __init__(self, options, vocab, rope):
        super().__init__()
        self.options = options
        self.embedding = nn.Embedding(vocab, options.hidden)
        self.pre, self.core, self.post = (
            nn.ModuleList(Block(options, rope, RAVEN_EPS, False) for _ in range(count))
            for count in (options.pre, options.core, options.post))
        self.adapter = nn.Linear(2 * options.hidden, options.hidden, bias=False)
        self.norm = RmsNorm(options.hidden, RAVEN_EPS)
        self.head = nn.Linear(options.hidden, vocab, bias=False)
        self.state_std = math.sqrt(2 / (5 * options.hidden))

    def compile_parts(self):
        self.prelude, self.recur, self.coda = (
            torch.compile(part, dynamic=False) for part in (self.prelude, self.recur, self.coda))

    def prelude(self, ids):
        x = self.embedding(ids)
        for block in self.pre:
            x = block(x)
        return x

    def recur(self, state, injected):
        x = self.adapter(torch.cat((state, injected), -1))
        for block in self.core:
            x = block(x)
        return x

    def coda(self, x):
        for block in self.post:
            x = block(x)
        return self.norm(x)

    def initial_state(self, injected):
        return nn.init.trunc_normal_(torch.empty_like(injected), 0, self.state_std, -3 * self.state_std, 3 * self.state_std)

    def readouts(self, ids):
        """Hidden states that the head reads, of a few depths and the last."""
        injected = self.prelude(ids)
        state, states = self.initial_state(injected), {}
        for depth in range(1, self.options.recurrence + 1):
            state = self.recur(state, injected)
            if depth in (1, 2, 4, 8, self.options.recurrence):
                states[depth] = self.coda(state)
        return states

    def draw_depth(self, rng):
        rate = rng.lognormal(math.log(self.options.mean_depth) - 0.125, 0.5)
        return int(np.clip(rng.poisson(rate) + 1, 1, 2 * self.options.recurrence))

    def losses(self, ids, targets, cross_entropy, rng):
        """What is minimised, and the losses to print: of the depth that was drawn."""
        depth = self.draw_depth(rng)
        injected = self.prelude(ids)
        state = self.initial_state(injected)
        with torch.no_grad():
            for _ in range(max(depth - self.options.backprop, 0)):
                state = self.recur(state, injected)
        for _ in range(min(depth, self.options.backprop)):
            state = self.recur(state, injected)
        loss = cross_entropy(self.coda(state), targets, self.head)
        return loss, [loss]


def initialise(model, options):
    layers = options.layers if options.family == "ouro" else options.pre + options.core + options.post
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            writes_residual = name.endswith(("attention.out.weight", "mlp.down.weight"))
            nn.init.normal_(parameter, 0, 0.02 / math.sqrt(2 * layers) if writes_residual else 0.02)
    if options.family == "raven":  # the adapter begins near half the state plus what is injected
        eye = torch.eye(options.hidden, device=DEVICE)
        with torch.no_grad():
            noise = 0.01 * torch.randn(options.hidden, 2 * options.hidden, device=DEVICE)
            model.adapter.weight.copy_(torch.cat((0.5 * eye, eye), 1) + noise)


# ---- Training


def make_cross_entropy(vocab):
    def cross_entropy(x, targets, head):
        return F.cross_entropy(head(x).float().view(-1, vocab), targets.reshape(-1))

    return torch.compile(cross_entropy, dynamic=False)


def make_optimizer(model, learning_rate):
    matrices = [parameter for parameter in model.parameters() if parameter.dim() == 2]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95), fused=True)


def learning_rate_at(options, step, share):
    """200 steps of warm-up; constant for 0.3 of the time, then down to 2 %."""
    return options.lr * min(1, (step + 1) / 200) * (1 if share < 0.3 else max(0.02, (1 - share) / 0.7))


def train(model, corpus, options):
    optimizer, cross_entropy = make_optimizer(model, options.lr), make_cross_entropy(corpus.vocab)
    rng = np.random.default_rng(options.seed)
    begin, step = time.time(), 0
    while (elapsed := time.time() - begin) < options.minutes * 60:
        learning_rate = learning_rate_at(options, step, elapsed / (options.minutes * 60))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        ids, targets = corpus.batch(corpus.train, options.batch, options.context)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss, shown = model.losses(ids, targets, cross_entropy, rng)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        if step % 200 == 0:
            tokens = step * options.batch * options.context / 1e6
            print(f"step {step} t {elapsed:.0f}s tokens {tokens:.0f}M loss {loss.item():.3f} "
                  f"{[round(each.item(), 3) for each in shown]} lr {learning_rate:.2e}", flush=True)


@torch.no_grad()
def evaluate(model, corpus, options, batches=16):
    """By depth: the loss on held-out text, and the share of positions whose choice is the last depth's."""
    torch.manual_seed(0)
    sums = {}
    for _ in range(batches):
        ids, targets = corpus.batch(corpus.valid, 32, options.context)
        with torch.autocast(DEVICE, torch.bfloat16):
            states = model.readouts(ids)
            last = model.head(states[options.recurrence]).argmax(-1)
            for depth, state in states.items():
                logits = model.head(state).float()
                loss = F.cross_entropy(logits.view(-1, corpus.vocab), targets.reshape(-1)).item()
                agreement = (logits.argmax(-1) == last).float().mean().item()
                before = sums.get(depth, (0.0, 0.0))
                sums[depth] = (before[0] + loss / batches, before[1] + agreement / batches)
    return {depth: (round(loss, 3), round(agreement, 3)) for depth, (loss, agreement) in sums.items()}


# ---- Export


def ouro_tensors(model, options):
    gate = {"model.early_exit_gate.weight": torch.zeros(1, options.hidden), "model.early_exit_gate.bias": torch.zeros(1)}
    tensors = {"model.embed_tokens": model.embedding.weight, "model.norm": model.norm.weight}
    for number, block in enumerate(model.blocks):
        q, k, v = block.attention.qkv.weight.split(block.attention.sizes())
        gate_matrix, up = block.mlp.gate_up.weight.chunk(2)
        layer = {"self_attn.q_proj": q, "self_attn.k_proj": k, "self_attn.v_proj": v, "self_attn.o_proj": block.attention.out.weight,
                 "mlp.gate_proj": gate_matrix, "mlp.up_proj": up, "mlp.down_proj": block.mlp.down.weight,
                 "input_layernorm": block.norm_1.weight, "input_layernorm_2": block.after_1.weight,
                 "post_attention_layernorm": block.norm_2.weight, "post_attention_layernorm_2": block.after_2.weight}
        tensors.update({f"model.layers.{number}.{name}": tensor for name, tensor in layer.items()})
    return {**gate, **{f"{name}.weight": tensor for name, tensor in tensors.items()}}


def raven_tensors(model):
    tensors = {"transformer.wte": model.embedding.weight, "transformer.adapter": model.adapter.weight,
               "transformer.ln_f": model.norm.weight, "lm_head": model.head.weight}
    for part, blocks in (("prelude", model.pre), ("core_block", model.core), ("coda", model.post)):
        for number, block in enumerate(blocks):
            layer = {"attn.Wqkv": block.attention.qkv.weight, "attn.proj": block.attention.out.weight,
                     "mlp.fc": block.mlp.gate_up.weight, "mlp.proj": block.mlp.down.weight,
                     "norm_1": block.norm_1.weight, "norm_2": block.norm_2.weight}
            tensors.update({f"transformer.{part}.{number}.{name}": tensor for name, tensor in layer.items()})
    return {f"{name}.weight": tensor for name, tensor in tensors.items()}


def ouro_config(options, vocab):
    return {"architectures": ["OuroForCausalLM"], "model_type": "ouro", "vocab_size": vocab, "hidden_size": options.hidden,
            "intermediate_size": options.ff, "num_hidden_layers": options.layers, "num_attention_heads": options.heads,
            "num_key_value_heads": options.kv, "head_dim": options.head_dim, "hidden_act": "silu",
            "max_position_embeddings": MAX_POSITIONS, "rms_norm_eps": OURO_EPS, "rope_theta": ROPE_THETA, "rope_scaling": None,
            "total_ut_steps": options.recurrence, "early_exit_threshold": 1.0, "tie_word_embeddings": True,
            "layer_types": ["full_attention"] * options.layers, "use_sliding_window": False, "sliding_window": None}


def raven_config(options, vocab, state_std):
    return {"architectures": ["RavenForCausalLM"], "model_type": "huginn_raven",
            "auto_map": {"AutoModelForCausalLM": "raven_modeling_minimal_llama.RavenForCausalLM"},
            "n_embd": options.hidden, "n_heads": options.heads, "num_key_value_heads": options.kv, "head_dim": options.head_dim,
            "n_layers": options.pre + options.core + options.post, "n_layers_in_prelude": options.pre,
            "n_layers_in_recurrent_block": options.core, "n_layers_in_coda": options.post, "mean_recurrence": options.recurrence,
            "intermediate_size": options.ff, "vocab_size": vocab, "padded_vocab_size": vocab, "norm_eps": RAVEN_EPS,
            "rope_base": ROPE_THETA, "rope_theta": ROPE_THETA, "rope_scaling": None, "tie_embeddings": False, "qk_bias": False,
            "bias": False, "injection_type": "linear", "block_class_name": "SandwichBlock",
            "init_values": {"std": state_std, "out_proj": state_std, "embedding": state_std, "embed_scale": 1.0},
            "test_time_noise": 0, "max_position_embeddings": MAX_POSITIONS}


def export(model, corpus, options):
    os.makedirs(options.out, exist_ok=True)
    if options.family == "ouro":
        tensors, config = ouro_tensors(model, options), ouro_config(options, corpus.vocab)
    else:
        tensors, config = raven_tensors(model), raven_config(options, corpus.vocab, model.state_std)
    end = corpus.special["<|endoftext|>"]
    config.update(torch_dtype="bfloat16", bos_token_id=end, eos_token_id=end)
    with open(f"{options.out}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file, indent=1)
    path = f"{options.out}/model.safetensors"
    save_file({name: tensor.detach().to(torch.bfloat16).contiguous().cpu().clone() for name, tensor in tensors.items()}, path,
              metadata={"format": "pt"})
    print("wrote", options.out, os.path.getsize(path) / 1e6, "MB", flush=True)


def main():
    options = parse_arguments()
    torch.manual_seed(options.seed)
    torch.set_float32_matmul_precision("high")
    corpus = Corpus(options.corpus)
    rope = Rope(options.context, options.head_dim)
    model = (Ouro if options.family == "ouro" else Raven)(options, corpus.vocab, rope).to(DEVICE)
    initialise(model, options)
    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"params {parameters} M, vocab {corpus.vocab}, train tokens {len(corpus.train) / 1e6} M", flush=True)
    model.compile_parts()
    train(model, corpus, options)
    print("valid loss, agreement with last depth by depth:", evaluate(model, corpus, options), flush=True)
    export(model, corpus, options)


if __name__ == "__main__":
    main()
