"""The files of the project, as git has them."""
import os
import subprocess


def tracked_files(root):
    """Paths below root that git tracks and that exist; None where root is not the top of a checkout, as in a source
    tarball, also one that is unpacked inside another checkout."""
    top = subprocess.run(["git", "-C", str(root), "rev-parse", "--show-toplevel"], capture_output=True, text=True,
                         check=False)
    if top.returncode != 0 or os.path.realpath(top.stdout.strip()) != os.path.realpath(root):
        return None
    listed = subprocess.run(["git", "-C", str(root), "ls-files"], capture_output=True, text=True, check=True)
    return [path for path in listed.stdout.splitlines() if (root / path).is_file()]
