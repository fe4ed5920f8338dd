"""The status page in a real browser: what an operator sees while backends die and come back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgpack

from tests.browser.conftest import NASTY, PHONE, Page, start
from tests.end_to_end.conftest import Client, Stage, ask, free_port


@contextmanager
def asking(clients: int) -> Iterator[None]:
    """Have a client ask again and again: the page shows the rate of one second at a time."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.1):
            ask(clients)

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_backend_that_dies_and_returns_is_seen_to(stage: Stage, browser: Any) -> None:
    at, other, port = free_port(), free_port(), free_port()
    backend, _ = stage.server("--users", "20", port=at)
    stage.server("--users", "10", port=other)
    _, clients = start(stage, port, at, other)
    page, name = Page(browser, port), f"127.0.0.1:{at}"
    page.verdict("2 of 3 backends take clients; the users fit if the biggest falls")
    page.sees(page.at("mark"), "✓")
    page.sees(page.row(name), r"✓ ready.*20 of 50 \(40 %\)")
    page.sees(page.row(NASTY), "✗ unprobed.*Connection refused")
    users = page.page.locator("#users li").filter(has_text=name)
    with asking(clients):
        page.sees(page.page.locator("#rates li[data-result=OK]"), r"^[0-9.]*[1-9][0-9.]* /s OK: here is a backend")
        page.sees(page.row(name), r"(2[1-9]|[3-5][0-9]) of 50")
        page.sees(users, r"(2[1-9]|[3-5][0-9])$")
    page.shoot("all-well")
    backend.signal(signal.SIGKILL)
    backend.wait()
    page.sees(page.row(name), "✗ (lost|down)")
    page.verdict("1 of 3 backends takes clients; the users do not fit if the biggest")
    page.sees(page.at("mark"), "!")
    page.sees(page.at("log"), f"backend down · {name}")
    page.shoot("one-dead")
    page.shoot_without_colour("one-dead-without-colour")
    stage.server("--users", "3", port=at)
    page.sees(page.row(name), r"✓ ready.*3 of 50")
    page.verdict("2 of 3 backends take clients")
    page.close()


def test_the_page_says_that_the_link_is_lost_and_is_right_again_when_it_is_back(stage: Stage, browser: Any) -> None:
    at, other, port = free_port(), free_port(), free_port()
    stage.server(port=at)
    stage.server(port=other)
    master, clients = start(stage, port, at, other)
    page = Page(browser, port)
    page.verdict("2 of 3 backends take clients")
    page.sees_only(page.at("link"), "")
    master.signal(signal.SIGSTOP)  # it hangs
    page.sees(page.at("link"), "The link to the master is lost")
    master.signal(signal.SIGCONT)
    page.sees_only(page.at("link"), "")
    master.signal(signal.SIGTERM)
    master.wait()
    page.sees(page.at("link"), "The link to the master is lost since .*what stands here is old")
    page.sees_only(page.at("mark"), "?")
    page.shoot("link-lost")
    start(stage, port, at, clients=clients)  # with one backend less
    page.verdict("1 of 2 backends takes clients")
    page.sees_only(page.at("link"), "")
    page.counts(page.page.locator("#backends tr"), 2)
    page.close()


def test_with_tokens_the_browser_asks_for_one_and_a_refused_reload_is_shown(stage: Stage, browser: Any) -> None:
    at, port, token = free_port(), free_port(), "a-token-of-many-letters"
    (stage.folder / "tokens").write_text(f"ann: {token}: read\n")
    stage.server(port=at)
    master, clients = start(stage, port, at, http='tokens_file = "tokens"\n')
    page, name = Page(browser, port, http_credentials={"username": "ann", "password": token}), f"127.0.0.1:{at}"
    page.verdict("1 of 2 backends takes clients")
    page.search("")
    page.sees(page.at("found"), "no answer at all is kept")
    page.page.get_by_role("button", name=f"maint {name}").click()
    page.page.get_by_label("Reason").fill("upgrade")
    page.page.get_by_role("button", name="Do it").click()
    page.sees(page.at("ask-error"), "this token may read, not change")
    config = stage.folder / f"pool-{clients}.toml"
    config.write_text(config.read_text().replace("capacity = 50", "capacity = -5"))
    master.signal(signal.SIGHUP)
    page.sees(
        page.at("reload"), f"The reload of .* by SIGHUP was refused.*{config.name}.*capacity: must be a whole number"
    )
    page.complaints.clear()  # the browser tells of the refusal
    page.close()


def test_on_a_phone_one_sees_why_a_client_got_its_answer_and_drains_a_backend(stage: Stage, browser: Any) -> None:
    at, port = free_port(), free_port()
    stage.server("--users", "45", port=at)
    _, clients = start(stage, port, at)
    page, name = Page(browser, port, viewport=PHONE, color_scheme="dark"), f"127.0.0.1:{at}"
    page.sees(page.row(name), "✓ ready")
    with Client(clients) as client:
        client.send(
            msgpack.packb([{"Object": "Master", "Command": "Event", "Name": "DoSendServer", "Data": {"Client": "ann"}}])
        )
        client.receive()
    page.search("ann")
    page.sees(
        page.at("answers"), f"client [0-9a-f]{{12}}, from 127.0.0.0/24.*sent to {name} because best: it was the first"
    )
    page.sees(page.at("answers"), rf"Loads compared: {name} [0-9.]+ \(chosen\)")
    page.sees(
        page.at("now"), f"Asked now, it would be sent to {name} because again: the client was sent there a moment"
    )
    page.page.get_by_text("How each backend stands").click()
    page.sees(page.at("standings"), "unprobed: no probe has succeeded yet")
    page.page.get_by_text("What the words mean").click()
    page.shoot("phone")
    assert page.is_no_wider_than_the_screen()
    page.order("drain", name, "new kernel", until="in an hour")
    page.sees(page.row(name), "○ drain")
    page.sees(page.row(name), "drain.*by local: new kernel, until [0-9]")
    page.sees(page.page.locator("#log"), f"operator · {name} · drain by local: new kernel")
    assert page.is_no_wider_than_the_screen()
    page.shoot("drained")
    page.order("ready", name, "done")
    page.sees(page.row(name), "✓ ready")
    page.close()
