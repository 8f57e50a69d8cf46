"""One exception class for each status of libcnnps.

All classes derive from Error. `status` is the number in <cnnps.h>, and the text of an exception is
the reason that the library gives.
"""


class Error(Exception):
    """A call of libcnnps failed."""

    status = 0


class UsageError(Error, ValueError):
    """An argument or option is wrong, or a key file is missing, unreadable or malformed."""

    status = -1


class OutOfMemoryError(Error, MemoryError):
    """Out of memory."""

    status = -2


class InputOutputError(Error, OSError):
    """The server has a disk error."""

    status = -3


class UnreachableError(Error, ConnectionError):
    """The server did not answer within connect_timeout or disconnect_timeout."""

    status = -4


class WrongRunError(Error):
    """The server at this address is in another run now."""

    status = -5


class FencedError(Error):
    """Another process has taken over this worker's slot; connect again."""

    status = -6


class DataError(Error):
    """A data file is malformed."""

    status = -7


class WrongDataError(Error):
    """The data set or the tensors differ from those of the run."""

    status = -8


class CheckpointError(Error):
    """The server refused a checkpoint."""

    status = -9


class LockedError(Error):
    """A directory of the server is locked."""

    status = -10


class AuthError(Error, PermissionError):
    """The server does not accept this key."""

    status = -11


class ProtocolError(Error):
    """A message was malformed, or the weights of three pulls in a row had a wrong checksum."""

    status = -12


class VersionError(Error):
    """Server and library have no common protocol version, or one of them lacks a feature that the
    run needs."""

    status = -13


class TermError(Error):
    """The server has restarted; the library handles this case, and no call raises this error."""

    status = -14


class GapError(Error):
    """A push is missing; the library handles this case, and no call raises this error."""

    status = -15


class StateError(Error):
    """The message is not allowed in this state of the session."""

    status = -16


class FullError(Error):
    """The server has no free worker slot."""

    status = -17


class RolledBackError(Error):
    """The server lost pushes that it had reported as durable."""

    status = -18


class ShutdownError(Error):
    """The server shuts down before the end of the run."""

    status = -19


class Done(Error):
    """Training is done."""

    status = -20


class AgainError(Error):
    """The call has no result now; its documentation says why."""

    status = -21


class DeviceError(Error):
    """A compute device failed."""

    status = -22


class TooBigError(Error):
    """A message exceeds a size limit of the server."""

    status = -23


class QuarantineError(Error):
    """Too many gradients or losses of this worker were bad."""

    status = -24


class DivergedError(Error):
    """Training diverged: the run has ended."""

    status = -25


class NetworkError(Error):
    """An error of the network library."""

    status = -26


BY_STATUS = {kind.status: kind for kind in Error.__subclasses__()}
