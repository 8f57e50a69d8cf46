"""The programs, common/version.h and CHANGELOG.md have the same version."""
import re
import subprocess

import pytest

from support.build import ROOT, command


def newest_release():
    """Returns the version and the date of the newest release in CHANGELOG.md."""
    return re.search(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$",
                     (ROOT / "CHANGELOG.md").read_text(), re.M).groups()


@pytest.mark.parametrize("program", ["cnn-ps", "cnn-worker", "cnn-ctl"])
def test_a_program_prints_the_newest_version_of_the_changelog(program):
    """If CHANGELOG.md has a section of unreleased changes, the programs must have a newer version
    than the newest release, with the suffix -dev."""
    said = subprocess.run(command(program, "--version"), stdout=subprocess.PIPE, text=True,
                          timeout=10, check=True).stdout
    newest = newest_release()[0]
    if "\n## [Unreleased]\n" not in (ROOT / "CHANGELOG.md").read_text():
        assert said == f"{program} {newest}\n"
        return
    found = re.fullmatch(rf"{program} (\d+)\.(\d+)\.(\d+)-dev\n", said)
    assert found, said
    assert tuple(map(int, found.groups())) > tuple(map(int, newest.split(".")))


def test_the_sections_of_the_changelog_are_releases_in_their_order():
    text = (ROOT / "CHANGELOG.md").read_text()
    titles = re.findall(r"^## (.*)$", text, re.M)
    releases = titles[1:] if titles[0] == "[Unreleased]" else titles
    found = [re.fullmatch(r"\[(\d+)\.(\d+)\.(\d+)\] - (\d{4}-\d\d-\d\d)", t) for t in releases]
    assert all(found), titles
    versions = [tuple(map(int, f.groups()[:3])) for f in found]
    assert versions == sorted(set(versions), reverse=True)
    dates = [f[4] for f in found]
    assert dates == sorted(dates, reverse=True)
