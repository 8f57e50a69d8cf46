"""The part of the Kubernetes API that the commands of docs/kubernetes.md use: discovery, objects
with versions, watches, merge patches, and the subresources scale, log and exec. kubernetes.py runs
this server, and describes the whole stand-in.

The server speaks HTTP without TLS, and checks neither users nor schemas. It refuses what it does
not have, so that a command cannot succeed by chance: other resources, strategic merge patches,
server-side apply, and selectors that use more than equalities.
"""
import base64
import copy
import hashlib
import json
import re
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

GROUPS = {  # {group and version: rows of (resource, kind, short name)}
    "v1": (("namespaces", "Namespace", "ns"), ("pods", "Pod", "po"), ("services", "Service", "svc"),
           ("secrets", "Secret", ""), ("configmaps", "ConfigMap", "cm"),
           ("persistentvolumeclaims", "PersistentVolumeClaim", "pvc")),
    "apps/v1": (("statefulsets", "StatefulSet", "sts"),),
    "batch/v1": (("jobs", "Job", ""),),
    "networking.k8s.io/v1": (("networkpolicies", "NetworkPolicy", "netpol"),),
    "policy/v1": (("poddisruptionbudgets", "PodDisruptionBudget", "pdb"),),
}
KINDS = {row[0]: (version, row[1]) for version, rows in GROUPS.items() for row in rows}
PATH = re.compile(r"/apis?/(?P<version>v1|[\w.]+/v1)(?:/namespaces/(?P<namespace>[^/]+)(?=/))?"
                  r"/(?P<resource>[a-z]+)(?:/(?P<name>[^/]+)(?:/(?P<sub>[a-z]+))?)?")
