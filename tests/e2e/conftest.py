"""Fixtures of the end-to-end tests."""
import hashlib

import pytest

MNIST_LABELS = "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"


@pytest.fixture(scope="session")
def mnist(data):
    """True if the images are MNIST's digits. For Fashion-MNIST the tests have lower bounds."""
    labels = data / "t10k-labels-idx1-ubyte.gz"
    return labels.exists() and hashlib.sha256(labels.read_bytes()).hexdigest() == MNIST_LABELS
