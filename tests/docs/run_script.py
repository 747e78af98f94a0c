"""./run, in a clone whose cmake is a stand-in that writes a loopspec which says where and how it was called."""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

CMAKE = """#!/bin/sh
echo "BUILD OUTPUT of cmake $*"
[ "$1" = --build ] || exit 0
mkdir -p build/release/bin
cat > build/release/bin/loopspec <<'END'
#!/bin/sh
echo "folder=$PWD"
echo "arguments=$*"
END
chmod +x build/release/bin/loopspec
echo "$*" >> build/targets
"""


def main():
    with tempfile.TemporaryDirectory(prefix="loopspec-test-") as temporary:
        base = Path(temporary).resolve()
        clone, elsewhere, tools = base / "a clone", base / "elsewhere", base / "tools"
        for folder in (clone / "scripts", clone / "models" / "ouro-demo", elsewhere, tools):
            folder.mkdir(parents=True)
        shutil.copy(ROOT / "run", clone / "run")
        (clone / "scripts" / "install-packages.sh").write_text("#!/bin/sh\necho PACKAGES\n")
        (clone / "scripts" / "install-packages.sh").chmod(0o755)
        (clone / "scripts" / "packages.txt").write_text("")
        (tools / "cmake").write_text(CMAKE)
        (tools / "cmake").chmod(0o755)
        environment = {"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(base)}

        def run(*arguments, folder=clone):
            script = "./run" if folder == clone else str(clone / "run")
            return subprocess.run([script, *arguments], cwd=folder, env=environment, capture_output=True, text=True,
                                  timeout=120, check=False)

        def expect(what, condition, result):
            if not condition:
                sys.exit(f"{what}\nexit {result.returncode}\n--- out\n{result.stdout}\n--- err\n{result.stderr}")

        # Standard output is the command's alone: it can be piped to jq.
        result = run("loopspec", "inspect", "-m", "my model", "--json")
        expect("output of the build on standard output",
               result.stdout == f"folder={clone}\narguments=inspect -m my model --json\n", result)
        expect("the build is silent", "BUILD OUTPUT" in result.stderr and "PACKAGES" in result.stderr, result)

        # From elsewhere, paths are those of the caller.
        result = run("loopspec", "inspect", "-m", "model", folder=elsewhere)
        expect("not where the caller is", result.stdout == f"folder={elsewhere}\narguments=inspect -m model\n", result)

        # The demo's own model, unless another is named.
        result = run("demo")
        expect("demo", result.stdout.endswith("arguments=demo --model models/ouro-demo\n"), result)
        result = run("demo", "--device", "cpu", folder=elsewhere)
        expect("demo from elsewhere",
               result.stdout.endswith(f"arguments=demo --model {clone}/models/ouro-demo --device cpu\n"), result)
        for named in (["--model", "X"], ["--model=X"], ["-m", "X"], ["-mX"]):
            result = run("demo", *named)
            expect("demo with a model", result.stdout.endswith("arguments=demo " + " ".join(named) + "\n"), result)

        # What `cmake --install` copies is built: the binary and the library.
        targets = (clone / "build" / "targets").read_text()
        expect("the library is not built", all("loopspec_cli loopspec" in line for line in targets.splitlines()), result)

        for word in ("help", "--help", "-h"):
            result = run(word)
            expect("help", result.returncode == 0 and result.stderr == "" and "./run demo" in result.stdout
                   and "./run help" in result.stdout and "set -e" not in result.stdout, result)
        expect("no command is help", run().returncode == 0, run())
        result = run("dmeo")
        expect("an unknown command", result.returncode == 2 and result.stdout == ""
               and "unknown command: dmeo" in result.stderr, result)
    print("./run: output, folders, demo, help as expected")


if __name__ == "__main__":
    os.umask(0o022)
    main()
