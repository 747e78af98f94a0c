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
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument("family", choices=["ouro", "raven"])
ap.add_argument("corpus")
ap.add_argument("out")
ap.add_argument("--minutes", type=float, default=10)
ap.add_argument("--hidden", type=int, default=384)
ap.add_argument("--ff", type=int, default=1024)
ap.add_argument("--heads", type=int, default=6)
ap.add_argument("--kv", type=int, default=0)
ap.add_argument("--layers", type=int, default=6)
ap.add_argument("--pre", type=int, default=2)
ap.add_argument("--core", type=int, default=3)
ap.add_argument("--post", type=int, default=2)
ap.add_argument("--R", type=int, default=4)
ap.add_argument("--ctx", type=int, default=512)
ap.add_argument("--batch", type=int, default=128)
ap.add_argument("--lr", type=float, default=2e-3)
ap.add_argument("--seed", type=int, default=1)
ap.add_argument("--backprop", type=int, default=6)
ap.add_argument("--mean-depth", type=float, default=12.0)
a = ap.parse_args()
torch.manual_seed(a.seed)
torch.set_float32_matmul_precision("high")
dev = "cuda"
D, H, hd = a.hidden, a.heads, a.hidden // a.heads
KV = a.kv or H
train = torch.from_numpy(
    np.fromfile(f"{a.corpus}/tokens.bin", dtype=np.uint16).astype(np.int32)
).to(dev)
valid = torch.from_numpy(np.fromfile(f"{a.corpus}/valid.bin", dtype=np.uint16).astype(np.int32)).to(
    dev
)
V = int(max(json.load(open(f"{a.corpus}/tokenizer.json"))["model"]["vocab"].values())) + 1
V = max(
    V,
    max((t["id"] for t in json.load(open(f"{a.corpus}/tokenizer.json"))["added_tokens"]), default=0)
    + 1,
)
V = (V + 63) // 64 * 64
theta = 10000.0


class RMS(nn.Module):
    def __init__(s, d, eps):
        super().__init__()
        s.weight = nn.Parameter(torch.ones(d))
        s.eps = eps

    def forward(s, x):
        return F.rms_norm(x.float(), (x.shape[-1],), eps=s.eps).to(x.dtype) * s.weight.to(x.dtype)


def rope_tables(T):
    inv = 1.0 / theta ** (torch.arange(0, hd, 2, device=dev).float() / hd)
    f = torch.outer(torch.arange(T, device=dev).float(), inv)
    e = torch.cat((f, f), -1)
    return e.cos(), e.sin()


