"""What the tests of the Hub share: models to serve, and the binary called as a user would."""

import hashlib
import os
import pathlib
import subprocess

from fake_hub import git_sha1

DEMO = pathlib.Path(__file__).resolve().parents[2] / "models" / "ouro-demo"


def noise(name, size):
    """Bytes that are the same every time and do not repeat."""
    out = bytearray()
    block = hashlib.sha256(name.encode()).digest()
    while len(out) < size:
        block = hashlib.sha512(block).digest()
        out += block * 32 if size > 1 << 22 else block
    return bytes(out[:size])


def sharded(shards=4, size=400_000, seed=""):
    """A repository as the Hub has them: shards that only the checksums look at, and much that the engine does not need."""
    names = [f"model-{i + 1:05}-of-{shards:05}.safetensors" for i in range(shards)]
    index = '{"metadata": {}, "weight_map": {%s}}' % ", ".join(f'"tensor.{i}": "{name}"' for i, name in enumerate(names))
    files = {
        ".gitattributes": b"*.safetensors filter=lfs\n",
        "README.md": b"# A model\n",
        "config.json": (DEMO / "config.json").read_bytes(),
        "generation_config.json": b'{"temperature": 1.0}',
        "tokenizer.json": (DEMO / "tokenizer.json").read_bytes(),
        "tokenizer_config.json": (DEMO / "tokenizer_config.json").read_bytes(),
        "special_tokens_map.json": b"{}",
        "chat_template.jinja": b"{{ messages[0]['content'] }}",
        "additional_chat_templates/tools.jinja": b"{{ tools }}",
        "model.safetensors.index.json": index.encode(),
        "modeling_ouro.py": b"raise SystemExit('never run')\n",
        "pytorch_model.bin": b"never sent to us",
        "onnx/model.safetensors": b"never sent",
    }
    for name in names:
        files[name] = noise(name + seed, size)
    return files


NEEDED = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
          "additional_chat_templates/tools.jinja", "model.safetensors.index.json"}


def needed(files):
    return NEEDED | {name for name in files if name.endswith(".safetensors") and "/" not in name}


def demo_files():
    return {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}


def folder_of(cache, name):
    return cache / ("models--" + name.replace("/", "--"))


def check_layout(cache, repository, wanted, revision="main"):
    """What huggingface_hub would have left: blobs by checksum, relative links, the reference."""
    folder = folder_of(cache, repository.name)
    snapshot = folder / "snapshots" / repository.commit
    found = {str(path.relative_to(snapshot)) for path in snapshot.rglob("*") if not path.is_dir()}
    assert found == set(wanted), found ^ set(wanted)
    for path in wanted:
        link = snapshot / path
        target = os.readlink(link)
        assert target == "../" * (2 + path.count("/")) + "blobs/" + repository.etag(path), (path, target)
        assert link.read_bytes() == repository.files[path], path
    if revision is not None:
        assert (folder / "refs" / revision).read_text() == repository.commit
    litter = [path.name for path in (folder / "blobs").iterdir() if path.name.endswith(".incomplete")]
    assert not litter, litter


def check_sound(cache):
    """Whatever has a blob's name has the blob's bytes."""
    for blob in cache.glob("models--*/blobs/*"):
        if blob.name.endswith(".incomplete"):
            continue
        data = blob.read_bytes()
        assert blob.name in (git_sha1(data), hashlib.sha256(data).hexdigest()), blob


class User:
    """A home of its own, with the Hub's variables and nothing of the caller's."""

    def __init__(self, binary, home, hub):
        self.binary, self.home = str(binary), pathlib.Path(home)
        self.cache = self.home / "hub"
        self.environment = {"HOME": str(self.home), "HF_HOME": str(self.home), "HF_ENDPOINT": hub.url if hub else "http://127.0.0.1:1", "LC_ALL": "C.UTF-8",
                            "PATH": "/usr/bin:/bin", "NO_COLOR": "1"}
        for name in ("ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"):
            if name in os.environ:
                self.environment[name] = os.environ[name]

    def start(self, *arguments, environment=None, **options):
        return subprocess.Popen([self.binary, *map(str, arguments)], env={**self.environment, **(environment or {})}, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)

    def run(self, *arguments, timeout=300, **options):
        process = self.start(*arguments, **options)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)
