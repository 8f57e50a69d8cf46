"""The end of a run reaches an observer that asked for the status, unasked."""
import json

import pytest

from client import Link, Refused, hello, pb
from lab import SIGTERM


@pytest.fixture
def observer(lab):
    links = []

    def start(server):
        links.append(Link(server.endpoint))
        return links[-1]
    yield start
    for link in links:
        link.close()


def last_words(link):
    """The status that comes without a question, and the code of the BYE behind it."""
    status = json.loads(link.expect("status")[1].text)
    with pytest.raises(Refused) as bye:
        link.expect("status")
    return status, bye.value.code


def test_a_watcher_is_sent_the_last_status_and_bye(lab, observer):
    server = lab.server("--model", "vector:3")
    watcher, silent = observer(server), observer(server)
    for link in (watcher, silent):
        link.send(hello(role=pb.ROLE_OBSERVER))
        link.expect("welcome")
    watcher.send(pb.Status())
    assert json.loads(watcher.expect("status")[1].text)["ending"] is None
    server.signal(SIGTERM)
    status, code = last_words(watcher)
    assert (status["state"], status["ending"], code) == ("ending", "drained", 19)
    assert silent.receive(0.3) is None
    silent.send(pb.Status())  # after the end
    assert last_words(silent)[1] == 19
    assert server.wait(10) == 0


def test_a_worker_that_asks_is_not_sent_home(lab, observer):
    """It may hold pushes that the next term needs: only the core parts with it."""
    server = lab.server("--model", "vector:3")
    watcher, stranger = observer(server), observer(server)
    watcher.send(hello(role=pb.ROLE_OBSERVER))
    watcher.expect("welcome")
    watcher.send(pb.Status())
    watcher.expect("status")
    stranger.send(pb.Status())
    stranger.expect("status")
    server.signal(SIGTERM)
    last_words(watcher)
    assert stranger.receive(0.3) is None
    stranger.send(pb.Status())  # after the end: answered, and no more
    stranger.expect("status")
    assert stranger.receive(0.3) is None
