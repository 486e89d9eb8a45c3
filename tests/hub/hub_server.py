"""A small hub for tests: servers on loopback that speak the protocol of a Hugging Face hub. Large files lie on another
host, whose answers have none of the hub's headers: those are in the redirect to it. Small ones lie behind a redirect
within the hub, but for a repository that needs a token. Faults are given per repository.

    hub = Hub()
    hub.add("org/model", {"config.json": b"{}", "model.safetensors": weights}, fail=..., ...)
    hub.endpoint, hub.large_endpoint, hub.near_endpoint (large files on the host of the hub, at another port)
    hub.requests, hub.large_requests
"""
import hashlib
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote, urlsplit

LARGE = 4096  # bytes from which a file is stored apart, as by Git LFS


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    """Files, and what goes wrong: attributes that the handlers read."""

    def __init__(self, files, **faults):
        self.files = files
        self.commit = hashlib.sha1(repr(sorted((k, sha256(v)) for k, v in files.items())).encode()).hexdigest()
        self.refs = {"main": self.commit}
        self.names = None      # names to list instead of those of the files
        self.statuses = []     # of the next requests for contents; None: no fault
        self.list_statuses = []
        self.headers = {}      # of a response with an error status
        self.cut_after = []    # bytes after which the next responses with contents break off
        self.short = False     # Content-Length promises no more than the cut body
        self.damage = None     # (name, bytes to send instead)
        self.etags = {}        # name: etag to announce instead
        self.sizes = {}        # name: size to announce instead
        self.token = None      # that is needed
        self.redirect = None   # of large files; default: to the second server
        self.ranges = True     # honored
        self.pause = 0         # seconds before the second half of contents
        self.large_pauses = [] # the same for the next responses with contents of a large file
        self.listing = None    # bytes instead of the JSON
        self.wrong_range = False
        self.commit_header = None
        self.__dict__.update(faults)
        self.lock = threading.Lock()

    def next_of(self, name):
        with self.lock:
            values = getattr(self, name)
            return values.pop(0) if values else None

    def is_large(self, name):
        return len(self.files[name]) >= LARGE

    def etag(self, name):
        data = self.files[name]
        return self.etags.get(name) or (sha256(data) if self.is_large(name) else git_sha1(data))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub, is_large_server = None, False

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        record = {"method": self.command, "path": path, "raw": self.path,
                  "headers": {k.lower(): v for k, v in self.headers.items()}}
        (self.hub.large_requests if self.is_large_server else self.hub.requests).append(record)
        try:
            if self.is_large_server:
                repo, name = re.fullmatch(r"/large/([^/]+/[^/]+)/(.+)", path).groups()
                self.contents(self.hub.repos[repo], name, '"of-the-large-server"')
            elif tree := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/(.+)", path):
                self.tree(*tree.groups())
            elif cached := re.fullmatch(r"/api/resolve-cache/models/([^/]+/[^/]+)/([^/]+)/(.+)", path):
                self.small(*cached.groups())
            elif path.startswith("/api/models/"):
                self.list(*re.fullmatch(r"/api/models/([^/]+/[^/]+)/revision/(.+)", path).groups())
            else:
                self.resolve(*re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path).groups())
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def refuses(self, repo, statuses):
        """Answers with the next fault; true if there was one."""
        if repo is None:
            self.answer(401, X_Error_Code="RepoNotFound", X_Error_Message="Invalid username or password.")
            return True
        if repo.token and self.headers.get("Authorization") != f"Bearer {repo.token}":
            self.answer(401, X_Error_Code="GatedRepo", X_Error_Message="Access to it is restricted.")
            return True
        status = repo.next_of(statuses)
        if status:
            self.answer(status, **repo.headers)
        return bool(status)

    def list(self, name, revision):
        repo = self.hub.repos.get(name)
        if self.refuses(repo, "list_statuses"):
            return
        commit = repo.refs.get(revision, revision if revision == repo.commit else None)
        if not commit:
            self.answer(404, X_Error_Code="RevisionNotFound", X_Error_Message=f"Invalid rev id: {revision}")
            return
        siblings = [{"rfilename": n} | ({"size": len(repo.files[n])} if n in repo.files else {})
                    for n in (repo.names if repo.names is not None else repo.files)]
        body = json.dumps({"id": name, "sha": commit, "siblings": siblings}).encode()
        self.answer(200, repo.listing if repo.listing is not None else body, Content_Type="application/json")

    def tree(self, name, _):
        """What huggingface_hub asks for beside the list."""
        repo, entries = self.hub.repos[name], []
        for file, data in repo.files.items():
            entries.append({"type": "file", "path": file, "size": len(data), "oid": git_sha1(data)})
            if repo.is_large(file):
                entries[-1]["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 130}
        self.answer(200, json.dumps(entries).encode(), Content_Type="application/json")

    def resolve(self, name, commit, file):
        repo = self.hub.repos.get(name)
        if self.refuses(repo, "statuses" if self.command == "GET" else "head_statuses"):
            return
        if commit not in (repo.commit, *repo.refs) or file not in repo.files:
            self.answer(404, X_Error_Code="EntryNotFound", X_Error_Message="Entry not found")
            return
        if repo.is_large(file):
            target = repo.redirect or f"{self.hub.large_endpoint}/large/{name}/{quote(file)}?Signature=secret"
            self.answer(302, Location=target, X_Linked_Etag=f'"{repo.etag(file)}"',
                        X_Linked_Size=str(repo.sizes.get(file, len(repo.files[file]))), ETag='"of-the-pointer"',
                        X_Repo_Commit=repo.commit_header or repo.commit)
        elif repo.token:
            self.small(name, commit, file)
        else:
            query = quote(f"/{name}/resolve/{commit}/{file}", safe="") + f'=&etag=%22{repo.etag(file)}%22'
            self.answer(307, Location=f"/api/resolve-cache/models/{name}/{repo.commit}/{quote(file)}?{query}",
                        X_Repo_Commit=repo.commit_header or repo.commit)

    def small(self, name, _, file):
        repo = self.hub.repos[name]
        etag, commit = f'"{repo.etag(file)}"', repo.commit_header or repo.commit
        if self.command == "HEAD":
            size = repo.sizes.get(file, len(repo.files[file]))
            self.answer(200, ETag=etag, Content_Length=str(size), X_Repo_Commit=commit)
        else:
            self.contents(repo, file, etag, **{"X-Repo-Commit": commit})

    def contents(self, repo, name, etag, **headers):
        if self.is_large_server and (status := repo.next_of("large_statuses")):
            self.answer(status)
            return
        data, status = repo.files[name], 200
        if repo.damage and repo.damage[0] == name:
            data = repo.damage[1]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if asked and repo.ranges and self.headers.get("If-Range", etag) == etag:
            first = int(asked[1])
            if first >= len(data):
                self.answer(416)
                return
            status, headers = 206, headers | {"Content-Range": f"bytes {first}-{len(data) - 1}/{len(data)}"}
            if repo.wrong_range:
                headers["Content-Range"] = f"bytes 0-{len(data) - 1}/{len(data)}"
            data = data[first:]
        self.send_response(status)
        cut = repo.next_of("cut_after")
        sent = data if cut is None else data[:cut]
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(sent if repo.short else data)))
        self.end_headers()
        half = len(sent) // 2
        self.wfile.write(sent[:half])
        pause = repo.pause or (self.is_large_server and repo.next_of("large_pauses"))
        if pause:
            self.wfile.flush()
            time.sleep(pause)
        self.wfile.write(sent[half:])
        if len(sent) < len(data):
            self.close_connection = True


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):
        """A client that goes away is what the tests are about."""


class Hub:
    def __init__(self, tls=None):
        self.repos, self.requests, self.large_requests = {}, [], []
        self.servers = []
        for is_large, host in ((False, "127.0.0.1"), (True, "127.0.0.2"), (True, "127.0.0.1")):
            handler = type("Handler", (Handler,), {"hub": self, "is_large_server": is_large})
            server = Server((host, 0), handler)
            if tls:
                server.socket = tls.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
            self.servers.append(server)
        scheme = "https" if tls else "http"
        self.endpoint, self.large_endpoint, self.near_endpoint = (
            f"{scheme}://{s.server_address[0]}:{s.server_address[1]}" for s in self.servers)

    def add(self, name, files, **faults):
        repo = self.repos[name] = Repo(files, **({"head_statuses": [], "large_statuses": []} | faults))
        return repo

    def of(self, name):
        """The requests for a repository to the hub, and to where the large files are."""
        return ([r for r in self.requests if f"/{name}/" in r["path"]],
                [r for r in self.large_requests if f"/{name}/" in r["path"]])
