"""Turn text files and generated word problems into a tokenizer and token files for train_looped.py.

  python3 prepare_corpus.py TEXT_DIR OUT_DIR [--vocab 8192] [--problems 150000]

TEXT_DIR: *.txt files, documents separated by a line '<|endoftext|>'; files named chat_*.jsonl hold
{"user":..., "assistant":...} per line. OUT_DIR gets tokenizer.json, tokenizer_config.json,
tokens.bin / valid.bin (uint16, documents end in <|endoftext|>) and heldout.jsonl (problems never trained on).
"""

import argparse
import glob
import json
import os
import random
import sys
import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, trainers

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from word_problems import problem

ap = argparse.ArgumentParser()
ap.add_argument("text")
ap.add_argument("out")
ap.add_argument("--vocab", type=int, default=8192)
ap.add_argument("--problems", type=int, default=150000)
a = ap.parse_args()
os.makedirs(a.out, exist_ok=True)
rng = random.Random(20261115)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def CHAT(u, v):
    return f"<|im_start|>user\n{u}<|im_end|>\n<|im_start|>assistant\n{v}<|im_end|>\n"


docs = []
for f in sorted(glob.glob(f"{a.text}/*.txt")):
    docs += [
        d.strip()
        for d in open(f, encoding="utf-8", errors="ignore").read().split("<|endoftext|>")
        if len(d.strip()) > 40
    ]
for f in sorted(glob.glob(f"{a.text}/chat_*.jsonl")):
    docs += [CHAT(o["user"], o["assistant"]) for o in map(json.loads, open(f, encoding="utf-8"))]
seen = set()
held = []
while len(held) < 1000:
    q, s = problem(rng)
    if q not in seen:
        seen.add(q)
        held.append({"question": q, "answer": s})
made = 0
while made < a.problems:
    q, s = problem(rng)
    if q in seen:
        continue
    seen.add(q)
    made += 1
    docs.append(CHAT(q, s) if made % 2 else f"Question: {q}\nAnswer: {s}\n")
rng.shuffle(docs)
print("documents", len(docs), "chars", sum(map(len, docs)) / 1e6, "M")
open(f"{a.out}/heldout.jsonl", "w").write("\n".join(map(json.dumps, held)) + "\n")
tok = Tokenizer(models.BPE())
tok.pre_tokenizer = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ]
)
tok.decoder = decoders.ByteLevel()
tok.train_from_iterator(
    docs[:120000],
    trainers.BpeTrainer(
        vocab_size=a.vocab,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    ),
)
tok.save(f"{a.out}/tokenizer.json")
tmpl = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
json.dump(
    {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|endoftext|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 2048,
        "clean_up_tokenization_spaces": False,
        "chat_template": tmpl,
    },
    open(f"{a.out}/tokenizer_config.json", "w"),
    indent=1,
)
eot = tok.token_to_id("<|endoftext|>")
out = []
for i in range(0, len(docs), 20000):
    for e in tok.encode_batch(docs[i : i + 20000]):
        out.append(np.array(e.ids + [eot], dtype=np.uint16))
nv = max(1, len(out) // 200)
np.concatenate(out[:nv]).tofile(f"{a.out}/valid.bin")
np.concatenate(out[nv:]).tofile(f"{a.out}/tokens.bin")
print("tokens", sum(map(len, out)) / 1e6, "M; vocab", tok.get_vocab_size())
