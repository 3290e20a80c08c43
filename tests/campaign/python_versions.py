"""The wheel in empty environments: each supported Python, with the newest dependencies and with the
lowest.

    python tests/campaign/python_versions.py --out reports

builds the wheel. For every interpreter it creates an environment, installs the wheel with the
dependencies from the package index, and runs `probe --version` and `probe report bank` in an empty
folder. Before that, it uses the lowest version of every dependency that pyproject.toml allows.
`python_versions.csv` records the runs; a missing interpreter has a row that states it.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
SHOWN = ("torch", "transformers", "transformer-lens", "numpy", "pandas", "pyarrow", "typer")
COLUMNS = (
    "python",
    "dependencies",
    "installed",
    "probe",
    "report",
    "leading_head",
    "certificate",
    *SHOWN,
)
ASK = f"""
import importlib.metadata, json
print(json.dumps({{name: importlib.metadata.version(name) for name in {SHOWN}}}))
"""
READ = """
import json, pandas
heads, rows = (pandas.read_csv(f"out/{name}.csv") for name in ("word_heads", "certificate"))
first = heads.sort_values("rank").iloc[0]
leading = f"L{first['layer']}H{first['head']} {first['net']:.2f}"
print(json.dumps({"leading_head": leading, "certificate": f"{rows['ok'].sum()} of {len(rows)}"}))
"""


def interpreters() -> dict[str, Path | None]:
    """Each Python of PYTHONS that runs here: on the path, or installed by pyenv; None if it is
    missing."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    pythons: dict[str, Path | None] = dict.fromkeys(PYTHONS)
    for version in PYTHONS:
        on_path = [Path(path) for path in [shutil.which(f"python{version}")] if path]
        for path in (*on_path, *sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)):
            if pythons[version] is None and version_of(path).startswith(f"{version}."):
                pythons[version] = path
    return pythons


def version_of(python: Path) -> str:
    """The full version; empty if it does not run."""
    code = "import platform; print(platform.python_version())"
    return subprocess.run(
        [python, "-c", code], check=False, capture_output=True, text=True
    ).stdout.strip()


def lowest() -> list[str]:
    """The lowest version of every dependency, as constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [line.replace(">=", "==") for line in project["dependencies"]]


def tried(python: Path, wheel: Path, folder: Path, constraints: list[str]) -> dict[str, str]:
    """One row: the wheel installed in a new environment and run outside the repository."""
    row = dict.fromkeys(COLUMNS, "")
    row |= {"python": version_of(python), "dependencies": "lowest" if constraints else "newest"}
    environment, work = folder / "environment", folder / "work"
    work.mkdir(parents=True)
    (folder / "constraints.txt").write_text("\n".join(constraints), encoding="utf-8")
    run([python, "-m", "venv", environment], work)
    bin = environment / "bin"
    installed = run(
        [*installer(bin / "python"), "-q", "-c", folder / "constraints.txt", wheel], work
    )
    row["installed"] = "no" if installed is None else "yes"
    if installed is None:
        return row
    row |= read(run([bin / "python", "-c", ASK], work))
    row["probe"] = (run([bin / "probe", "--version"], work) or "fails").strip()
    report = run([bin / "probe", "report", "bank", "--out", "out"], work)
    row["report"] = "no" if report is None else "yes"
    return row if report is None else row | read(run([bin / "python", "-c", READ], work))


def installer(python: Path) -> list[str | Path]:
    """The command that installs into an environment: uv's if there is one, which caches its
    downloads."""
    uv = shutil.which("uv")
    return [uv, "pip", "install", "--python", python] if uv else [python, "-m", "pip", "install"]


def run(command: list[str | Path], folder: Path) -> str | None:
    """The output of the command, in an environment without this repository; None if it fails, with
    its last words."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    result = subprocess.run(
        command, check=False, cwd=folder, env=clean, capture_output=True, text=True
    )
    if result.returncode:
        print(
            f"{' '.join(map(str, command))}: exit {result.returncode}\n{result.stderr[-2000:]}",
            file=sys.stderr,
        )
        return None
    return result.stdout


def read(printed: str | None) -> dict[str, str]:
    return json.loads(printed) if printed else {}


def main() -> None:
    parser = argparse.ArgumentParser(description="The wheel in empty environments of every Python.")
    parser.add_argument("--out", type=Path, required=True, help="the folder of python_versions.csv")
    parser.add_argument(
        "--scratch", type=Path, help="where environments are made; several gigabytes each"
    )
    arguments = parser.parse_args()
    with TemporaryDirectory(dir=arguments.scratch) as scratch:
        base = Path(scratch)
        build = [sys.executable, "-m", "build", "--wheel", "--outdir", base, ROOT]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL)
        wheel = next(base.glob("*.whl"))
        pythons = interpreters()
        first = next((version for version, python in pythons.items() if python), None)
        cases = ([(first, lowest())] if first else []) + [(version, []) for version in PYTHONS]
        rows = []
        for number, (version, constraints) in enumerate(cases):
            python, folder = pythons[version], base / str(number)
            if python is None:
                row = dict.fromkeys(COLUMNS, "") | {
                    "python": version,
                    "installed": "no such Python here",
                }
            else:
                row = tried(python, wheel, folder, constraints)
                shutil.rmtree(folder)
            rows.append(row)
            print(row, flush=True)
            pd.DataFrame(rows, columns=COLUMNS).to_csv(
                arguments.out / "python_versions.csv", index=False
            )


if __name__ == "__main__":
    main()
