"""A small hub on this machine that keeps its repositories in a folder."""

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest


class Hub(BaseHTTPRequestHandler):
    """The endpoints that the client calls. A repository is a folder with a folder per commit and a file `main`."""

    root = None
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self._body()
        words = unquote(urlsplit(self.path).path).strip("/").split("/")
        if words == ["api", "validate-yaml"]:
            self._json({"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != "Bearer right":
            self._fail(401, "", "Invalid username or password.")
        elif words == ["api", "repos", "create"]:
            self._create(json.loads(body))
        elif words[-2] == "preupload":
            files = json.loads(body)["files"]
            answer = [{"path": each["path"], "uploadMode": "regular", "shouldIgnore": False} for each in files]
            self._json({"files": answer})
        elif words[-2] == "commit":
            self._change("/".join(words[2:4]), [json.loads(line) for line in body.splitlines()])

    def _create(self, asked):
        repo = f"{asked['organization'] or 'anna'}/{asked['name']}"
        if repo.startswith("bob/"):
            self._fail(403, "", "You may not write here")
            return
        known = (self.root / repo).exists()
        if not known:
            self._commit(repo, {".gitattributes": b"* text"}, asked.get("visibility"))
        self._json({"url": f"http://{self.headers['Host']}/{repo}"}, 409 if known else 200)

    def _change(self, repo, entries):
        files = self._files(repo, "main")
        for entry in entries:
            if entry["key"] == "file":
                files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            elif entry["key"] == "deletedFile":
                del files[entry["value"]["path"]]
        oid = self._commit(repo, files)
        self._json({"commitUrl": f"http://{self.headers['Host']}/{repo}/commit/{oid}", "commitOid": oid})

    def do_GET(self):
        words = unquote(urlsplit(self.path).path).strip("/").split("/")
        api = words[:2] == ["api", "models"]
        repo = "/".join(words[2:4] if api else words[:2])
        if not (self.root / repo).is_dir():
            self._fail(404, "RepoNotFound", "Repository not found")
            return
        words = words[4:] if api else words[2:]
        oid = self._oid(repo, words[1] if len(words) > 1 else "main")
        if oid is None:
            self._fail(404, "RevisionNotFound", "Invalid rev id")
            return
        files = self._files(repo, oid)
        if not api:
            content = files[words[2]]
            etag = hashlib.sha1(content).hexdigest()
            self._send(content, {"ETag": f'"{etag}"', "X-Repo-Commit": oid})
        elif words and words[0] == "tree":
            rows = [{"type": "file", "path": name, "size": len(each), "oid": "0"} for name, each in files.items()]
            self._json(rows)
        else:
            siblings = [{"rfilename": name, "size": len(each)} for name, each in files.items()]
            self._json({"id": repo, "sha": oid, "siblings": siblings})

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_):
        pass

    def _body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _oid(self, repo, revision):
        revision = (self.root / repo / "main").read_text() if revision == "main" else revision
        return revision if (self.root / repo / revision).is_dir() else None

    def _files(self, repo, revision):
        folder = self.root / repo / self._oid(repo, revision)
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}

    def _commit(self, repo, files, visibility=None):
        oid = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        folder = self.root / repo / oid
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
        (self.root / repo / "main").write_text(oid)
        if visibility is not None:
            (self.root / repo / "visibility").write_text(visibility)
        return oid

    def _json(self, content, status=200):
        self._send(json.dumps(content).encode(), {"Content-Type": "application/json"}, status)

    def _fail(self, status, code, message):
        self._send(b"{}", {"X-Error-Code": code, "X-Error-Message": message}, status)

    def _send(self, content, headers, status=200):
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Where the hub is; its repositories lie in tmp_path / hub."""
    monkeypatch.setenv("HF_TOKEN", "right")
    monkeypatch.setattr(Hub, "root", tmp_path / "hub")
    Hub.root.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