class Attn(nn.Module):
    def __init__(s):
        super().__init__()
        s.qkv = nn.Linear(D, (H + 2 * KV) * hd, bias=False)
        s.o = nn.Linear(H * hd, D, bias=False)

    def forward(s, x, cos, sin):
        B, T, _ = x.shape
        q, k, v = s.qkv(x).split([H * hd, KV * hd, KV * hd], -1)
        q = q.view(B, T, H, hd).transpose(1, 2)
        k = k.view(B, T, KV, hd).transpose(1, 2)
        v = v.view(B, T, KV, hd).transpose(1, 2)

        def rot(t):
            return torch.cat((-t[..., hd // 2 :], t[..., : hd // 2]), -1)

        c, n = cos.to(q.dtype), sin.to(q.dtype)
        q = q * c + rot(q) * n
        k = k * c + rot(k) * n
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=H != KV)
        return s.o(y.transpose(1, 2).reshape(B, T, -1))


class MLP(nn.Module):
    def __init__(s):
        super().__init__()
        s.gu = nn.Linear(D, 2 * a.ff, bias=False)
        s.dn = nn.Linear(a.ff, D, bias=False)

    def forward(s, x):
        g, u = s.gu(x).chunk(2, -1)
        return s.dn(F.silu(g) * u)


class Block(nn.Module):
    def __init__(s, sandwich, eps):
        super().__init__()
        s.attn, s.mlp = Attn(), MLP()
        s.n1, s.n2 = RMS(D, eps), RMS(D, eps)
        s.m1, s.m2 = (RMS(D, eps), RMS(D, eps)) if sandwich else (nn.Identity(), nn.Identity())

    def forward(s, x, c, n):
        x = x + s.m1(s.attn(s.n1(x), c, n))
        return x + s.m2(s.mlp(s.n2(x)))


class Ouro(nn.Module):
    def __init__(s):
        super().__init__()
        s.wte = nn.Embedding(V, D)
        s.blocks = nn.ModuleList(Block(True, 1e-6) for _ in range(a.layers))
        s.norm = RMS(D, 1e-6)

    def loop(s, x, c, n):
        for b in s.blocks:
            x = b(x, c, n)
        return s.norm(x)

    def forward(s, ids, depth, c, n):
        x, hs = s.wte(ids), []
        for _ in range(depth):
            x = s.loop(x, c, n)
            hs.append(x)
        return hs

    def head(s, h):
        return F.linear(h, s.wte.weight)


STD = math.sqrt(2 / (5 * D))


class Raven(nn.Module):
    def __init__(s):
        super().__init__()
        s.wte = nn.Embedding(V, D)

        def mk(k):
            return nn.ModuleList(Block(False, 1e-5) for _ in range(k))

        s.pre, s.core, s.post = mk(a.pre), mk(a.core), mk(a.post)
        s.adapter = nn.Linear(2 * D, D, bias=False)
        s.ln_f = RMS(D, 1e-5)
        s.lm_head = nn.Linear(D, V, bias=False)

    def prelude(s, ids, c, n):
        e = s.wte(ids)
        for b in s.pre:
            e = b(e, c, n)
        return e

    def step(s, x, e, c, n):
        x = s.adapter(torch.cat((x, e), -1))
        for b in s.core:
            x = b(x, c, n)
        return x

    def coda(s, x, c, n):
        for b in s.post:
            x = b(x, c, n)
        return s.ln_f(x)

    def state(s, e):
        return nn.init.trunc_normal_(torch.empty_like(e), 0, STD, -3 * STD, 3 * STD)


model = (Ouro() if a.family == "ouro" else Raven()).to(dev)
for n, p in model.named_parameters():
    if p.dim() == 2:
        nn.init.normal_(p, 0, 0.02 if "wte" not in n else (0.02 if a.family == "ouro" else 0.02))
    if n.endswith(("o.weight", "dn.weight")):
        nn.init.normal_(
            p,
            0,
            0.02 / math.sqrt(2 * (a.layers if a.family == "ouro" else a.pre + a.core + a.post)),
        )
if a.family == "raven":
    with torch.no_grad():
        model.adapter.weight.copy_(
            torch.cat((0.5 * torch.eye(D), torch.eye(D)), 1).to(dev)
            + 0.01 * torch.randn(D, 2 * D, device=dev)
        )
print(
    "params",
    sum(p.numel() for p in model.parameters()) / 1e6,
    "M, vocab",
    V,
    "train tokens",
    len(train) / 1e6,
    "M",
    flush=True,
)
decay = [p for p in model.parameters() if p.dim() == 2]
rest = [p for p in model.parameters() if p.dim() < 2]
opt = torch.optim.AdamW(
    [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}],
    lr=a.lr,
    betas=(0.9, 0.95),
    fused=True,
)
C, S = rope_tables(a.ctx)
if a.family == "ouro":
    model.loop = torch.compile(model.loop, dynamic=False)
else:
    model.prelude, model.step, model.coda = (
        torch.compile(f, dynamic=False) for f in (model.prelude, model.step, model.coda)
    )


def ce(h, y, head):
    return F.cross_entropy(head(h).float().view(-1, V), y.reshape(-1))


ce_c = torch.compile(ce, dynamic=False)


def batch(src, n):
    i = torch.randint(0, len(src) - a.ctx - 1, (n,), device=dev)
    z = src[i[:, None] + torch.arange(a.ctx + 1, device=dev)[None]].long()
    return z[:, :-1], z[:, 1:]


rng = np.random.default_rng(a.seed)


def loss_on(x, y):
    if a.family == "ouro":
        hs = model(x, a.R, C, S)
        ls = [ce_c(h, y, model.head) for h in hs]
        return (sum(ls) + ls[-1]) / (a.R + 1), ls
    d = int(
        np.clip(rng.poisson(rng.lognormal(math.log(a.mean_depth) - 0.125, 0.5)) + 1, 1, 2 * a.R)
    )
    e = model.prelude(x, C, S)
    s = model.state(e)
    with torch.no_grad():
        for _ in range(max(d - a.backprop, 0)):
            s = model.step(s, e, C, S)
    for _ in range(min(d, a.backprop)):
        s = model.step(s, e, C, S)
    l = ce_c(model.coda(s, C, S), y, model.lm_head)
    return l, [l]


@torch.no_grad()
def evaluate(n=8):
    g = torch.random.get_rng_state()
    torch.manual_seed(0)
    depths = list(range(1, a.R + 1)) if a.family == "ouro" else [1, 2, 4, 8, a.R]
    tot = {d: [0.0, 0.0] for d in depths}
    for _ in range(n):
        x, y = batch(valid, 32)
        with torch.autocast("cuda", torch.bfloat16):
            if a.family == "ouro":
                hs = dict(zip(depths, model(x, a.R, C, S)))
                head = model.head
            else:
                e = model.prelude(x, C, S)
                s = model.state(e)
                hs = {}
                head = model.lm_head
                for r in range(1, a.R + 1):
                    s = model.step(s, e, C, S)
                    if r in depths:
                        hs[r] = model.coda(s, C, S)
            top = head(hs[a.R]).argmax(-1)
            for d in depths:
                lg = head(hs[d]).float()
                tot[d][0] += F.cross_entropy(lg.view(-1, V), y.reshape(-1)).item() / n
                tot[d][1] += (lg.argmax(-1) == top).float().mean().item() / n
    torch.random.set_rng_state(g)
    return {d: (round(l, 3), round(g, 3)) for d, (l, g) in tot.items()}


t0 = time.time()
step = 0
budget = a.minutes * 60
while True:
    el = time.time() - t0
    f = el / budget
    if f >= 1:
        break
    lr = a.lr * min(1, (step + 1) / 200) * (1 if f < 0.3 else max(0.02, (1 - f) / 0.7))
    for gp in opt.param_groups:
        gp["lr"] = lr
    x, y = batch(train, a.batch)
    with torch.autocast("cuda", torch.bfloat16):
        loss, ls = loss_on(x, y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    opt.zero_grad(set_to_none=True)
    step += 1
    if step % 200 == 0:
        print(
            f"step {step} t {el:.0f}s tokens {step*a.batch*a.ctx/1e6:.0f}M loss {loss.item():.3f} {[round(l.item(),3) for l in ls]} lr {lr:.2e}",
            flush=True,
        )
print("valid loss, agreement with last depth by depth:", evaluate(16), flush=True)

from safetensors.torch import save_file

os.makedirs(a.out, exist_ok=True)
w = {}


def bf(t):
    return t.detach().to(torch.bfloat16).contiguous().cpu().clone()


def put_raven(pfx, blk):
    w[f"{pfx}.attn.Wqkv.weight"] = bf(blk.attn.qkv.weight)
    w[f"{pfx}.attn.proj.weight"] = bf(blk.attn.o.weight)
    w[f"{pfx}.mlp.fc.weight"] = bf(blk.mlp.gu.weight)
    w[f"{pfx}.mlp.proj.weight"] = bf(blk.mlp.dn.weight)
    w[f"{pfx}.norm_1.weight"] = bf(blk.n1.weight)
    w[f"{pfx}.norm_2.weight"] = bf(blk.n2.weight)


if a.family == "ouro":
    w["model.embed_tokens.weight"] = bf(model.wte.weight)
    w["model.norm.weight"] = bf(model.norm.weight)
    w["model.early_exit_gate.weight"] = torch.zeros(1, D, dtype=torch.bfloat16)
    w["model.early_exit_gate.bias"] = torch.zeros(1, dtype=torch.bfloat16)
    for i, b in enumerate(model.blocks):
        p = f"model.layers.{i}"
        q, k, v = b.attn.qkv.weight.split([H * hd, KV * hd, KV * hd])
        g, u = b.mlp.gu.weight.chunk(2)
        for n, t in (
            ("self_attn.q_proj", q),
            ("self_attn.k_proj", k),
            ("self_attn.v_proj", v),
            ("self_attn.o_proj", b.attn.o.weight),
            ("mlp.gate_proj", g),
            ("mlp.up_proj", u),
            ("mlp.down_proj", b.mlp.dn.weight),
            ("input_layernorm", b.n1.weight),
            ("input_layernorm_2", b.m1.weight),
            ("post_attention_layernorm", b.n2.weight),
            ("post_attention_layernorm_2", b.m2.weight),
        ):
            w[f"{p}.{n}.weight"] = bf(t)
    cfg = {
        "architectures": ["OuroForCausalLM"],
        "model_type": "ouro",
        "vocab_size": V,
        "hidden_size": D,
        "intermediate_size": a.ff,
        "num_hidden_layers": a.layers,
        "num_attention_heads": H,
        "num_key_value_heads": KV,
        "head_dim": hd,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-6,
        "rope_theta": theta,
        "rope_scaling": None,
        "total_ut_steps": a.R,
        "early_exit_threshold": 1.0,
        "tie_word_embeddings": True,
        "layer_types": ["full_attention"] * a.layers,
        "use_sliding_window": False,
        "sliding_window": None,
    }
else:
    w["transformer.wte.weight"] = bf(model.wte.weight)
    w["transformer.adapter.weight"] = bf(model.adapter.weight)
    w["transformer.ln_f.weight"] = bf(model.ln_f.weight)
    w["lm_head.weight"] = bf(model.lm_head.weight)
    for nm, bl in (("prelude", model.pre), ("core_block", model.core), ("coda", model.post)):
        for i, b in enumerate(bl):
            put_raven(f"transformer.{nm}.{i}", b)
    cfg = {
        "architectures": ["RavenForCausalLM"],
        "model_type": "huginn_raven",
        "auto_map": {"AutoModelForCausalLM": "raven_modeling_minimal_llama.RavenForCausalLM"},
        "n_embd": D,
        "n_heads": H,
        "num_key_value_heads": KV,
        "head_dim": hd,
        "n_layers": a.pre + a.core + a.post,
        "n_layers_in_prelude": a.pre,
        "n_layers_in_recurrent_block": a.core,
        "n_layers_in_coda": a.post,
        "mean_recurrence": a.R,
        "intermediate_size": a.ff,
        "vocab_size": V,
        "padded_vocab_size": V,
        "norm_eps": 1e-5,
        "rope_base": theta,
        "rope_theta": theta,
        "rope_scaling": None,
        "tie_embeddings": False,
        "qk_bias": False,
        "bias": False,
        "injection_type": "linear",
        "block_class_name": "SandwichBlock",
        "init_values": {"std": STD, "out_proj": STD, "embedding": STD, "embed_scale": 1.0},
        "test_time_noise": 0,
        "max_position_embeddings": 2048,
    }
tok = json.load(open(f"{a.corpus}/tokenizer.json"))
ids = {t["content"]: t["id"] for t in tok["added_tokens"]}
cfg.update(
    torch_dtype="bfloat16", bos_token_id=ids["<|endoftext|>"], eos_token_id=ids["<|endoftext|>"]
)
json.dump(cfg, open(f"{a.out}/config.json", "w"), indent=1)
save_file(w, f"{a.out}/model.safetensors", metadata={"format": "pt"})
print("wrote", a.out, os.path.getsize(f"{a.out}/model.safetensors") / 1e6, "MB", flush=True)
