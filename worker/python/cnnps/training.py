"""Carries out the leases of a worker in each mode (proto/WIRE.md, "Modes")."""
from typing import Callable, Optional, Sequence, Tuple, Union

import numpy as np

from .client import Batch, Client, Lease, Vector
from .errors import AgainError, Done

Gradient = Callable[[Vector, Batch, Vector], float]
Evaluate = Callable[[Vector, int, int],
                    Union[Tuple[int, float], Tuple[int, float, Sequence[float]]]]


class Worker:
    """Carries out the leases of a connection, in any mode.

    gradient(weights, batch, out): write the mean gradient of a batch at `weights` to all of `out`,
    and return the mean loss. `gradient` must not change `weights`. If the model has running
    statistics (`vector:N:running=S`), the last S values are statistics of the batch instead of a
    gradient.
    evaluate(weights, first, count): return the number of correct answers and the sum of the losses
    over the test samples [first, first + count). If the client has `metrics` besides accuracy, also
    return a list of their sums. If `evaluate` is None, this worker answers evaluations with zeros,
    and the loss and the metrics of the run then have no meaning.
    weights: the array that receives the weights of each pull; None: a new array.
    """

    def __init__(self, client: Client, gradient: Gradient, evaluate: Optional[Evaluate] = None,
                 weights: Optional[Vector] = None) -> None:
        self.client, self.gradient, self.evaluate = client, gradient, evaluate
        n = client.info.n_params
        self._trained = client.info.n_trained  # number of parameters without the running statistics
        self.w: Vector = np.zeros(n, np.float32) if weights is None else weights
        self._held = (-1, -1)  # version and term of the weights in `w`
        # the gradient of one batch or, in mode easgd, the centre
        self._spare: Optional[Vector] = None
        self._own: Optional[Vector] = None  # mode easgd: the worker's own weights
        self._velocity: Optional[Vector] = None  # mode easgd: the velocity of `_own`
        self._evaluated = (-1, -1)  # eval_id and term of the evaluation whose weights are in `w`

    def train(self, progress: bool = False) -> None:
        """Trains until the run ends. The run may end even while this worker computes a batch, if
        another worker has computed the same batch."""
        try:
            for lease in self.client.leases(progress):
                self.run(lease)
        except Done:
            pass

    def run(self, lease: Lease) -> None:
        """Carries out one lease, which asks for training or for an evaluation."""
        if lease.is_eval:
            self._run_eval(lease)
        elif lease.exact:
            self._run_exact(lease)
        elif self.client.info.mode == "easgd":
            self._run_elastic(lease)
        else:
            self._run_asynchronous(lease)

    def _run_eval(self, lease: Lease) -> None:
        wanted = (lease.eval_id, lease.term)
        if self._evaluated != wanted:
            self._held = (-1, -1)
            try:
                self.client.pull_eval(self.w)
            except AgainError:
                return
            self._evaluated = wanted
        if self.evaluate:
            self.client.result(lease, *self.evaluate(self.w, lease.first, lease.count))
        else:
            self.client.result(lease, 0, 0.0, [0.0] * self.client.n_sums)

    def _pulled(self) -> None:
        self._held = (self.client.version, self.client.term)
        self._evaluated = (-1, -1)

    def _pull(self) -> None:
        self.client.pull(self.w)
        self._pulled()

    def _add(self, total: Optional[Vector], batch: Batch, factor: float) -> Tuple[Vector, float]:
        """Computes the gradient of a batch and adds it, times `factor`, to `total`, or to a new
        buffer of zeros if `total` is None. Returns the sum, and the mean loss of the batch."""
        if total is None:
            total = self.client.gradient()
            loss = self.gradient(self.w, batch, total)
            if factor != 1:
                total *= np.float32(factor)
            return total, loss
        if self._spare is None:
            self._spare = np.zeros_like(self.w)
        loss = self.gradient(self.w, batch, self._spare)
        if factor != 1:
            self._spare *= np.float32(factor)
        total += self._spare
        return total, loss

    def _step(self, weights: Vector, gradient: Vector) -> None:
        """Takes a local step on `weights`. The step does not change the running statistics."""
        n = self._trained
        weights[:n] -= np.float32(self.client.info.local_rate) * gradient[:n]

    def _run_asynchronous(self, lease: Lease) -> None:
        client, info = self.client, self.client.info
        total: Optional[Vector] = None
        begun, k, losses, samples = 0, 0, 0.0, 0
        pulled = False
        for i, batch in enumerate(lease.batches()):
            if i % info.n_fetch == 0:
                if not pulled:
                    self._pull()
                pulled = False
                if total is not None and info.local_rate:
                    self._step(self.w, total)
            pulls_next = i + 1 < lease.count and (i + 1) % info.n_fetch == 0
            if info.prefetch and pulls_next:
                client.start_pull()
            version = client.version
            before = None if total is None or not info.local_rate else total.copy()
            total, loss = self._add(total, batch, 1)
            k, losses, samples = k + 1, losses + loss * len(batch), samples + len(batch)
            is_last = i + 1 == lease.count
            if info.local_rate and not pulls_next and not is_last:
                self._step(self.w, total if before is None else total - before)
                self._held = (-1, -1)
            if k < info.n_push and not is_last:
                continue
            if k > 1:
                total[self._trained if info.push_sum else 0:] /= np.float32(k)
            work = client.batch(lease.epoch, lease.first + begun, k)
            pulled = pulls_next and not info.prefetch
            client.push(total, work, losses / samples, version=version,
                        then=self.w if pulled else None)
            if pulled:
                self._pulled()
            total, begun, k, losses, samples = None, i + 1, 0, 0.0, 0

    def _run_exact(self, lease: Lease) -> None:
        wanted = (lease.version, lease.term)
        if self._held != wanted:
            self._pull()
            if self._held != wanted:
                # the newest weights are not those of this lease, so the step of the lease has ended
                return
        total: Optional[Vector] = None
        losses, samples = 0.0, 0
        for batch in lease.batches():
            total, loss = self._add(total, batch, len(batch) if lease.count > 1 else 1)
            losses, samples = losses + loss * len(batch), samples + len(batch)
        assert total is not None
        if lease.count > 1:
            total /= np.float32(samples)
        self.client.push(total, lease.whole(), losses / samples, version=lease.version)

    def _run_elastic(self, lease: Lease) -> None:
        client, info = self.client, self.client.info
        centre = self._spare = np.zeros_like(self.w) if self._spare is None else self._spare
        if self._own is None:
            self._own = client.pull()
            self._velocity = np.zeros_like(self.w) if info.momentum else None
        x, v, n = self._own, self._velocity, self._trained
        rate = np.float32(info.local_rate)
        statistics = np.zeros_like(x[n:])
        self._held = self._evaluated = (-1, -1)
        begun, losses, samples = 0, 0.0, 0
        for i, batch in enumerate(lease.batches()):
            is_push = i + 1 - begun == info.n_push or i + 1 == lease.count
            if v is not None:
                v *= np.float32(info.momentum)
                x += v
            if info.prefetch and is_push:
                client.start_pull()
            self.w[:] = x
            g = client.gradient()
            loss = self.gradient(self.w, batch, g)
            losses, samples = losses + loss * len(batch), samples + len(batch)
            statistics += g[n:]
            g[n:] = 0
            g *= rate
            if v is not None:
                v -= g
            x -= g
            if not is_push:
                continue
            client.pull(centre)
            np.subtract(centre, x, out=g)
            g *= np.float32(client.elastic)  # g is now -e in the formulas of proto/WIRE.md, "Modes"
            x[:n] += g[:n]
            x[n:] = centre[n:]
            g[n:] = statistics / np.float32(i + 1 - begun)
            statistics[:] = 0
            work = client.batch(lease.epoch, lease.first + begun, i + 1 - begun)
            client.push(g, work, losses / samples)
            begun, losses, samples = i + 1, 0.0, 0
