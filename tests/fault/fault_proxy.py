"""A proxy between workers and the server. The proxy drops, duplicates and delays whole messages,
which TCP never does. The seed determines which messages the proxy drops, duplicates or delays."""
import random
import threading

import zmq

# message -> field number of its body in Message (proto/WIRE.md, "Messages"); 0: "Chunked push"
NAMES = {0: "chunk", 1: "hello", 2: "welcome", 3: "pull", 4: "params", 5: "push", 6: "ack",
         7: "lease", 8: "grant", 9: "result", 10: "heartbeat", 11: "bye", 12: "status", 13: "admin",
         14: "error"}


class FaultProxy:
    """Accepts the connections of workers on `endpoint`. For each connection of a worker, the proxy
    opens a connection to the server.

    `drop` and `double` give the shares of messages that the proxy drops or duplicates, as {message
    name: share from 0 to 1}.
    """

    def __init__(self, server, seed, drop=None, double=None):
        self.server = server
        self.random = random.Random(seed)
        self.drop, self.double = drop or {}, double or {}
        self.dropped = self.doubled = 0
        self.stopping = False
        self.context = zmq.Context()
        self.front = self._socket(zmq.ROUTER)
        self.front.bind("tcp://127.0.0.1:*")
        self.endpoint = self.front.last_endpoint.decode()
        self.backs = {}  # routing id of a worker's connection -> the proxy's socket to the server
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _socket(self, kind):
        socket = self.context.socket(kind)
        socket.linger, socket.sndhwm, socket.rcvhwm = 0, 0, 0
        return socket

    def _pass(self, socket, address, frames):
        """Send a message once, twice or not at all."""
        name = NAMES.get(frames[0][0] >> 3)
        if self.random.random() < self.drop.get(name, 0):
            self.dropped += 1
            return
        socket.send_multipart([*address, *frames])
        if self.random.random() < self.double.get(name, 0):
            self.doubled += 1
            socket.send_multipart([*address, *frames])

    def _run(self):
        poller = zmq.Poller()
        poller.register(self.front, zmq.POLLIN)
        while not self.stopping:
            for socket, _ in poller.poll(100):
                if socket is self.front:
                    peer, *frames = socket.recv_multipart()
                    if peer not in self.backs:
                        self.backs[peer] = self._socket(zmq.DEALER)
                        self.backs[peer].connect(self.server)
                        poller.register(self.backs[peer], zmq.POLLIN)
                    self._pass(self.backs[peer], [], frames)
                else:
                    peer = next(w for w, back in self.backs.items() if back is socket)
                    self._pass(self.front, [peer], socket.recv_multipart())

    def close(self):
        self.stopping = True
        self.thread.join(10)
        self.context.destroy(linger=0)
