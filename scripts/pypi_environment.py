"""A virtual environment of PyPI packages in a cache directory: made once, by one process at a time, whole or not."""

import fcntl
import json
import os
import pathlib
import subprocess
import sys

UNREACHABLE_MARKS = (
    "NewConnectionError",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "ProxyError",
    "SSLError",
    "NameResolutionError",
    "Temporary failure in name resolution",
    "Connection refused",
    "Connection reset",
    "Network is unreachable",
    "HTTP error",
    "No matching distribution found",
)
# An installation that takes longer is as good as unreachable.
INSTALL_S = 300


class Unreachable(Exception):
    """PyPI cannot be reached, or does not offer the packages."""


class InstallFailed(Exception):
    """Anything else that went wrong."""


def default_cache_dir(name):
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(root) / "bascule" / name


def python_of(cache_dir):
    return cache_dir / "venv" / "bin" / "python"


def make(cache_dir, installs, say, system_packages=False):
    """Makes the environment under `cache_dir` unless it is there, and gives its interpreter.

    `installs`: for each run of pip, its arguments. `say` is called with a line before anything is installed.
    `system_packages`: what is installed for the running interpreter is seen too. Raises Unreachable, InstallFailed.
    """
    cache_dir.mkdir(parents=True, exist_ok=True)
    with open(cache_dir / "lock", "w") as lock:  # Two runs at once would clear each other's environment.
        fcntl.flock(lock, fcntl.LOCK_EX)
        make_locked(cache_dir, installs, say, system_packages)
    return python_of(cache_dir)


def make_locked(cache_dir, installs, say, system_packages):
    wanted = {"installs": installs, "python": [sys.base_prefix, sys.version.split()[0]]}
    stamp = cache_dir / "venv" / "bascule.json"
    try:
        if json.loads(stamp.read_text()) == wanted and python_of(cache_dir).exists():
            return
    except (OSError, ValueError):
        pass
    packages = [packages_of(arguments) for arguments in installs]
    say(f"installing {', '.join(packages)} from PyPI into {cache_dir / 'venv'}")
    options = ["--system-site-packages"] if system_packages else []
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", *options, str(cache_dir / "venv")], capture_output=True, text=True
    )
    if made.returncode != 0:
        hint = "" if "ensurepip" not in made.stdout + made.stderr else " (on Debian: apt-get install python3-venv)"
        output = f"{made.stdout}{made.stderr}"
        raise InstallFailed(f"cannot make a virtual environment in {cache_dir / 'venv'}{hint}\n{output}")
    for arguments in installs:
        run_pip(python_of(cache_dir), arguments)
    stamp.write_text(json.dumps(wanted))


def packages_of(arguments):
    return ", ".join(argument for argument in arguments if not argument.startswith("-"))


def run_pip(python, arguments):
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    # Wheels only: an install then runs no code of the package.
    command += ["--only-binary", ":all:", "--retries", "2", "--timeout", "20", *arguments]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        raise Unreachable(f"PyPI is too slow for {packages_of(arguments)}: more than {INSTALL_S} s") from None
    if done.returncode == 0:
        return
    output = (done.stdout + done.stderr).strip()
    if any(mark in output for mark in UNREACHABLE_MARKS):
        raise Unreachable(f"PyPI cannot be reached for {packages_of(arguments)}: {output.splitlines()[-1]}")
    raise InstallFailed(f"pip install {' '.join(arguments)} failed:\n{output}")
