"""The entry points of `fuzzing`, with cases chosen by coverage: `python
tests/campaign/guided_fuzzing.py "sentences.csv" --seconds 60`.

Atheris (which has to be installed in addition to the project's packages) records the lines of probe
that each case reaches and changes the bytes from which hypothesis draws its cases. It ends at the
first case that fails, with its traceback, or when the time is over, with the number of cases.
"""

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import atheris

with atheris.instrument_imports(include=["probe"]):
    import fuzzing

from hypothesis import given, settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=list(fuzzing.TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    target = fuzzing.TARGETS[arguments.target]
    with TemporaryDirectory() as folder:

        @settings(deadline=None, database=None)
        @given(target.draw)
        def attempt(case: object) -> None:
            target.attempt(Path(folder), case)

        options = [
            f"-max_total_time={arguments.seconds}",
            f"-seed={arguments.seed}",
            "-max_len=4096",
        ]
        atheris.Setup([sys.argv[0], *options], attempt.hypothesis.fuzz_one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
