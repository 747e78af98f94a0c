#!/usr/bin/env python3
"""`loopspec pull`, `list`, `rm` and models that are offered for download, against a Hub on loopback that breaks in many ways.

    pull_test.py BINARY [unittest's arguments]
"""

import hashlib
import json
import os
import pathlib
import pty
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from fake_hub import FakeHub, STORE_HOST
from support import User, check_layout, check_sound, demo_files, folder_of, needed, sharded

BINARY = ""
MODEL = "org/model"


class HubCase(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="loopspec-test-")
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.hub = self.another_hub()
        self.user = User(BINARY, self.folder / "home", self.hub)

    def another_hub(self, **options):
        hub = FakeHub(**options)
        self.addCleanup(hub.__exit__)
        return hub

    def pulls(self, *arguments, **options):
        result = self.user.run("pull", *arguments, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refuses(self, words, *arguments, **options):
        """Exit code 2 and one sentence with all of the words."""
        result = self.user.run(*arguments, **options)
        lines = [line for line in result.stderr.splitlines() if not line.startswith(("downloading ", "trying again"))]
        self.assertEqual((result.returncode, result.stdout, len(lines)), (2, "", 1), result)
        for word in words:
            self.assertIn(word, lines[0])
        return lines[0]

    def partial_sizes(self):
        """Of files that are on their way; one may be finished and gone any moment."""
        sizes = []
        for path in (folder_of(self.user.cache, MODEL) / "blobs").glob("*.incomplete"):
            try:
                sizes.append(path.stat().st_size)
            except FileNotFoundError:
                pass
        return sizes

    def everything(self):
        return sorted(str(path.relative_to(self.folder)) for path in self.folder.rglob("*"))


class Pull(HubCase):
    def test_only_what_the_engine_needs_in_huggingface_hubs_layout(self):
        repository = self.hub.add(MODEL, sharded())
        result = self.pulls(MODEL)
        wanted = needed(repository.files)
        self.assertEqual(result.stdout.strip(), str(folder_of(self.user.cache, MODEL) / "snapshots" / repository.commit))
        check_layout(self.user.cache, repository, wanted)
        asked = {request.path.split(repository.commit + "/")[1] for request in self.hub.bodies()}
        self.assertEqual(asked, wanted)
        self.assertEqual(self.hub.sent(), sum(len(repository.files[path]) for path in wanted))
        locks = {path.name for path in (self.user.cache / ".locks" / "models--org--model").iterdir()}
        self.assertEqual(locks, {repository.etag(path) + ".lock" for path in wanted})
        self.assertTrue((self.user.cache / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55\n"))
        self.hub.forget()
        again = json.loads(self.pulls(MODEL, "--json").stdout)
        self.assertEqual((again["received"], again["files"], again["commit"]), (0, len(wanted), repository.commit))
        self.assertEqual([request.path for request in self.hub.requests], ["/api/models/org/model/revision/main"])

    def test_what_was_pulled_runs(self):
        self.hub.add(MODEL, demo_files())
        self.hub.redirect_small = True
        self.pulls(MODEL)
        here = self.user.run("generate", MODEL, "Once upon a time", "-n", "8", "--threads", "1", "--json")
        there = self.user.run("generate", str(pathlib.Path(__file__).parents[2] / "models/ouro-demo"), "Once upon a time", "-n", "8", "--threads", "1", "--json")
        self.assertEqual(here.returncode, 0, here.stderr)
        self.assertEqual(json.loads(here.stdout)["token_ids"], json.loads(there.stdout)["token_ids"])

    def test_revisions(self):
        first = self.hub.add(MODEL, sharded(seed="1"), revisions=("v1", "refs/pr/1"))
        second = self.hub.add(MODEL, sharded(seed="2"))
        self.pulls(MODEL + "@v1")
        self.pulls(MODEL + "@refs/pr/1")
        self.pulls(MODEL + "@" + second.commit)
        check_layout(self.user.cache, first, needed(first.files), "v1")
        check_layout(self.user.cache, first, needed(first.files), "refs/pr/1")
        check_layout(self.user.cache, second, needed(second.files), None)
        self.assertFalse((folder_of(self.user.cache, MODEL) / "refs" / second.commit).exists())
        self.refuses(["org/model@v3", "no such revision"], "pull", MODEL + "@v3")
        self.refuses(["org/nobody", "404", "HF_TOKEN"], "pull", "org/nobody")

    def test_a_moved_branch_keeps_the_old_snapshot_until_the_new_one_is_complete(self):
        first = self.hub.add(MODEL, sharded(seed="1"))
        self.pulls(MODEL)
        second = self.hub.add(MODEL, sharded(seed="2"))
        self.hub.fail("model-00002-of-00004.safetensors", "status", (404, {}), times=9)
        self.refuses(["model-00002-of-00004.safetensors of org/model", "404"], "pull", MODEL)
        reference = folder_of(self.user.cache, MODEL) / "refs" / "main"
        self.assertEqual(reference.read_text(), first.commit)
        self.hub.faults.clear()
        self.pulls(MODEL)
        check_layout(self.user.cache, second, needed(second.files))

    def test_models_that_cannot_be_run_are_refused_before_their_weights(self):
        files = sharded()
        self.hub.add("org/llama", {**files, "config.json": b'{"model_type": "llama"}'})
        self.refuses(["config.json of org/llama", "llama", "expected ouro"], "pull", "org/llama")
        self.hub.add("org/pickle", {name: data for name, data in files.items() if "safetensors" not in name})
        self.refuses(["org/pickle", "model.safetensors", "only safetensors"], "pull", "org/pickle")
        self.hub.add("org/bare", {"README.md": b"nothing"})
        self.refuses(["org/bare has no config.json"], "pull", "org/bare")
        self.assertEqual(self.hub.sent(".safetensors"), 0)


class Manifests(HubCase):
    """A release whose tokenizer has a folder of its own and whose manifest says what its files are, as IFM's do."""

    def files(self):
        model = {"arch": "transformer", "num_layers": 2, "model_dim": 64, "num_heads": 4, "ffn_hidden_dim": 96, "vocab_size": 300,
                 "loop_times": 4, "apply_rmsnorm": True, "swiglu": True}
        old = sharded(shards=2)
        files = {name: data for name, data in old.items() if name.endswith((".safetensors", "index.json", ".md")) and "/" not in name}
        files["config.json"] = json.dumps({"model": model, "tokenizer": {"type": "huggingface", "path": "tokenizer"}}).encode()
        for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
            files["tokenizer/" + name] = old[name]
        return files

    def with_manifest(self, files, **wrong):
        entries = [{"path": name, "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data)} for name, data in files.items()]
        for entry in entries:
            entry.update(wrong.get(entry["path"].replace("/", "_").replace(".", "_").replace("-", "_"), {}))
        manifest = {"schema_version": 1, "format": "xllm-native-bf16-safetensors", "files": entries}
        return {**files, "artifact_manifest.json": json.dumps(manifest).encode()}

    def test_all_its_files_come_and_are_what_it_says(self):
        files = self.with_manifest(self.files())
        repository = self.hub.add(MODEL, files)
        self.pulls(MODEL)
        check_layout(self.user.cache, repository, set(files) - {"README.md"})

    def test_a_manifest_that_says_otherwise(self):
        files = self.files()
        for wrong in ({"model_00002_of_00002_safetensors": {"sha256": "0" * 64}}, {"model_00001_of_00002_safetensors": {"size_bytes": 1}},
                      {"tokenizer_tokenizer_json": {"sha256": "1" * 64}}, {"config_json": {"size_bytes": 2}}):
            self.hub.add(MODEL, self.with_manifest(files, **wrong))
            self.refuses(["artifact_manifest.json of org/model", "the repository's file has others"], "pull", MODEL)
            self.assertFalse((folder_of(self.user.cache, MODEL) / "refs" / "main").exists())
        self.hub.add(MODEL, self.with_manifest(files, config_json={"path": "../config.json"}))
        self.refuses(["artifact_manifest.json of org/model", "inside the folder"], "pull", MODEL)


class BrokenConnections(HubCase):
    SHARD = "model-00001-of-00004.safetensors"

    def setUp(self):
        super().setUp()
        self.repository = self.hub.add(MODEL, sharded())
        self.size = len(self.repository.files[self.SHARD])

    def complete(self):
        check_layout(self.user.cache, self.repository, needed(self.repository.files))

    def test_goes_on_where_the_connection_broke(self):
        for shard in range(1, 5):
            self.hub.fail(f"model-{shard:05}-of-00004.safetensors", "break", 90_000, times=3)
        self.hub.fail("config.json", "break", 10, times=2)
        self.pulls(MODEL)
        self.complete()
        ranges = [request.range for request in self.hub.bodies(self.SHARD)]
        self.assertEqual(ranges, ["", "bytes=90000-", "bytes=180000-", "bytes=270000-"])
        self.assertEqual(self.hub.sent(self.SHARD), self.size)

    def test_a_server_that_falls_silent_is_asked_again(self):
        self.hub.fail(self.SHARD, "stall", 100_000)
        self.pulls(MODEL, environment={"HF_HUB_DOWNLOAD_TIMEOUT": "1"})
        self.complete()
        self.assertEqual(self.hub.sent(self.SHARD), self.size)

    def test_a_server_without_ranges(self):
        self.hub.fail(self.SHARD, "break", 100_000)
        self.hub.fail(self.SHARD, "ignore range")
        self.pulls(MODEL)
        self.complete()

    def test_busy_servers_are_asked_again(self):
        self.hub.fail("api:" + MODEL, "status", (503, {}), times=2)
        self.hub.fail(self.SHARD, "status", (429, {"Retry-After": "1"}))
        self.hub.fail(self.SHARD, "status", (500, {}), times=2)
        self.pulls(MODEL)
        self.complete()

    def test_servers_that_never_answer_well(self):
        self.hub.fail(self.SHARD, "break", 0, times=100)
        line = self.refuses([self.SHARD, "6 attempts", "0 of 400000 bytes"], "pull", MODEL)
        self.assertIn("loopspec pull goes on", line)
        self.hub.faults.clear()
        self.hub.fail("api:" + MODEL, "status", (502, {}), times=100)
        self.refuses([MODEL, "502"], "pull", MODEL)
        self.user.environment["HF_ENDPOINT"] = "http://127.0.0.1:1"
        self.refuses([MODEL, "connect"], "pull", MODEL)
        for wrong in ("file:///etc", "huggingface.co", "ftp://x"):
            self.refuses(["HF_ENDPOINT", wrong], "pull", MODEL, environment={"HF_ENDPOINT": wrong})

    def test_a_corrupt_byte_is_found_and_the_file_comes_again(self):
        self.hub.fail(self.SHARD, "corrupt", 123_456)
        self.hub.fail("tokenizer.json", "corrupt", 17)
        self.pulls(MODEL)
        self.complete()
        self.assertEqual(self.hub.sent(self.SHARD), 2 * self.size)

    def test_a_byte_that_stays_corrupt(self):
        self.hub.fail(self.SHARD, "corrupt", 0, times=100)
        self.refuses([self.SHARD, "checksum " + self.repository.etag(self.SHARD)], "pull", MODEL)
        check_sound(self.user.cache)
        self.assertFalse((folder_of(self.user.cache, MODEL) / "blobs" / self.repository.etag(self.SHARD)).exists())
        self.assertFalse((folder_of(self.user.cache, MODEL) / "refs").exists())
        self.assertFalse((folder_of(self.user.cache, MODEL) / "snapshots").exists())

    def test_a_beginning_that_is_damaged_on_disk(self):
        blobs = folder_of(self.user.cache, MODEL) / "blobs"
        blobs.mkdir(parents=True)
        data = bytearray(self.repository.files[self.SHARD])
        data[5] ^= 1
        (blobs / (self.repository.etag(self.SHARD) + ".incomplete")).write_bytes(data[:300_000])
        other = "model-00002-of-00004.safetensors"
        (blobs / (self.repository.etag(other) + ".incomplete")).write_bytes(b"x" * (self.size + 1))
        third = "model-00003-of-00004.safetensors"  # all of it, and never renamed
        (blobs / (self.repository.etag(third) + ".incomplete")).write_bytes(self.repository.files[third])
        (blobs / self.repository.etag("model-00004-of-00004.safetensors")).write_bytes(b"cut short by a full disk")
        self.pulls(MODEL)
        self.complete()
        self.assertEqual(self.hub.sent(third), 0)

    def test_more_bytes_than_listed(self):
        self.hub.fail(self.SHARD, "long", 10, times=100)
        self.refuses([self.SHARD, "offers 400010 bytes", "says 400000"], "pull", MODEL)
        self.hub.faults.clear()
        self.hub.fail(self.SHARD, "long, length not said", 10, times=100)
        self.refuses([self.SHARD, "more than the 400000 bytes"], "pull", MODEL)

    def test_files_and_listings_without_an_end(self):
        self.hub.fail(self.SHARD, "endless", times=100)
        self.refuses([self.SHARD, "more than the 400000 bytes"], "pull", MODEL)
        self.assertEqual(len(self.hub.bodies(self.SHARD)), 1)
        self.hub.faults.clear()
        self.hub.forget()
        self.hub.fail("api:" + MODEL, "endless", times=100)
        self.refuses([MODEL, "the answer has no end within 64 MB"], "pull", MODEL)
        self.assertEqual(len(self.hub.requests), 1)

    def test_a_file_that_changes_while_it_comes(self):
        self.hub.fail(self.SHARD, "break", 100_000)
        self.hub.fail(self.SHARD, "changed")
        self.pulls(MODEL)
        self.complete()
        self.user.run("rm", MODEL, "--yes")
        self.hub.fail(self.SHARD, "break", 100_000)
        self.hub.fail(self.SHARD, "changed", times=100)
        self.refuses([self.SHARD, "checksum " + self.repository.etag(self.SHARD)], "pull", MODEL)
        check_sound(self.user.cache)

    def test_fewer_bytes_than_listed(self):
        self.hub.fail(self.SHARD, "short", 300_000, times=100)
        self.refuses([self.SHARD, "offers 300000 bytes", "says 400000"], "pull", MODEL)
        self.assertLessEqual(len(self.hub.bodies(self.SHARD)), 1)
        check_sound(self.user.cache)

    def test_fewer_bytes_than_listed_from_a_server_that_names_no_length(self):
        self.hub.fail(self.SHARD, "short, length not said", 300_000, times=100)
        self.refuses([self.SHARD, "ends after 300000 bytes", "says 400000"], "pull", MODEL)
        self.assertLessEqual(self.hub.sent(self.SHARD), 2 * self.size)
        check_sound(self.user.cache)

    def test_a_beginning_that_is_longer_than_the_servers_file(self):
        blobs = folder_of(self.user.cache, MODEL) / "blobs"
        blobs.mkdir(parents=True)
        (blobs / (self.repository.etag(self.SHARD) + ".incomplete")).write_bytes(self.repository.files[self.SHARD][:350_000])
        self.hub.fail(self.SHARD, "short, length not said", 300_000, times=100)
        self.refuses([self.SHARD, "ends after 300000 bytes"], "pull", MODEL)

    def test_a_server_that_never_sends_all_of_a_file_and_knows_no_ranges(self):
        for length in range(1, 100):
            self.hub.fail(self.SHARD, "break, ignore range", 1000 * length)
        self.refuses([self.SHARD, "400000 bytes have never come in one piece"], "pull", MODEL)
        self.assertLessEqual(self.hub.sent(self.SHARD), 7 * self.size)

    def test_every_further_attempt_is_told(self):
        self.hub.fail("api:" + MODEL, "status", (503, {}))
        self.hub.fail("config.json", "status", (500, {}))
        self.hub.fail(self.SHARD, "break", 90_000)
        self.hub.fail(self.SHARD, "status", (429, {"Retry-After": "1"}))
        told = [line for line in self.pulls(MODEL).stderr.splitlines() if line.startswith("trying again")]
        self.assertEqual(len(told), 4, told)
        self.assertIn("org/model: the Hub answered 503", told[0])
        self.assertIn("config.json of org/model: the Hub answered 500", told[1])
        self.assertIn("trying again in 1.0 s: model-00001-of-00004.safetensors of org/model: the Hub answered 429", told[3])

    def test_a_server_that_asks_for_an_hour(self):
        self.hub.fail(self.SHARD, "status", (429, {"Retry-After": "3600"}))
        self.refuses([self.SHARD, "429", "3600 s", "again after that"], "pull", MODEL)

    def test_verify_repairs_what_was_damaged_later(self):
        self.pulls(MODEL)
        blob = folder_of(self.user.cache, MODEL) / "blobs" / self.repository.etag(self.SHARD)
        data = bytearray(blob.read_bytes())
        data[1000] ^= 1
        blob.write_bytes(data)
        self.hub.forget()
        self.pulls(MODEL)
        self.assertEqual(self.hub.sent(), 0)
        self.pulls(MODEL, "--verify")
        self.complete()
        self.assertEqual(self.hub.sent(), self.size)


class Killed(HubCase):
    def setUp(self):
        super().setUp()
        self.repository = self.hub.add(MODEL, sharded(shards=4, size=1_000_000))
        self.hub.chunk = 1 << 14

    def test_kill_9_at_random_points(self):
        chance = random.Random(28)
        self.hub.delay = 0.002
        kills = 0
        for _ in range(40):
            process = self.user.start("pull", MODEL)
            time.sleep(chance.uniform(0.005, 0.25))
            process.kill()
            process.communicate()
            if process.returncode != -signal.SIGKILL:
                break
            kills += 1
            check_sound(self.user.cache)
            snapshots = folder_of(self.user.cache, MODEL) / "snapshots"
            for config in snapshots.glob("*/config.json"):  # then all of it is there
                for path in needed(self.repository.files):
                    self.assertEqual((config.parent / path).read_bytes(), self.repository.files[path])
        self.hub.delay = 0
        self.pulls(MODEL)
        check_layout(self.user.cache, self.repository, needed(self.repository.files))
        self.assertGreater(kills, 3)
        total = sum(len(self.repository.files[path]) for path in needed(self.repository.files))
        self.assertLess(self.hub.sent(), 2 * total)  # what was on its way is lost, the rest is not

    def test_ctrl_c_keeps_what_has_come(self):
        self.hub.delay = 0.01
        process = self.user.start("pull", MODEL)
        blobs = folder_of(self.user.cache, MODEL) / "blobs"
        for _ in range(3000):
            if sum(self.partial_sizes()) > 200_000:
                break
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out), (130, ""), err)
        self.assertIn("what has come is kept", err)
        kept = sum(path.stat().st_size for path in blobs.iterdir())
        self.hub.delay = 0
        self.hub.forget()
        result = json.loads(self.pulls(MODEL, "--json").stdout)
        self.assertEqual(result["received"], result["bytes"] - kept)

    def test_four_at_once(self):
        self.hub.delay = 0.005
        processes = [self.user.start("pull", MODEL) for _ in range(4)]
        for process in processes:
            out, err = process.communicate(timeout=120)
            self.assertEqual(process.returncode, 0, err)
            self.assertEqual(out.strip(), str(folder_of(self.user.cache, MODEL) / "snapshots" / self.repository.commit))
        check_layout(self.user.cache, self.repository, needed(self.repository.files))
        for path in needed(self.repository.files):
            self.assertEqual(len(self.hub.bodies("/" + path)), 1, path)


class FullDisk(HubCase):
    def test_too_little_space_is_said_before_the_weights_come(self):
        repository = self.hub.add(MODEL, sharded())
        repository.listing = json.loads(json.dumps(repository.info()))
        for entry in repository.listing["siblings"]:
            if entry["rfilename"] == "model-00001-of-00004.safetensors":
                entry["lfs"]["size"] = 10**15
        self.refuses([MODEL, "needs 1000000.0 GB more in", str(self.user.cache), "are free"], "pull", MODEL)
        self.assertEqual(self.hub.sent(".safetensors"), 0)

    def test_a_disk_that_is_full_in_the_middle(self):
        repository = self.hub.add(MODEL, sharded())

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))

        self.refuses(["cannot write", ".incomplete", "File too large", "are kept"], "pull", MODEL, preexec_fn=limit)
        check_sound(self.user.cache)
        self.assertFalse((folder_of(self.user.cache, MODEL) / "snapshots").exists())
        self.hub.forget()
        self.pulls(MODEL)
        check_layout(self.user.cache, repository, needed(repository.files))
        self.assertTrue(any(request.range for request in self.hub.bodies(".safetensors")))

    def test_a_small_file_system(self):
        mount = self.folder / "small"
        mount.mkdir()
        made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1500k", "none", str(mount)], capture_output=True, text=True, check=False)
        if made.returncode != 0:
            self.skipTest("only root can mount")
        self.addCleanup(subprocess.run, ["umount", str(mount)], check=True)
        self.hub.add(MODEL, sharded())
        self.user.cache = mount / "hub"
        self.user.environment["HF_HUB_CACHE"] = str(self.user.cache)
        self.refuses([MODEL, "MB more in", "MB are free"], "pull", MODEL)
        self.assertEqual(self.hub.sent(".safetensors"), 0)
        self.hub.add(MODEL, sharded(shards=1))
        self.pulls(MODEL)


class Tokens(HubCase):
    def setUp(self):
        super().setUp()
        self.repository = self.hub.add(MODEL, sharded())
        self.hub.token = "hf_secret"
        self.hub.redirect_small = True

    def test_goes_to_the_hub_and_to_nobody_else(self):
        self.pulls(MODEL, environment={"HF_TOKEN": " hf_secret\n"})
        check_layout(self.user.cache, self.repository, needed(self.repository.files))
        store = [request for request in self.hub.requests if request.host == STORE_HOST]
        self.assertEqual(len(store), 4)
        self.assertEqual({request.authorization for request in store}, {""})
        rest = [request for request in self.hub.requests if request.host != STORE_HOST]
        self.assertEqual({request.authorization for request in rest}, {"Bearer hf_secret"})

    def test_another_port_is_another_host(self):
        stranger = self.another_hub()
        stranger.add(MODEL, self.repository.files)
        target = f"{stranger.url}/store/{MODEL}/{self.repository.commit}/tokenizer.json"
        self.hub.fail("tokenizer.json", "redirect", target)
        self.pulls(MODEL, environment={"HF_TOKEN": "hf_secret"})
        self.assertEqual([(request.path, request.authorization) for request in stranger.requests], [(target[len(stranger.url):], "")])

    def test_the_file_of_hf_auth_login(self):
        self.user.home.mkdir()
        (self.user.home / "token").write_text("hf_secret\n")
        self.pulls(MODEL)
        self.refuses(["HF_TOKEN"], "pull", MODEL, environment={"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"})
        elsewhere = self.folder / "elsewhere"
        elsewhere.write_text("hf_wrong")
        self.refuses(["401", "the token may not see it"], "pull", MODEL, environment={"HF_TOKEN_PATH": str(elsewhere)})

    def test_gated_models_and_tokens_that_are_none(self):
        self.hub.fail("api:" + MODEL, "status", (403, {"X-Error-Code": "GatedRepo"}))
        self.refuses([MODEL, "access must be asked for"], "pull", MODEL, environment={"HF_TOKEN": "hf_secret"})
        line = self.refuses(["HF_TOKEN", "control character"], "pull", MODEL, environment={"HF_TOKEN": "hf_a\r\nX-Evil: 1"})
        self.assertNotIn("hf_a", line)
        self.assertNotIn("hf_secret", self.refuses(["401"], "pull", "org/model", environment={"HF_TOKEN": "hf_other"}))

    def test_redirects_that_lead_nowhere(self):
        for target, word in (("file:///etc/passwd", "expected http or https"), ("ftp://127.0.0.1/x", "expected http or https")):
            self.hub.faults.clear()
            self.hub.fail("config.json", "redirect", target, times=9)
            self.refuses(["config.json of org/model", word], "pull", MODEL, environment={"HF_TOKEN": "hf_secret"})
        self.hub.faults.clear()
        loop = f"/store/{MODEL}/{self.repository.commit}/config.json"
        self.hub.fail("config.json", "redirect", loop, times=99)
        self.refuses(["more than 8 redirects"], "pull", MODEL, environment={"HF_TOKEN": "hf_secret"})


class Encrypted(HubCase):
    def test_certificates_are_checked_and_https_stays_https(self):
        key, certificate = self.folder / "key.pem", self.folder / "certificate.pem"
        try:
            subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=fake hub", "-keyout", key, "-out", certificate,
                            "-addext", "subjectAltName=IP:127.0.0.1,IP:127.0.0.2"], check=True, capture_output=True)
        except FileNotFoundError:
            self.skipTest("no openssl")
        hub = self.another_hub(certificate=(certificate, key))
        repository = hub.add(MODEL, sharded())
        self.user.environment["HF_ENDPOINT"] = hub.url
        self.refuses([MODEL, "certificate"], "pull", MODEL)
        self.assertEqual(hub.requests, [])
        trusted = {"SSL_CERT_FILE": str(certificate)}
        plain = self.hub.add(MODEL, repository.files)
        hub.fail("config.json", "redirect", f"{self.hub.url}/store/{MODEL}/{plain.commit}/config.json")
        self.refuses(["redirect leads from https to http:"], "pull", MODEL, environment=trusted)
        self.assertEqual(self.hub.requests, [])
        self.pulls(MODEL, environment=trusted)
        check_layout(self.user.cache, repository, needed(repository.files))


