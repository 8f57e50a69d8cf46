"""Fixtures of the end-to-end tests."""
import hashlib
import shutil

import pytest

from support.build import PATIENCE, without

MNIST_LABELS = "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"


@pytest.fixture(scope="session")
def mnist(data):
    """Returns True if the images are MNIST's digits. If the images are those of Fashion-MNIST, the
    tests require less accuracy."""
    labels = data / "t10k-labels-idx1-ubyte.gz"
    return labels.exists() and hashlib.sha256(labels.read_bytes()).hexdigest() == MNIST_LABELS


@pytest.fixture(scope="session")
def chromium():
    """Yields a headless Chromium. All tests of a pytest process share it."""
    try:
        from selenium import webdriver as selenium
    except ImportError:
        without("python3-selenium", "deploy/setup.sh")
    if not shutil.which("chromedriver"):
        without("Chromium", "deploy/setup.sh")
    options = selenium.ChromeOptions()
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                     "--window-size=1280,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    from selenium.webdriver.chrome.service import Service
    driver = selenium.Chrome(service=Service(shutil.which("chromedriver")), options=options)
    driver.set_page_load_timeout(60 * PATIENCE)
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium):
    """Returns Chromium with an empty page and an empty console. The page of an earlier test would
    continue to send requests to its server, which has ended, and write errors to the console of
    this test."""
    chromium.get("about:blank")
    chromium.get_log("browser")
    return chromium
