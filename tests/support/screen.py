"""A screen of a chosen size for Chromium."""
import contextlib


@contextlib.contextmanager
def screen(browser, width, height=900, scale=1, mobile=False):
    """In the block, the browser's window has this width and height, in CSS pixels. `scale` is the
    number of pixels of the screen per CSS pixel. A mobile browser obeys the viewport of a page."""
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
        "width": width, "height": height, "deviceScaleFactor": scale, "mobile": mobile})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