class Offline(HubCase):
    def test_nothing_is_asked(self):
        repository = self.hub.add(MODEL, sharded())
        offline = {"HF_HUB_OFFLINE": "1"}
        self.refuses([MODEL, "is not in the cache", "HF_HUB_OFFLINE is set"], "pull", MODEL, environment=offline)
        self.refuses([MODEL, "HF_HUB_OFFLINE is set"], "tokenize", MODEL, "a", environment={**offline, "LOOPSPEC_PULL": "1"})
        self.assertEqual(self.hub.requests, [])
        self.pulls(MODEL)
        self.hub.forget()
        result = self.pulls(MODEL, environment=offline)
        self.assertEqual(result.stdout.strip(), str(folder_of(self.user.cache, MODEL) / "snapshots" / repository.commit))
        self.assertEqual(self.user.run("tokenize", MODEL, "a", environment=offline).returncode, 0)
        self.assertEqual(self.hub.requests, [])


class Hostile(HubCase):
    """What a listing says becomes part of paths."""

    def listing(self, change):
        repository = self.hub.add(MODEL, sharded())
        repository.listing = json.loads(json.dumps(repository.info()))
        change(repository.listing)

    def nothing_outside(self, before):
        outside = [path for path in self.everything() if path not in before and not path.startswith("home/hub")]
        self.assertEqual([path for path in outside if path != "home"], [])

    def test_names_of_files(self):
        before = self.everything()
        for name in ("../evil.json", "/etc/evil.json", "a/../../evil.json", "a//b.json", "./config.json", "..", "", "a\\..\\b", "a\nb", "a\x00b", "x/" + "y" * 300, "a/"):
            with self.subTest(name=name):
                self.listing(lambda listing, name=name: listing["siblings"].append({"rfilename": name, "size": 1, "blobId": "0" * 40}))
                self.refuses(["the Hub's listing of org/model", "expected a path inside"], "pull", MODEL)
        self.nothing_outside(before)

    def test_checksums_commits_and_sizes(self):
        before = self.everything()

        def first(listing, **fields):
            listing["siblings"][2].update(fields)

        for change, word in ((lambda x: first(x, blobId="../../../evil"), "expected 40 hexadecimal digits"),
                             (lambda x: first(x, blobId="A" * 40), "expected 40 hexadecimal digits"),
                             (lambda x: first(x, lfs={"sha256": "../" * 20 + "evil", "size": 1}), "expected 64 hexadecimal digits"),
                             (lambda x: x.update(sha="../../evil"), "the commit is"),
                             (lambda x: x.update(sha=7), "sha"),
                             (lambda x: first(x, size=-1), "size"),
                             (lambda x: first(x, size="large"), "size"),
                             (lambda x: x.update(siblings="none"), "no list of files"),
                             (lambda x: x["siblings"].append(3), "no object")):
            self.listing(change)
            self.refuses(["the Hub's listing of org/model", word], "pull", MODEL)
        self.hub.fail("api:" + MODEL, "status", (200, {}, b"<html>not found</html>"))
        self.refuses(["the Hub's listing of org/model"], "pull", MODEL)
        self.nothing_outside(before)

    def test_an_index_that_names_other_files(self):
        for name in ("../../evil.safetensors", "onnx/model.safetensors", "absent.safetensors"):
            self.hub.add(MODEL, {**sharded(), "model.safetensors.index.json": json.dumps({"weight_map": {"a": name}}).encode()})
            self.refuses(["model.safetensors.index.json of org/model", name, "lies beside it"], "pull", MODEL)

    def test_names_of_models_and_revisions(self):
        for name in ("../x", "org/../x", "org/..", "org", "a/b/c", "org/x--y", "org/.x", "org/" + "x" * 100, "o g/x", "org/x\n"):
            self.refuses(["not a name of the Hub"], "pull", name)
            self.refuses(["not a name of the Hub"], "rm", "--yes", name)
        for revision in ("../../x", "/etc", "a b", "x/", "a//b"):
            self.refuses(["expected a branch, a tag or a commit"], "pull", MODEL + "@" + revision)
            self.refuses(["expected a branch, a tag or a commit"], "rm", "--yes", MODEL + "@" + revision)
        self.assertEqual(self.hub.requests, [])

    def test_links_in_the_cache_are_not_written_through(self):
        repository = self.hub.add(MODEL, sharded())
        victim = self.folder / "victim"
        victim.write_text("precious")
        blobs = folder_of(self.user.cache, MODEL) / "blobs"
        blobs.mkdir(parents=True)
        (blobs / (repository.etag("config.json") + ".incomplete")).symlink_to(victim)
        self.refuses(["cannot write"], "pull", MODEL)
        self.assertEqual(victim.read_text(), "precious")


