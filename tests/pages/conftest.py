"""The report of the made-up study, written once."""

import pytest
from example_study import make_study

import probe


@pytest.fixture(scope="session")
def report_page(tmp_path_factory):
    """The page of a report in its folder, below one that was not there; tests look at it and leave it as it is."""
    out = tmp_path_factory.mktemp("report") / "new" / "folder"
    return probe.write_report(make_study(), out, command="probe report")
