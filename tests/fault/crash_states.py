"""Computes every directory that a power cut may leave, from the log of preload/disk.c.

The model: for a file, a power cut keeps all bytes that the program wrote before the file's last
fsync or fdatasync. A cut also keeps any subset of the pieces of later writes; a piece is the part
of a write in one sector of 512 bytes. Where a piece is missing, the file has its old content;
beyond the old end of the file, it has zeros there, or ends before the missing piece. For the
directory, a cut keeps all changes before the directory's last fsync, and any subset of the later
changes in any order. A change makes, renames or removes a name. A power cut keeps a change entirely
or not at all. An fsync of a file does not make its name durable, and an fsync of the directory does
not make the bytes of a file durable. The real file systems ext4 and xfs promise more than this
model, so a test with this model is stricter.

Bounds: if a file has more than MAX_ALL pieces, or the directory more than MAX_ALL changes, only
these subsets are tried: each prefix, each prefix without one element, and each single element. The
computed directories contain no LOCK and no *.tmp, because a server does not read these files when
it starts.
"""
import itertools

PIECE = 512
MAX_ALL = 6


class Op:
    """A record of the log: an operation on the directory, or a note about a client. A note gives a
    term or seq that the client had sent or received by the time of the note."""

    def __init__(self, line, data):
        self.kind, _, self.name, self.other, at, _ = line.split("\t")
        self.at, self.data = int(at), data


def read_log(path):
    raw, ops, at = path.read_bytes(), [], 0
    while at < len(raw):
        end = raw.index(b"\n", at)
        line = raw[at:end].decode()
        size = int(line.rsplit("\t", 1)[1])
        ops.append(Op(line, raw[end + 1:end + 1 + size]))
        at = end + 1 + size
    return ops


def subsets(things):
    """Returns all subsets of a short list. For a list of more than MAX_ALL elements, returns only
    each prefix, each prefix without one element, and each single element: these subsets are most
    likely to show a torn state."""
    n = len(things)
    if n <= MAX_ALL:
        return [c for k in range(n + 1) for c in itertools.combinations(things, k)]
    prefixes = [things[:k] for k in range(n + 1)]
    gaps = [things[:k] + things[k + 1:m] for m in range(2, n + 1) for k in {0, m // 2, m - 2}]
    return [*prefixes, *gaps, *([t] for t in things[1:])]


def matters(name):
    return name != "LOCK" and not name.endswith(".tmp")


class Disk:
    """The directory at one position of the log: its present content, and the part that is certain
    to survive a power cut."""

    def __init__(self, state=()):
        self.now = {}  # name -> file number: the directory as the program sees it
        self.kept = {}  # name -> file number: the directory at the time of its last fsync
        # Changes since the last fsync of the directory, each {name: file number or None}. After a
        # power cut, each change is on the disk entirely or not at all.
        self.changes = []
        # index: file number; the content of the file at the time of its last fsync
        self.synced = []
        # index: file number; the writes (offset, bytes) and truncations ("cut", size) after the
        # file's last fsync
        self.later = []
        for name, data in state:
            self.now[name] = self.new()
            self.synced[-1] = data
        self.kept = dict(self.now)

    def new(self):
        self.synced.append(b"")
        self.later.append([])
        return len(self.synced) - 1

    def change(self, names):
        self.changes.append(names)
        apply(names, self.now)

    def play(self, op):
        if op.kind == "note":
            return
        if op.name == ".":
            if op.kind == "sync":
                self.kept, self.changes = dict(self.now), []
        elif op.kind in ("open", "open-empty"):
            if op.name not in self.now:
                self.change({op.name: self.new()})
            elif op.kind == "open-empty":
                self.later[self.now[op.name]].append(("cut", 0))
        elif op.kind == "write":
            self.later[self.now[op.name]].append((op.at, op.data))
        elif op.kind == "truncate":
            self.later[self.now[op.name]].append(("cut", op.at))
        elif op.kind == "sync":
            file = self.now[op.name]
            self.synced[file], self.later[file] = self.content(file, self.later[file]), []
        elif op.kind == "rename":
            self.change({op.name: None, op.other: self.now[op.name]})
        elif op.kind == "unlink":
            self.change({op.name: None})
        else:
            raise ValueError(op.kind)

    def content(self, file, ops):
        data = bytearray(self.synced[file])
        for at, what in ops:
            if at == "cut":
                del data[what:]
            else:
                data.extend(bytes(max(0, at + len(what) - len(data))))
                data[at:at + len(what)] = what
        return bytes(data)

    def contents(self, file):
        """Returns every content that the file may have after a power cut."""
        pieces = []
        for at, what in self.later[file]:
            if at == "cut":
                pieces.append((at, what))
                continue
            while what:
                n = PIECE - at % PIECE
                pieces.append((at, what[:n]))
                at, what = at + n, what[n:]
        whole = len(self.content(file, pieces))
        found = {self.content(file, c) for c in subsets(pieces)}
        # The new size of a file may reach the disk before the data, and the file then ends in
        # zeros.
        return found | {c.ljust(whole, b"\0") for c in found}

    def listings(self):
        """Returns every {name: file number} that the directory may have after a power cut."""
        found = {}
        for chosen in subsets(self.changes):
            names = dict(self.kept)
            for change in chosen:
                apply(change, names)
            found[tuple(sorted(names.items()))] = names
        return found.values()

    def states(self):
        """Returns every directory that a power cut may leave, each as a sorted tuple of (name,
        content)."""
        found = {}
        for names in self.listings():
            files = [(name, file) for name, file in sorted(names.items()) if matters(name)]
            options = [[(name, c) for c in self.contents(file)] for name, file in files]
            found.update(dict.fromkeys(itertools.product(*options)))
        return found


def apply(change, names):
    for name, file in change.items():
        names.pop(name, None)
        if file is not None:
            names[name] = file