class Offers(HubCase):
    """--model ORG/NAME of a model that is not here."""

    COMMAND = ("tokenize", MODEL, "Once upon a time")

    def setUp(self):
        super().setUp()
        self.repository = self.hub.add(MODEL, demo_files())

    def at_terminal(self, answer, *arguments):
        """Runs at a terminal of its own; gives the exit code and all that was seen."""
        process, terminal = pty.fork()
        if process == 0:
            os.execve(BINARY, [BINARY, *arguments], {**self.user.environment, "TERM": "dumb"})
        seen, answered = b"", False
        for _ in range(3000):
            ready, _, _ = select.select([terminal], [], [], 0.1)
            if ready:
                try:
                    piece = os.read(terminal, 65536)
                except OSError:
                    break
                if not piece:
                    break
                seen += piece
            if b"[y/N]" in seen and not answered:
                os.write(terminal, answer)
                answered = True
        _, status = os.waitpid(process, 0)
        os.close(terminal)
        return os.waitstatus_to_exitcode(status), seen.decode()

    def test_nothing_is_downloaded_where_nobody_was_asked(self):
        self.refuses([MODEL, "loopspec pull org/model", "hf download org/model"], *self.COMMAND)
        self.assertEqual(self.hub.requests, [])

    def test_a_variable_agrees(self):
        result = self.user.run(*self.COMMAND, environment={"LOOPSPEC_PULL": "1"})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, self.user.run("tokenize", str(pathlib.Path(__file__).parents[2] / "models/ouro-demo"), self.COMMAND[2]).stdout)
        check_layout(self.user.cache, self.repository, self.repository.files)

    def test_flags_agree(self):
        for number, flag in enumerate(("--yes", "--pull")):
            self.user.environment["HF_HUB_CACHE"] = str(self.folder / f"cache{number}")
            result = self.user.run("inspect", MODEL, flag, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads(result.stdout)["family"], "ouro")

    def test_asks_at_a_terminal(self):
        code, seen = self.at_terminal(b"n\n", *self.COMMAND)
        self.assertEqual(code, 2, seen)
        self.assertIn("org/model is not here. Download 27.7 MB from the Hugging Face Hub? [y/N]", seen)
        self.assertEqual(self.hub.sent(".safetensors"), 0)
        code, seen = self.at_terminal(b"y\n", *self.COMMAND)
        self.assertEqual(code, 0, seen)
        check_layout(self.user.cache, self.repository, self.repository.files)
        code, seen = self.at_terminal(b"", *self.COMMAND)
        self.assertEqual((code, "[y/N]" in seen), (0, False), seen)

    def test_a_path_that_is_no_name(self):
        for path in ("./nowhere", "a/b/c", "/org/model"):
            self.refuses(["no such folder"], "tokenize", path, "a", environment={"LOOPSPEC_PULL": "1"})
        self.assertEqual(self.hub.requests, [])


