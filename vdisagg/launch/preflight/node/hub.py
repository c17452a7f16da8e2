"""Asks a model hub for a model's config, as huggingface_hub would. Travels only where that is needed."""

from __future__ import annotations

import socket
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from http.client import HTTPMessage
    from typing import IO

    Environment = Mapping[str, str]

HUB = "https://huggingface.co"  # where HF_ENDPOINT names no other
LIMIT_S = 10.0
MOST_BYTES = 8 << 20


class SameHost(urllib.request.HTTPRedirectHandler):
    """Takes the token along only to the host that it was given for."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        again = super().redirect_request(req, fp, code, msg, headers, newurl)
        token = req.unredirected_hdrs.get("Authorization")
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if again is not None and token and (old.scheme, old.netloc) == (new.scheme, new.netloc):
            again.add_unredirected_header("Authorization", token)
        return again


def get(
    name: str, revision: str, file: str, environment: Environment, home: Path
) -> tuple[str, str, bytes]:
    """(kind, where and why, content): kind is "", denied, unknown or unreachable.

    `home` is the folder that may hold the login's token.
    """
    base = (environment.get("HF_ENDPOINT") or HUB).rstrip("/")
    place = urllib.parse.quote(revision or "main", safe="")
    url = f"{base}/{urllib.parse.quote(name)}/resolve/{place}/{file}"
    token = token_of(environment, home)
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "vdisagg"})
        if token:
            request.add_unredirected_header("Authorization", f"Bearer {token}")
        proxies = urllib.request.ProxyHandler(proxies_for(request.host, environment))
        opener = urllib.request.build_opener(proxies, SameHost)
        with opener.open(request, timeout=LIMIT_S) as response:
            return "", url, response.read(MOST_BYTES)
    except urllib.error.HTTPError as exc:
        exc.close()
        kind = {401: "denied", 403: "denied", 404: "unknown"}.get(exc.code, "unreachable")
        return kind, f"{url}: HTTP {exc.code}, asked with{'' if token else 'out'} a token", b""
    except (OSError, ValueError) as exc:
        reason = getattr(exc, "reason", exc)
        said = "timed out" if isinstance(reason, socket.timeout) else str(reason)
        return "unreachable", f"{url}: {said}", b""


def proxies_for(host: str, environment: Environment) -> dict[str, str]:
    """By scheme, as the node's environment says, not ours."""

    def said(name: str) -> str:
        return environment.get(name) or environment.get(name.upper()) or ""

    # typeshed leaves this public function out
    if urllib.request.proxy_bypass_environment(host, {"no": said("no_proxy")}):  # type: ignore[attr-defined]
        return {}
    return {
        scheme: said(f"{scheme}_proxy") for scheme in ("http", "https") if said(f"{scheme}_proxy")
    }


def token_of(environment: Environment, home: Path) -> str:
    for variable in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if environment.get(variable, "").strip():
            return environment[variable].strip()
    file = environment.get("HF_TOKEN_PATH") or str(home / "token")
    try:
        return Path(file).expanduser().read_text().strip()
    except OSError:
        return ""
