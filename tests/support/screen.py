"""What users of Chromium perceive: a screen of a chosen size, or the words of a screen reader."""
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


def insides(browser, role):
    """Returns the texts that a screen reader finds inside the elements of this role."""
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    known, texts = {node["nodeId"]: node for node in nodes}, []
    inside = [child for node in nodes if node.get("role", {}).get("value") == role for child in node["childIds"]]
    while inside:
        node = known.get(inside.pop(), {})
        inside += node.get("childIds", [])
        if not node.get("ignored", True) and node["role"]["value"] == "StaticText":
            texts.append(node["name"]["value"])
    return texts


def spoken(browser):
    """Returns what a screen reader says about each element that the keyboard reaches, as lists
    [role, name, description]. The main part of a page is left out: only a link leads to it."""
    nodes = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    shown = [node for node in nodes if not node["ignored"] and node["role"]["value"] not in ("RootWebArea", "main") and
             any(o["name"] == "focusable" and o["value"]["value"] for o in node.get("properties", []))]
    return [[node.get(key, {}).get("value", "") for key in ("role", "name", "description")] for node in shown]
