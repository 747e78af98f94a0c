"""Every link of the Markdown files: a file that is there, and a heading that is in it. Addresses outside are not called."""
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")


def files():
    """Markdown that belongs to the project: tracked by git, or, outside a clone or without git, all but what was built."""
    names = []
    if shutil.which("git") is not None:
        listed = subprocess.run(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
                                capture_output=True, text=True, check=False)
        names = listed.stdout.split("\n") if listed.returncode == 0 else []
    found = [ROOT / name for name in names if name and (ROOT / name).exists()]
    return found or [f for f in ROOT.rglob("*.md") if "build" not in f.relative_to(ROOT).parts]


def text_of(file):
    """Without code, whose brackets are no links."""
    text = re.sub(r"```.*?```", "", file.read_text(encoding="utf-8"), flags=re.S)
    lines = [line for line in text.split("\n") if not line.startswith("    ")]
    return re.sub(r"`[^`\n]*`", "", "\n".join(lines))


def anchors(file):
    """Names of a file's headings, as GitHub makes them."""
    out = set()
    for line in file.read_text(encoding="utf-8").split("\n"):
        heading = re.match(r"#{1,6} +(.*)", line)
        if heading:
            name = re.sub(r"[^\w\- ]", "", heading[1].strip().lower()).replace(" ", "-")
            out.add(name)
    return out


def main():
    wrong, count = [], 0
    for file in files():
        for target in LINK.findall(text_of(file)):
            count += 1
            if re.match(r"[a-z]+:", target):
                if not re.match(r"(https://[\w.-]+\.\w+(/|$)|http://127\.0\.0\.1|mailto:)", target):
                    wrong.append(f"{file.relative_to(ROOT)}: {target} is no address")
                continue
            path, _, anchor = target.partition("#")
            there = file if not path else file.parent / path
            if not there.exists():
                wrong.append(f"{file.relative_to(ROOT)}: {target}: there is no {path}")
            elif anchor and anchor not in anchors(there):
                wrong.append(f"{file.relative_to(ROOT)}: {target}: {there.name} has no heading {anchor}")
    if wrong:
        sys.exit("\n".join(wrong))
    if count < 20:
        sys.exit(f"only {count} links found: is this the right folder?")
    print(f"{count} links lead somewhere")


if __name__ == "__main__":
    main()
