"""python -m tarn: runs the command of the wheel, or the one in PATH."""
import os
import shutil
import sys
from pathlib import Path


def main() -> int:
    """Replaces the process by the command; returns only if there is none."""
    bundled = Path(__file__).with_name("bin") / "tarn"
    command = str(bundled) if bundled.is_file() else os.environ.get("TARN_COMMAND") or shutil.which("tarn")
    if not command:
        print("tarn: the command is not in this package and not in PATH", file=sys.stderr)
        return 1
    os.execv(command, [command] + sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
