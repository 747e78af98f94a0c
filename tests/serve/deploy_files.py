#!/usr/bin/env python3
"""The files of deploy/, as far as they can be tried without Docker or a cluster: nginx reads its configuration and starts without
a replica, systemd reads its unit, and the unit's steps make what it needs.

  deploy_files.py --deploy FOLDER

Skipped where there is neither nginx nor systemd-analyze.
"""

import argparse
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import textwrap

SKIPPED = 77
RESOLVE_SINCE = (1, 27, 3)  # "resolve" of an upstream's server, in nginx as it can be had freely


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def version_of(nginx):
    text = subprocess.run([nginx, "-v"], capture_output=True, text=True, check=True).stderr
    return tuple(map(int, re.search(r"nginx/(\d+)\.(\d+)\.(\d+)", text).groups()))


def nginx_reads(nginx, text, folder):
    path = pathlib.Path(folder) / "nginx.conf"
    path.write_text(f"error_log {folder}/error.log;\n" + text)
    result = subprocess.run([nginx, "-t", "-p", folder, "-e", f"{folder}/error.log", "-c", str(path)], capture_output=True, text=True, check=False)
    check(result.returncode == 0, result.stderr)


def kubernetes(deploy, nginx):
    text = (deploy / "kubernetes.yaml").read_text()
    config = textwrap.dedent(re.search(r"  nginx\.conf: \|\n(.*?)\n---", text, re.S).group(1))
    servers = re.findall(r"^ *server (loopspec-\d\S*)(.*);", config, re.M)
    replicas = int(re.search(r"replicas: (\d+)", text).group(1))
    check(len(servers) == replicas, servers)
    # What a moved or late replica needs.
    check(all(" resolve " in options for _, options in servers), servers)
    check(re.search(r"upstream loopspec \{\s*zone ", config), "resolve wants a zone")
    check(re.search(r"^ *resolver \S+", config, re.M), "resolve wants a resolver")
    check("publishNotReadyAddresses: true" in text, "a replica that loads has no name")
    allowed = re.findall(r'"--allowed-host", "([^"]+)"', text)
    check("loopspec" in allowed, "the Service's name is not let in")
    image = re.search(r"image: nginx:(\d+)\.(\d+)", text)
    check(tuple(map(int, image.groups())) >= RESOLVE_SINCE[:2], image.group(0))
    # Every volume is made here, or said to be made before.
    for kind, name in re.findall(r"(claimName|secretName): ([\w-]+)", text):
        made = kind == "claimName" and re.search(rf"kind: PersistentVolumeClaim\nmetadata:\n  name: {name}\n", text)
        check(made or f"create secret generic {name}" in text, f"{kind} {name} is never made")
    pulled = re.search(r'"loopspec", "pull", "([^"]+)"', text)[1]
    check(f'"--model", "{pulled}"' in text, f"{pulled} is pulled and not served")
    if not nginx:
        return "not read by nginx: there is none"
    known = version_of(nginx) >= RESOLVE_SINCE
    if not known:  # then at least everything else
        config = config.replace(" resolve ", " ")
        config = re.sub(r"loopspec-\d\.loopspec-replicas\.\S*:8080", "127.0.0.1:8080", config)
    config = config.replace("resolver kube-dns.kube-system.svc.cluster.local", "resolver 127.0.0.1")
    with tempfile.TemporaryDirectory() as folder:
        nginx_reads(nginx, config.replace("/tmp/", folder + "/"), folder)
    return "read by nginx" + ("" if known else ", without resolve, which this one does not know")


def unit(deploy, analyze):
    text = (deploy / "loopspec.service").read_text()
    # The steps in its head, in a folder instead of /etc.
    steps = [line[4:] for line in text.splitlines() if line.startswith("#   ") and "systemctl" not in line]
    check(len(steps) == 3, steps)
    with tempfile.TemporaryDirectory() as folder:
        script = "\n".join(steps).replace("/etc/", folder + "/").replace("deploy/", str(deploy) + "/")
        (pathlib.Path(folder) / "systemd/system").mkdir(parents=True)
        subprocess.run(["sh", "-ec", script], check=True)
        keys = pathlib.Path(folder) / "loopspec/keys"
        check(re.fullmatch(r"[A-Za-z0-9]{30,}\n", keys.read_text()), keys.read_text())
        check(stat.S_IMODE(os.stat(keys).st_mode) == 0o600, oct(os.stat(keys).st_mode))
        check("LOOPSPEC_MODEL=" in (pathlib.Path(folder) / "loopspec/environment").read_text(), "no model")
        check(re.search(r"LoadCredential=keys:/etc/loopspec/keys", text), "the unit does not pass the keys on")
        # A variable of the administrator's comes before the unit's own, which an option on the command line would not.
        start = re.search(r"^ExecStart=(.*)$", text, re.M)[1]
        check(not re.search(r"--(host|port|model)\b", start), start)
        check(re.search(r"^Environment=.*LOOPSPEC_PORT=8080.*\n(.*\n)*EnvironmentFile=", text, re.M), "the file does not come after the defaults")
        check("CacheDirectory=loopspec\n" in text and "XDG_CACHE_HOME=%C/loopspec" in text, "nothing can be kept between runs")
        if not analyze:
            return "not read by systemd: there is none"
        # It wants the program to be there.
        copy = pathlib.Path(folder) / "loopspec.service"
        copy.write_text(text.replace("/usr/bin/loopspec", "/bin/true"))
        result = subprocess.run([analyze, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False)
        check(result.returncode == 0 and "loopspec.service" not in result.stderr, result.stderr)
    return "read by systemd"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--deploy", required=True, type=pathlib.Path)
    deploy = parser.parse_args().deploy.resolve()
    nginx = os.environ.get("NGINX") or shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    analyze = shutil.which("systemd-analyze")
    print("kubernetes.yaml:", kubernetes(deploy, nginx))
    print("loopspec.service:", unit(deploy, analyze))
    if not nginx and not analyze:
        print("SKIPPED: there is neither nginx nor systemd-analyze")
        sys.exit(SKIPPED)


if __name__ == "__main__":
    main()
