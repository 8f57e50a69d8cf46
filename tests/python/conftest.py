"""Make the tests import the Python package from the source tree. The package loads libcnnps from
the build under test."""
import os
import sys

import pytest
from support.build import BUILD, FLAVOUR, ROOT

PACKAGE = ROOT / "worker/python"
os.environ["CNNPS_LIBRARY"] = str(BUILD / "libcnnps.so.0")
os.environ["CNNPS_PROGRAMS"] = str(BUILD)
os.environ["PYTHONPATH"] = str(PACKAGE)
sys.path.insert(0, str(PACKAGE))


def pytest_ignore_collect(collection_path):
    # Skip these tests in a sanitizer flavour: Python could load libcnnps only if the library of the
    # sanitizer was preloaded.
    return FLAVOUR != "release"


@pytest.fixture
def server():
    """Yields a function that starts a cnnps.Server with options. The fixture closes the server at
    the end of the test."""
    import cnnps
    servers = []

    def start(**options):
        servers.append(cnnps.Server(**options))
        return servers[-1]
    yield start
    for one in servers:
        one.close()