class ListAndRemove(HubCase):
    def setUp(self):
        super().setUp()
        self.first = self.hub.add(MODEL, sharded(seed="1"), revisions=("v1",))
        self.second = self.hub.add(MODEL, {**sharded(seed="1"), "model-00001-of-00004.safetensors": b"new"})
        self.pulls(MODEL + "@v1")
        self.pulls(MODEL)

    def listed(self):
        return json.loads(self.user.run("list", "--json").stdout)

    def test_list(self):
        folder = folder_of(self.user.cache, "other/bert") / "snapshots" / ("a" * 40)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text('{"model_type": "bert"}')
        [ours, other] = self.listed()
        self.assertEqual((ours["model"], other["model"], ours["partial_bytes"]), (MODEL, "other/bert", 0))
        self.assertEqual({s["commit"]: (s["references"], s["complete"], s["family"]) for s in ours["snapshots"]},
                         {self.first.commit: (["v1"], True, "ouro"), self.second.commit: (["main"], True, "ouro")})
        self.assertEqual(other["snapshots"][0]["family"], None)
        table = self.user.run("list")
        self.assertRegex(table.stdout, rf"org/model +v1 +{self.first.commit[:10]} +1\.[0-9]+ MB  ouro")
        self.assertNotIn("bert", table.stdout)
        self.assertIn("and 1 that loopspec does not run", table.stderr)
        self.assertIn("other/bert", self.user.run("list", "--all").stdout)
        empty = self.user.run("list", environment={"HF_HUB_CACHE": str(self.folder / "empty")})
        self.assertEqual(empty.returncode, 0)
        # What a package has installed is here without the cache.
        self.assertRegex(empty.stdout, r"\nouro-demo +installed +- +[0-9.]+ MB  ouro\n")

    def test_rm_of_a_revision_keeps_what_the_other_one_needs(self):
        self.refuses(["nobody to ask", "--yes"], "rm", MODEL)
        result = self.user.run("rm", MODEL + "@v1", "--yes")
        self.assertEqual(result.returncode, 0, result.stderr)
        check_layout(self.user.cache, self.second, needed(self.second.files))
        self.assertEqual([s["commit"] for s in self.listed()[0]["snapshots"]], [self.second.commit])
        blobs = {path.name for path in (folder_of(self.user.cache, MODEL) / "blobs").iterdir()}
        self.assertEqual(blobs, {self.second.etag(path) for path in needed(self.second.files)})
        self.refuses(["org/model has no revision v1"], "rm", MODEL + "@v1", "--yes")
        self.assertEqual(self.user.run("rm", MODEL + "@main", "--yes").returncode, 0)
        self.assertFalse(folder_of(self.user.cache, MODEL).exists())

    def test_rm_of_a_model(self):
        outside = self.folder / "outside"
        outside.mkdir()
        (outside / "file").write_text("precious")
        (folder_of(self.user.cache, MODEL) / "blobs" / "link").symlink_to(outside)
        self.assertEqual(self.user.run("rm", MODEL, "--yes").returncode, 0)
        self.assertEqual(self.listed(), [])
        self.assertEqual((outside / "file").read_text(), "precious")
        self.assertEqual(list((self.user.cache / ".locks").iterdir()), [])
        self.refuses(["org/model is not in the cache"], "rm", MODEL, "--yes")

    def test_rm_during_a_download(self):
        self.hub.add(MODEL, sharded(seed="3"), revisions=("v3",))
        self.hub.fail("model-00001-of-00004.safetensors", "stall", 1000)
        process = self.user.start("pull", MODEL + "@v3")
        for _ in range(3000):
            if 1000 in self.partial_sizes():
                break
            time.sleep(0.01)
        self.refuses(["is being downloaded"], "rm", MODEL, "--yes")
        self.assertIn("begun, not finished", self.user.run("list").stdout)
        process.kill()
        process.communicate()
        self.assertEqual(self.user.run("rm", MODEL, "--yes").returncode, 0)


if __name__ == "__main__":
    BINARY = os.path.abspath(sys.argv.pop(1))
    unittest.main(verbosity=2)
