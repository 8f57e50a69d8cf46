"""Measures the CPU time of a page in Chromium. On a busy machine, performance.now() in the page
also counts the time that other processes take from it."""


def thread_ms(browser, script, *arguments):
    """Run a script in the page. Returns the CPU time that the page's main thread used meanwhile, in
    milliseconds."""
    def used():
        metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(1000 * m["value"] for m in metrics if m["name"] == "ThreadTime")
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    before = used()
    browser.execute_script(script, *arguments)
    return used() - before
