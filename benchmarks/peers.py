"""Who is measured: ours, HAProxy, nginx, and the bare C loop. Each knows how it is started and whether it is here."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol

import attrs
import msgpack

from benchmarks.machine import find_program
from benchmarks.stage import Running, Stage, free_port, wait_for_events, wait_for_port

Wire = Literal["msgpack", "http"]
"""What is spoken; an answer of HTTP is taken for good by its status."""
Endpoint = tuple[str, int]

_CONNECTIONS: Final = 15000
"""nginx closes idle connections of its own accord when fewer than a sixteenth of them are left."""
_OTHERS: Final = 200
START_S: Final = 60.0
"""Ten thousand backends are all up by then, on a busy machine too."""


def pack(*messages: dict[str, object]) -> bytes:
    """Return one batch as the wire has it."""
    packed: bytes = msgpack.packb(list(messages), use_bin_type=False)
    return packed


ASK: Final = pack({"Object": "Master", "Command": "Event", "Name": "DoSendServer"})
ANSWER: Final = pack(
    {
        "Object": "Master",
        "Command": "Value",
        "Name": "Server",
        "Data": {"Result": "OK", "Data": {"IP": "127.0.0.1", "Port": 40001}},
    }
)
_HTTP_ASK: Final = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
_HTTP_TEXT: Final = "127.0.0.1:40001"
_REQUESTS: Final[dict[Wire, bytes]] = {"msgpack": ASK, "http": _HTTP_ASK}


@attrs.frozen
class Server:
    """A peer that runs."""

    running: Running
    port: int
    wire: Wire
    tls: bool = False
    plain_port: int = 0
    """Of ours by another door: the clients' port."""
    own_request: bytes = b""
    """What it is asked; empty: what is usual on its wire."""

    @property
    def request(self) -> bytes:
        return self.own_request or _REQUESTS[self.wire]


@attrs.frozen
class Certificate:
    """PEM files: the certificate, its key, and both in one file, as HAProxy wants them."""

    certificate: Path
    key: Path
    both: Path


class Peer(Protocol):
    """One of those who are compared."""

    @property
    def name(self) -> str: ...

    def missing(self) -> str | None:
        """Say why it cannot be measured here; None: it can."""

    def start(self, stage: Stage) -> Server:
        """Start it on the core of the servers; return when it serves."""


@attrs.frozen
class Ours:
    """A whole master: pool, probes, metrics, deadlines, as `lambdamu master` runs it."""

    backends: Sequence[Endpoint]
    mode: str = "hold"
    name: str = "ours"
    text: str = ""
    """More of the configuration."""
    backend: str = ""
    """More of each backend."""

    def missing(self) -> str | None:
        return None

    def start(self, stage: Stage) -> Server:
        port = free_port()
        config = stage.folder / f"pool-{port}.toml"
        config.write_text(_master_config(port, self.mode, self.backends, self.backend) + self.text)
        command = (stage.tools.python, "-m", "master", "master", "--config", config)
        running = stage.start("ours", command, stage.cores.server)
        wait_for_events(running, "backend_up", len(self.backends), START_S)
        return Server(running, port, "msgpack")


def _master_config(port: int, mode: str, backends: Iterable[Endpoint], more: str) -> str:
    entries = "".join(f'[[backend]]\nhost = "{host}"\nport = {at}\n{more}' for host, at in backends)
    return f'[master]\nlisten = "127.0.0.1:{port}"\n[probe]\nmode = "{mode}"\ninterval_s = 1\n{entries}'


