"""The packaged model of some tests."""

from pathlib import Path

import pytest
from inside import find_packaged

from probe import ModelError


def need_smollm2() -> Path:
    """SmolLM2's GGUF file. Skips the test if its package is not installed."""
    try:
        return find_packaged("smollm2")[0]
    except ModelError as missing:
        pytest.skip(str(missing))
