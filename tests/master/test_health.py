"""The health check: where it asks, and which answers are good."""

from __future__ import annotations

import socket
import threading

import pytest

from master.health import ask, main, place_of


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, "127.0.0.1:7080"),
        ({"LAMBDAMU_HTTP__LISTEN": "0.0.0.0:80"}, "0.0.0.0:80"),
        ({"LAMBDAMU_HTTP__LISTEN": "0.0.0.0:80", "LAMBDAMU_URL": "http://10.0.0.1:81"}, "http://10.0.0.1:81"),
        ({"LAMBDAMU_HTTP__LISTEN": "", "LAMBDAMU_URL": ""}, "127.0.0.1:7080"),
    ],
)
def test_it_asks_where_the_environment_says(environment: dict[str, str], place: str) -> None:
    assert place_of(environment) == place


def answer_once(listener: socket.socket, *parts: bytes) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.recv(4096)
        for part in parts:
            connection.sendall(part)


@pytest.mark.parametrize(
    ("parts", "fault"),
    [
        ([b"HTTP/1.1 200 \r\n\r\nok"], ""),
        ([b"HTTP/1.1 2", b"00 OK\r\n"], ""),
        ([b"HTTP/1.1 503 \r\n"], "answered b'HTTP/1.1 503 '"),
        ([b"HTTP/1.1 2000\r\n"], "answered b'HTTP/1.1 2000'"),
        ([b"\x00" * 1000], f"answered {bytes(64)!a}"),
        ([], "answered b''"),
    ],
)
@pytest.mark.parametrize("place", ["127.0.0.1:{}", "http://127.0.0.1:{}/", "0.0.0.0:{}", "http://localhost:{}"])
def test_only_200_is_healthy(parts: list[bytes], fault: str, place: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=answer_once, args=(listener, *parts))
        answering.start()
        assert ask(place.format(listener.getsockname()[1])) == fault
        answering.join()


@pytest.mark.parametrize(
    "place", ["", "7080", "http://", "https://127.0.0.1:7080", "::1:7080", "a:b", "a:70000", "127.0.0.1:70\u0663"]
)
def test_what_is_no_place_is_said_in_one_line(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([place])
    assert caught.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "is not the place" in line


def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["127.0.0.1:1"])
    assert caught.value.code == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
