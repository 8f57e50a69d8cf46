"""A peer breaks the protocol: the server reacts only on the connection of this peer, and other
peers are not affected.

The worker of the fixture `honest` pushes before and after each test on its own connections.

The tests cover attacks A1, A2, A3, A4 and A5 of docs/faults.md.
"""
import contextlib
import socket
import struct

import numpy as np
import pytest
import zmq

from client import CONTEXT, Link, encode, hello, pb
from conftest import SIZE


def expect_closed(endpoint, requests):
    """Send each request as raw bytes to the port, each on a new connection. The server must close
    all these connections."""
    host, port = endpoint.removeprefix("tcp://").split(":")
    sockets = [socket.create_connection((host, int(port)), timeout=10) for _ in requests]
    for s, request in zip(sockets, requests):
        with s, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            s.sendall(request)
            while s.recv(4096):
                pass


def test_transport_http_is_disconnected(server, honest):
    expect_closed(server.endpoint, [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10])


def test_transport_random_bytes_are_disconnected(server, honest):
    expect_closed(server.endpoint, [np.random.default_rng(seed).bytes(500) for seed in range(20)])


def test_transport_a_routing_id_of_ones_own_gets_no_answer(server, honest):
    liar = CONTEXT.socket(zmq.DEALER)
    liar.linger = 0
    liar.routing_id = b"honest"
    liar.connect(server.endpoint)
    liar.send_multipart(encode(hello()))
    honest.goes_on()
    assert not liar.poll(200)
    liar.close()


@pytest.mark.parametrize("kind", [zmq.REQ, zmq.ROUTER, zmq.DEALER])
def test_transport_other_sockets_do_no_harm(server, honest, kind):
    with CONTEXT.socket(kind) as s:
        s.linger = 0
        s.connect(server.endpoint)
        for part in (b"", b"x" * 100):
            try:
                s.send(part, zmq.DONTWAIT)
            except zmq.ZMQError:
                pass
        honest.goes_on()


def test_the_longest_header_is_received(server, honest):
    """In this run, the longest header that the protocol allows is larger than all weights. The
    server must nevertheless receive such a header."""
    link = Link(server.endpoint)
    for size in (4 * SIZE + 4096 + 1, 65536):
        link.send_frames([b"\xff" * size])
        kind, message, _ = link.receive()
        assert kind == "error" and message.code == 12, message
    link.close()


def test_transport_an_oversized_frame_closes_the_connection(server, honest):
    link = Link(server.endpoint)
    link.send(pb.Pull(which=0))
    assert link.receive()[0] == "error"
    monitor = link.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    link.send_frames([b"x", b"y" * (65536 + 4096 + 1)])
    assert monitor.poll(10000), "still connected"
    link.socket.disable_monitor()
    link.close()


def test_a_client_that_never_reads_harms_nobody(server, honest):
    deaf = Link(server.endpoint)
    for _ in range(20000):
        try:
            deaf.socket.send_multipart(encode(pb.Status()), zmq.DONTWAIT)
        except zmq.Again:
            break
    honest.goes_on()
    deaf.close()


def test_connections_that_come_and_go(server, honest):
    for k in range(100):
        link = Link(server.endpoint)
        link.send(hello(role=pb.ROLE_OBSERVER))
        if k % 2:
            assert link.receive()[0] == "welcome"
        link.close()
    honest.goes_on()


def test_half_a_greeting_is_disconnected(server, honest):
    expect_closed(server.endpoint, [struct.pack(">BQB", 0xFF, 1, 0x7F) + b"\x03"])