@attrs.frozen
class HAProxy:
    """It answers by itself, from one thread; with `agents`, it checks so many servers by their agents."""

    agents: Sequence[Endpoint] = ()
    agent_port: int = 0
    text: str = _HTTP_TEXT
    certificate: Certificate | None = None
    """With it, it speaks TLS."""
    name: str = "HAProxy"

    def missing(self) -> str | None:
        return _missing("haproxy")

    def start(self, stage: Stage) -> Server:
        port = free_port()
        config = stage.folder / f"haproxy-{port}.cfg"
        tls = f"ssl crt {self.certificate.both}" if self.certificate else ""
        config.write_text(_HAPROXY.format(port=port, tls=tls, text=self.text, most=self._most()) + self._checks())
        # -db: in the foreground, and one process.
        command = (find_program("haproxy") or "", "-db", "-f", config)
        running = stage.start("haproxy", command, stage.cores.server)
        wait_for_port(port, running)
        return Server(running, port, "http", tls=self.certificate is not None)

    def _most(self) -> int:
        """Return what fits: it reckons with two descriptors for each connection, and for each server that it checks."""
        return min(_CONNECTIONS, (_descriptors() - _OTHERS) // 2 - len(self.agents))

    def _checks(self) -> str:
        if not self.agents:
            return ""
        lines = [
            f"  server s{i} {host}:{port} agent-check agent-port {self.agent_port} agent-inter 1s\n"
            for i, (host, port) in enumerate(self.agents)
        ]
        return "  default_backend checked\nbackend checked\n" + "".join(lines)


_HAPROXY: Final = """\
global
  nbthread 1
  maxconn {most}
defaults
  mode http
  timeout client 600s
  timeout http-request 600s
  timeout http-keep-alive 600s
  timeout connect 5s
  timeout server 5s
  timeout check 1s
frontend asks
  bind 127.0.0.1:{port} backlog 4096 {tls}
  http-request return status 200 content-type text/plain string '{text}'
"""


@attrs.frozen
class Nginx:
    """It answers by itself, from one worker; under TLS with a certificate."""

    text: str = _HTTP_TEXT
    certificate: Certificate | None = None
    name: str = "nginx"

    def missing(self) -> str | None:
        return _missing("nginx")

    def start(self, stage: Stage) -> Server:
        port = free_port()
        config = stage.folder / f"nginx-{port}.conf"
        user = "user root;" if os.geteuid() == 0 else ""
        config.write_text(
            _NGINX.format(
                port=port,
                text=self.text,
                tls=_NGINX_TLS.format(own=self.certificate) if self.certificate else "",
                ssl="ssl" if self.certificate else "",
                folder=stage.folder,
                user=user,
                most=min(_CONNECTIONS, _descriptors() - _OTHERS),
                descriptors=_descriptors(),
            )
        )
        command = (find_program("nginx") or "", "-p", stage.folder, "-c", config)
        running = stage.start("nginx", command, stage.cores.server)
        wait_for_port(port, running)
        return Server(running, port, "http", tls=self.certificate is not None)


_NGINX: Final = """\
{user}
daemon off;
error_log stderr;
worker_processes 1;
worker_rlimit_nofile {descriptors};
pid {folder}/nginx-{port}.pid;
events {{ worker_connections {most}; }}
http {{
  access_log off;
  keepalive_timeout 600s;
  keepalive_requests 1000000000;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} {ssl} backlog=4096;
    {tls}
    default_type text/plain;
    location / {{ return 200 '{text}'; }}
  }}
}}
"""
_NGINX_TLS: Final = """\
ssl_certificate {own.certificate};
    ssl_certificate_key {own.key};
    ssl_protocols TLSv1.2 TLSv1.3;"""


@attrs.frozen
class Bare:
    """A loop in C that answers with the bytes of ours, and decides nothing: what the kernel needs."""

    name: str = "bare C"

    def missing(self) -> str | None:
        return None

    def start(self, stage: Stage) -> Server:
        port = free_port()
        command = (stage.tools.bare, f"port={port}", f"request={ASK.hex()}", f"answer={ANSWER.hex()}")
        running = stage.start("bare", command, stage.cores.server)
        wait_for_port(port, running)
        return Server(running, port, "msgpack")


def _descriptors() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)


def _missing(program: str) -> str | None:
    return None if find_program(program) else f"there is no {program} on this machine"