# the constant that RFC 6455 appends to the client's key
WEBSOCKET = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Refused(Exception):
    """Raised if the server must answer a request with an error."""

    def __init__(self, code, reason, message):
        super().__init__(message)
        self.code, self.reason = code, reason


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def merged(old, patch):
    """Returns `old` after a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return new


def fields(message):
    """Returns the fields of a Protocol Buffers message as pairs of number and value."""
    found, at = [], 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value, shift = value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value
    while at < len(message):
        key, value = varint(), varint()
        if key & 7 == 2:
            value, at = message[at:at + value], at + value
        found.append((key >> 3, value))
    return found


def decoded(body):
    """Returns the Kubernetes object in the body of a request. New versions of kubectl create
    Namespaces and Secrets in Protocol Buffers (k8s.io/apimachinery, runtime.Unknown)."""
    if not body.startswith(b"k8s\0"):
        return json.loads(body)
    envelope = dict(fields(body[4:]))
    kind = dict(fields(envelope[1]))[2].decode()
    if kind not in ("Namespace", "Secret"):
        raise Refused(415, "UnsupportedMediaType", f"no Protocol Buffers for {kind}")
    o = fields(envelope[2])
    reply = {"metadata": {"name": dict(fields(dict(o)[1]))[1].decode()}}
    if kind == "Secret":
        pairs = [dict(fields(value)) for number, value in o if number == 2]
        reply["data"] = {pair[1].decode(): base64.b64encode(pair[2]).decode() for pair in pairs}
    return reply


class Store:
    """All objects, and the list of all changes of objects. The number of a change becomes the
    resourceVersion of the changed object. The lock protects everything, also the objects that get()
    and of() return; record() publishes a change of such an object."""

    def __init__(self):
        self.lock = threading.Condition(threading.RLock())
        self.objects = {}  # {(resource, namespace, name): object}
        # the changes: (resource, "ADDED", "MODIFIED" or "DELETED", copy of the object)
        self.events = []

    def record(self, resource, event, o):
        o["metadata"]["resourceVersion"] = str(len(self.events) + 1)
        self.events.append((resource, event, copy.deepcopy(o)))
        self.lock.notify_all()

    def of(self, resource, namespace=None):
        return [o for (r, n, _), o in list(self.objects.items())
                if r == resource and namespace in (None, n)]

    def get(self, resource, namespace, name):
        found = self.objects.get((resource, namespace, name))
        if not found:
            raise Refused(404, "NotFound", f'{resource} "{name}" not found')
        return found

    def create(self, resource, namespace, o):
        name = o["metadata"]["name"]
        if namespace:
            self.get("namespaces", None, namespace)
            o["metadata"]["namespace"] = namespace
        if (resource, namespace, name) in self.objects:
            raise Refused(409, "AlreadyExists", f'{resource} "{name}" already exists')
        o["apiVersion"], o["kind"] = KINDS[resource]
        o["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=now(), generation=1)
        o.setdefault("status", {})
        self.objects[resource, namespace, name] = o
        self.record(resource, "ADDED", o)
        return o

    def patch(self, resource, o, patch):
        """Apply a merge patch. The completions of an indexed Job may change only together with the
        parallelism."""
        new = merged(o, patch)
        was, spec = o.get("spec", {}), new.get("spec", {})
        if (resource == "jobs" and was["completions"] != spec["completions"]
                and spec["completions"] != spec["parallelism"]):
            raise Refused(422, "Invalid", "spec.completions: may change only together with "
                          "spec.parallelism, to the same value")
        o.update(new)
        o["metadata"]["generation"] += was != spec
        self.record(resource, "MODIFIED", o)
        return o

    def delete(self, resource, o):
        """Remove an object. The object of a pod stays until the node has ended the pod."""
        meta = o["metadata"]
        if resource == "pods":
            if "deletionTimestamp" not in meta:
                meta["deletionTimestamp"] = now()
                meta["deletionGracePeriodSeconds"] = o["spec"]["terminationGracePeriodSeconds"]
                self.record(resource, "MODIFIED", o)
        else:
            self.remove(resource, o)
        return o

    def remove(self, resource, o):
        meta = o["metadata"]
        del self.objects[resource, meta.get("namespace"), meta["name"]]
        self.record(resource, "DELETED", o)


class Query:
    """The query parameters of a request."""

    def __init__(self, text):
        self.all = parse_qs(text)
        self.wanted = {where: self.equalities(self.get(f"{where}Selector"))
                       for where in ("label", "field")}
        if set(self.wanted["field"]) - {"metadata.name"}:
            raise Refused(400, "BadRequest", "field selectors are only for metadata.name")

    def get(self, name, default=""):
        return self.all.get(name, [default])[-1]

    @staticmethod
    def equalities(text):
        pairs = [re.fullmatch(r"([^!=,]+)==?([^=,]*)", part) for part in text.split(",") if part]
        if not all(pairs):
            raise Refused(400, "BadRequest", f"selector {text!r} is not a list of equalities")
        return {pair[1]: pair[2] for pair in pairs}

    def selects(self, o, namespace):
        meta = o["metadata"]
        name = self.wanted["field"].get("metadata.name", meta["name"])
        return (name == meta["name"] and namespace in (None, meta.get("namespace"))
                and self.wanted["label"].items() <= meta.get("labels", {}).items())


def discovery(path):
    """Returns the answer to a discovery request for `path`, or None if `path` is no discovery
    path."""
    def group(version):
        name = version.rpartition("/")[0]
        row = {"groupVersion": version, "version": "v1"}
        return {"name": name, "versions": [row], "preferredVersion": row}

    def resources(version):
        rows = []
        for resource, kind, short in GROUPS[version]:
            rows.append({"name": resource, "singularName": kind.lower(), "kind": kind,
                         "namespaced": kind != "Namespace", "shortNames": [short] if short else [],
                         "verbs": ["create", "delete", "get", "list", "patch", "watch"]})
            for sub, verbs in (("log", ["get"]), ("exec", ["get"])) if kind == "Pod" else ():
                rows.append(
                    {"name": f"pods/{sub}", "kind": "Pod", "namespaced": True, "verbs": verbs})
            if kind == "StatefulSet":
                rows.append({"name": f"{resource}/scale", "kind": "Scale", "group": "autoscaling",
                             "version": "v1", "namespaced": True, "verbs": ["patch"]})
        return {"kind": "APIResourceList", "groupVersion": version, "resources": rows}

    def openapi(version):
        """Returns the only part of the OpenAPI document that kubectl reads: whether a request may
        have the parameter fieldValidation."""
        parameter = {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}
        return {"openapi": "3.0.0", "info": {"title": "Kubernetes", "version": "v1.33.0"},
                "paths": {f"/{resource}": {"patch": {
                    "parameters": [parameter], "responses": {}, "x-kubernetes-group-version-kind": {
                        "group": version.rpartition("/")[0], "version": "v1", "kind": kind}}}
                    for resource, kind, _ in GROUPS[version]}}

    roots = {("apis/" if "/" in version else "api/") + version: version for version in GROUPS}
    known = {
        "/api": lambda: {"kind": "APIVersions", "versions": ["v1"]},
        "/apis": lambda: {"kind": "APIGroupList", "apiVersion": "v1",
                          "groups": [group(version) for version in GROUPS if "/" in version]},
        "/openapi/v3": lambda: {"paths": {
            root: {"serverRelativeURL": f"/openapi/v3/{root}"} for root in roots}}}
    for root, version in roots.items():
        known[f"/{root}"] = lambda version=version: resources(version)
        known[f"/openapi/v3/{root}"] = lambda version=version: openapi(version)
    return known[path]() if path in known else None


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""
    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    store = node = None  # serve() sets them

    def log_message(self, format, *args):  # noqa: A002 - the name in the base class
        print(f"{time.time():.3f} {self.command} {self.path} {args[1]}", flush=True)

    def answer(self, o, code=200, content="application/json"):
        body = o.encode() if isinstance(o, str) else json.dumps(o).encode()
        self.send_response(code)
        self.send_header("Content-Type", content)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def handle_request(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        url = urlsplit(self.path)
        try:
            about = discovery(url.path) if self.command == "GET" else None
            if about:
                self.answer(about)
                return
            at = PATH.fullmatch(url.path)
            if not at or KINDS.get(at["resource"], ("",))[0] != at["version"]:
                raise Refused(404, "NotFound", f"no resource at {url.path}")
            query = Query(url.query)
            do = getattr(self, f"{self.command.lower()}_{at['sub'] or 'object'}", None)
            if not do or query.get("dryRun"):
                raise Refused(405, "MethodNotAllowed", f"no {self.command} of {url.path}")
            do(at, query, body)
        except Refused as why:
            self.answer({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                         "code": why.code, "reason": why.reason, "message": str(why)}, why.code)

    do_GET = do_POST = do_PATCH = do_DELETE = handle_request

    def found(self, at):
        return self.store.get(at["resource"], at["namespace"], at["name"])

    def get_object(self, at, query, _):
        if query.get("watch") in ("true", "1"):
            self.watch(at, query)
            return
        version, kind = KINDS[at["resource"]]
        with self.store.lock:
            if at["name"]:
                reply = copy.deepcopy(self.found(at))
            else:
                items = [copy.deepcopy(o) for o in self.store.of(at["resource"])
                         if query.selects(o, at["namespace"])]
                reply = {"kind": f"{kind}List", "apiVersion": version, "items": items,
                         "metadata": {"resourceVersion": str(len(self.store.events))}}
        self.answer(reply)

    def watch(self, at, query):
        """Stream the changes after the version of the request, or after a list of the objects."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

        def send(event, o):
            line = json.dumps({"type": event, "object": o}).encode() + b"\n"
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        end = time.monotonic() + float(query.get("timeoutSeconds", "3600"))
        first = []
        with self.store.lock:
            seen = int(query.get("resourceVersion") or len(self.store.events))
            if query.get("sendInitialEvents") == "true":
                version, kind = KINDS[at["resource"]]
                seen = len(self.store.events)
                first = [("ADDED", copy.deepcopy(o)) for o in self.store.of(at["resource"])
                         if query.selects(o, at["namespace"])]
                first.append(("BOOKMARK", {"kind": kind, "apiVersion": version, "metadata": {
                    "resourceVersion": str(seen),
                    "annotations": {"k8s.io/initial-events-end": "true"}}}))
        try:
            for event, o in first:
                send(event, o)
            while time.monotonic() < end:
                with self.store.lock:
                    self.store.lock.wait_for(lambda: len(self.store.events) > seen, 0.5)
                    new, seen = self.store.events[seen:], len(self.store.events)
                for resource, event, o in new:
                    if resource == at["resource"] and query.selects(o, at["namespace"]):
                        send(event, o)
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True  # the client has left

    def post_object(self, at, _, body):
        with self.store.lock:
            self.answer(self.store.create(at["resource"], at["namespace"], decoded(body)), 201)

    def patch_object(self, at, _, body):
        if self.headers["Content-Type"] != "application/merge-patch+json":
            raise Refused(415, "UnsupportedMediaType", "only merge patches")
        with self.store.lock:
            self.answer(self.store.patch(at["resource"], self.found(at), json.loads(body)))

    def delete_object(self, at, *_):
        with self.store.lock:
            self.answer(self.store.delete(at["resource"], self.found(at)))

    def patch_scale(self, at, _, body):
        patch = json.loads(body)
        if at["resource"] != "statefulsets" or set(patch) != {"spec"}:
            raise Refused(400, "BadRequest", "not the scale of a StatefulSet")
        with self.store.lock:
            o = self.store.patch("statefulsets", self.found(at), patch)
            count = {"replicas": o["spec"]["replicas"]}
            self.answer({"kind": "Scale", "apiVersion": "autoscaling/v1", "spec": count,
                         "metadata": {k: o["metadata"][k] for k in ("name", "namespace", "uid")}})

    def get_log(self, at, query, _):
        if query.get("follow") == "true":
            raise Refused(400, "BadRequest", "logs cannot be followed")
        with self.store.lock:
            text = self.node.log(self.found(at), query.get("previous") == "true")
        self.answer(text, content="text/plain")

    def get_exec(self, at, query, _):
        """Run a command without input, and send its output over a WebSocket. The first byte of a
        message is the channel: 1 is stdout, 2 is stderr, 3 is the final status."""
        protocol = "v5.channel.k8s.io"
        if protocol not in self.headers.get("Sec-WebSocket-Protocol", "") or query.get("stdin"):
            raise Refused(400, "BadRequest", f"only {protocol} without stdin")
        with self.store.lock:
            pod = copy.deepcopy(self.found(at))
        done = self.node.execute(pod, query.all["command"])
        accept = hashlib.sha1((self.headers["Sec-WebSocket-Key"] + WEBSOCKET).encode()).digest()
        self.send_response(101)
        for name, value in (("Upgrade", "websocket"), ("Connection", "Upgrade"),
                            ("Sec-WebSocket-Accept", base64.b64encode(accept).decode()),
                            ("Sec-WebSocket-Protocol", protocol)):
            self.send_header(name, value)
        self.end_headers()
        status = {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        if done.returncode:
            status.update(status="Failure", reason="NonZeroExitCode", message="failed", details={
                "causes": [{"reason": "ExitCode", "message": str(done.returncode)}]})
        for channel, data in ((1, done.stdout), (2, done.stderr), (3, json.dumps(status).encode())):
            message = bytes([channel]) + data
            self.wfile.write(b"\x82\x7e" + len(message).to_bytes(2, "big") + message)
        self.wfile.write(b"\x88\x02\x03\xe8")  # a close frame with status 1000, no error
        self.close_connection = True


def serve(store, node, address):
    """Start the API server, which runs in threads of its own."""
    handler = type("Handler", (Handler,), {"store": store, "node": node})
    server = ThreadingHTTPServer(address, handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
