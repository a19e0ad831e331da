"""A hub on this machine: the part of the Hugging Face hub's protocol that pushing and fetching a repository uses.

What is pushed is kept in files, HUB/KIND/OWNER/NAME/COMMIT/PATH, so that a test can look at it. The client is the real
one, pointed here by HF_ENDPOINT, or by what it reads from that variable: see `hub_stub` in conftest.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

USERS = {"hf_me": "me", "hf_you": "you"}  # by token
LICENSES = ("mit", "apache-2.0", "cc-by-4.0", "other")


class Answer(Exception):  # noqa: N818 - not an error
    """What a request is answered with, raised from wherever that is known."""

    def __init__(self, status=200, content=b"", **headers):
        self.status = status
        self.content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def refusal(status, message, code=None):
    return Answer(status, {"error": message}, X_Error_Message=message, **({"X_Error_Code": code} if code else {}))


class Repo:
    """A repository: branches, and a folder of files for each commit."""

    def __init__(self, folder, owner, private):
        self.folder, self.owner, self.private, self.gated = folder, owner, private, False
        self.branches, self.messages, self.requests = {}, [], []
        self.commit("main", None, {}, "initial commit")

    def commit(self, branch, parent, files, message, deleted=()):
        """Add a commit to a branch; `files` are contents by path."""
        self.messages.append(message)
        name = hashlib.sha1(f"{self.folder}{len(self.messages)}".encode()).hexdigest()
        target = self.folder / name
        if parent is None:
            target.mkdir(parents=True)
        else:
            shutil.copytree(self.folder / parent, target)
        for path in deleted:
            (target / path).unlink()
        for path, content in files.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(content)
        self.branches[branch] = name
        return name

    def at(self, revision="main"):
        """The folder of a branch or commit."""
        commit = self.branches.get(revision, revision)
        if not (self.folder / commit).is_dir() or "/" in commit:
            raise refusal(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.folder / commit


class Hub:
    """The server; `repos` by kind and name, such as ("models", "me/detector")."""

    def __init__(self, folder):
        self.folder, self.repos, self.blobs = Path(folder), {}, {}
        self.requests = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def body(self):
                if self.headers.get("Transfer-Encoding") != "chunked":
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = []
                while size := int(self.rfile.readline(), 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)

            def handle_one(self):
                body = self.body()
                try:
                    hub.requests.append(f"{self.command} {self.path}")
                    answer = hub.answer(self.command, self.path, self.headers, body)
                except Answer as raised:
                    answer = raised
                self.send_response(answer.status)
                answer.headers.setdefault("Content-Length", str(len(answer.content)))
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.content)

            do_GET = do_HEAD = do_POST = do_PUT = handle_one  # noqa: N815

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def create(self, name, kind="models", private=False):
        owner = name.partition("/")[0]
        repo = self.repos[kind, name] = Repo(self.folder / kind / name, owner, private)
        return repo

    def answer(self, method, address, headers, body):
        """The answer to a request; refusals are raised."""
        url = urlsplit(address)
        path, query = unquote(url.path), parse_qs(url.query)
        token = (headers.get("Authorization") or "").removeprefix("Bearer ")
        if token and token not in USERS:
            return refusal(401, "Invalid credentials in Authorization header")
        user = USERS.get(token)
        if path.startswith("/blobs/"):
            assert hashlib.sha256(body).hexdigest() == path.rpartition("/")[2]
            self.blobs[path.rpartition("/")[2]] = body
            return Answer()
        if path == "/api/whoami-v2":
            return (
                Answer(200, {"name": user, "type": "user"}) if user else refusal(401, "Invalid username or password.")
            )
        if path == "/api/validate-yaml":
            return self._validate(json.loads(body)["content"])
        if path == "/api/repos/create":
            return self._create(user, json.loads(body))
        if match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
            self._repo("models" if match[1] is None else "datasets", match[2], user, write=True)
            return self._batch(json.loads(body))
        if match := re.fullmatch(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/([\w-]+)(?:/(.*))?)?", path):
            repo = self._repo(match[1], match[2], user, write=method != "GET" and match[3] != "paths-info")
            return self._api(repo, match[2], match[3], match[4], query, body)
        if match := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repo = self._repo("models" if match[1] is None else "datasets", match[2], user, content=True)
            return self._file(repo.at(match[3]), match[4], headers)
        return refusal(404, f"not served: {method} {path}")

    def _repo(self, kind, name, user, *, write=False, content=False):
        repo = self.repos.get((kind, name))
        if repo is None or (repo.private and user != repo.owner):
            raise refusal(404 if user else 401, "Repository not found", "RepoNotFound")
        if content and repo.gated and user != repo.owner:
            raise refusal(403 if user else 401, f"Access to model {name} is restricted.", "GatedRepo")
        if write and user != repo.owner:
            raise refusal(403, f"You don't have the required permissions: {name}")
        return repo

    def _create(self, user, asked):
        owner = asked.get("organization") or user
        name = f"{owner}/{asked['name']}"
        if user is None:
            return refusal(401, "Invalid username or password.")
        if owner != user:
            return refusal(403, f'You don\'t have the rights to create a model under the namespace "{owner}"')
        if ("models", name) in self.repos:
            return Answer(409, {"error": "You already created this model repo", "url": f"{self.url}/{name}"})
        self.create(name, private=asked.get("visibility") == "private")
        return Answer(200, {"url": f"{self.url}/{name}", "name": name, "id": "1"})

    def _validate(self, content):
        header = yaml.safe_load(content.split("---")[1])
        problems = []
        if header.get("license", "mit") not in LICENSES:
            problems.append(f'"license" must be one of [{", ".join(LICENSES)}]')
        for entry in header.get("model-index", ()):
            for result in entry["results"]:
                known = {"task": "type", "dataset": "type", "metrics": "type"}
                assert all(key in result for key in known), result
                if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", result["dataset"]["type"]):
                    problems.append('"model-index[0].results[0].dataset.type" is not a name')
                if not all(isinstance(metric["value"], float) for metric in result["metrics"]):
                    problems.append('"metrics[0].value" must be a number')
        answer = {"errors": [{"message": problem} for problem in problems], "warnings": []}
        return Answer(400 if problems else 200, answer)

    def _batch(self, asked):
        objects = []
        for item in asked["objects"]:
            upload = {"href": f"{self.url}/blobs/{item['oid']}", "header": {}}
            objects.append({**item, **({} if item["oid"] in self.blobs else {"actions": {"upload": upload}})})
        return Answer(200, {"transfer": "basic", "objects": objects})

    def _api(self, repo, name, what, rest, query, body):
        if what in (None, "revision"):
            folder = repo.at(rest or "main")
            files = [{"rfilename": path} for path in _files(folder)]
            gated = "manual" if repo.gated else False
            about = {"id": name, "sha": folder.name, "siblings": files, "private": repo.private, "gated": gated}
            return Answer(200, {**about, "tags": [], "downloads": 0, "likes": 0})
        if what == "tree":
            revision, _, below = rest.partition("/")
            folder = repo.at(revision)
            if not (folder / below).is_dir():
                return refusal(404, f"{below} does not exist", "EntryNotFound")
            deep = query.get("recursive", ["false"])[0].lower() == "true"
            inside = sorted((folder / below).rglob("*") if deep else (folder / below).iterdir())
            return Answer(200, [_entry(folder, path.relative_to(folder).as_posix()) for path in inside])
        if what == "paths-info":
            folder, wanted = repo.at(rest), parse_qs(body.decode()).get("paths") or json.loads(body)["paths"]
            return Answer(200, [_entry(folder, path) for path in _files(folder) if path in wanted])
        if what == "branch":
            if rest in repo.branches:
                return refusal(409, "Reference already exists")
            repo.branches[rest] = repo.branches["main"]
            return Answer()
        if what == "preupload":
            repo.at(rest)
            asked = json.loads(body)["files"]
            modes = {True: "lfs", False: "regular"}
            return Answer(
                200,
                {
                    "files": [
                        {
                            "path": f["path"],
                            "uploadMode": modes[f["path"].endswith(".safetensors")],
                            "shouldIgnore": False,
                            "oid": None,
                        }
                        for f in asked
                    ]
                },
            )
        assert what == "commit", what
        files, deleted, message = {}, [], ""
        for line in body.splitlines():
            key, value = (json.loads(line)[part] for part in ("key", "value"))
            if key == "header":
                message = value["summary"]
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.blobs[value["oid"]]
            else:
                deleted.append(value["path"])
        request = "create_pr" in query
        branch = f"refs/pr/{len(repo.requests) + 1}" if request else rest
        commit = repo.commit(branch, repo.at(rest).name, files, message, deleted)
        answer = {"commitUrl": f"{self.url}/{name}/commit/{commit}", "commitOid": commit}
        if request:
            repo.requests.append(branch)
            answer["pullRequestUrl"] = f"{self.url}/{name}/discussions/{len(repo.requests)}"
        return Answer(200, answer)

    def _file(self, folder, path, headers):
        file = folder / path
        if not file.is_file():
            raise refusal(404, "Entry not found", "EntryNotFound")
        content = file.read_bytes()
        about = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X_Repo_Commit": folder.name}
        if match := re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range") or ""):
            first, last = int(match[1]), int(match[2] or len(content) - 1)
            last = min(last, len(content) - 1)
            about["Content_Range"] = f"bytes {first}-{last}/{len(content)}"
            return Answer(206, content[first : last + 1], **about)
        return Answer(200, content, **about, Accept_Ranges="bytes")


def _files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def _entry(folder, path):
    if (folder / path).is_dir():
        return {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}
    content = (folder / path).read_bytes()
    return {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
