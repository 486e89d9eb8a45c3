#!/usr/bin/env python3
"""Every option in a sub-command's --help is offered by both completions and described in the man page; neither offers
an option that the sub-command does not have. The bash completion is run, that of zsh is read. On a terminal of 80
columns no line of help is longer."""
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

source = Path(os.environ["TARN_SOURCE_DIR"])
command = os.environ.get("TARN_COMMAND")
if not command:
    print("no command in this build")
    sys.exit(77)
problems = []
zsh = (source / "completions/_tarn").read_text(encoding="utf-8")
man = (source / "docs/tarn.1").read_text(encoding="utf-8").replace("\\-", "-")
described = set(re.findall(r"--[a-z][a-z0-9-]*", man))
FLAG = re.compile(r"^  (--[a-z][a-z0-9-]*)", flags=re.M)


def output(*words):
    return subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True).stdout


def bash_options(name):
    """What bash offers after `tarn NAME --`."""
    words = ["tarn", *name.split(), "--"]
    script = f'. completions/tarn.bash; COMP_WORDS=({" ".join(words)}); COMP_CWORD={len(words) - 1}; _tarn; ' \
             'printf "%s\\n" "${COMPREPLY[@]}"'
    found = subprocess.run(["bash", "-c", script], check=True, stdout=subprocess.PIPE, text=True, cwd=source).stdout
    return set(found.split())


def zsh_options(name):
    """The options in the sub-command's branch of zsh's completion; None for `bench`, whose branches are nested."""
    branch = re.search(rf"^    {name}\)\n(.*?)^        ;;$", zsh, flags=re.M | re.S)
    return set(re.findall(r"--[a-z][a-z0-9-]*", branch.group(1))) if branch else None


def on_terminal(*words):
    """Lines that the command prints on a terminal of 80 columns."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(words, stdout=follower, env=os.environ | {"TERM": "xterm"}):
        os.close(follower)
        printed = b""
        while chunk := read_some(leader):
            printed += chunk
    os.close(leader)
    return printed.decode().splitlines()


def read_some(leader):
    """Bytes of a terminal; none once its last writer has closed it, which Linux reports as an error."""
    try:
        return os.read(leader, 65536)
    except OSError:
        return b""


def compare(name, shell, offered, wanted):
    for option in sorted(wanted - offered):
        problems.append(f"tarn {name} {option}: not in the completion of {shell}")
    for option in sorted(offered - wanted):
        problems.append(f"tarn {name} {option}: the completion of {shell} offers it, the command has no such option")


names = re.findall(r"^  tarn ([a-z]+(?: [a-z]+)?)(?: +\[.*?\])?  +\S", output(command, "help"), flags=re.M)
names = [name for name in names if name not in ("version", "help")]
for name in names:
    wanted = set(FLAG.findall(output(command, *name.split(), "--help")))
    compare(name, "bash", bash_options(name), wanted)
    if " " not in name:
        compare(name, "zsh", zsh_options(name) or set(), wanted)
    problems += [f"tarn {name} {option}: not in docs/tarn.1" for option in sorted(wanted - described)]

for words in [["help"], *([*name.split(), "--help"] for name in names)]:
    problems += [f"tarn {' '.join(words)}: {len(line)} columns: {line}" for line in on_terminal(command, *words)
                 if len(line) > 80]

print("\n".join(problems))
print(f"{len(names)} sub-commands, {len(problems)} differences")
sys.exit(1 if problems or len(names) < 20 else 0)
