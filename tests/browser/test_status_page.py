"""The status page in a real browser: what an operator sees while backends die and come back."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Process, Stage, ask, free_port, wait_for_port, wait_until_up

CHROMIUM = shutil.which("chromium")
if not os.environ.get("CI") and CHROMIUM is None:
    pytest.skip("there is no chromium here", allow_module_level=True)
if os.environ.get("CI"):
    from playwright import sync_api as playwright
else:
    playwright = pytest.importorskip("playwright.sync_api")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
FAST = "[probe]\ninterval_s = 0.2\ntimeout_s = 0.2\nstale_after_s = 0.6\n"
SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
LONG_MS = 15_000


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.end()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Page:
    """A page that is looked at; whatever the browser complains of fails the test."""

    def __init__(self, browser: Any, port: int, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)
        self.page.goto(f"http://127.0.0.1:{port}/")

    def _hear(self, message: Any) -> None:
        if "Content Security Policy" in message.text:
            self.complaints.append(message.text)

    def row(self, name: str) -> Any:
        return self.page.locator(f'tr[data-name="{name}"]')

    def sees(self, where: Any, text: str) -> None:
        playwright.expect(where).to_contain_text(re.compile(text), timeout=LONG_MS)

    def verdict(self, text: str) -> None:
        self.sees(self.page.locator("#verdict"), text)

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []


NASTY = "<img src=x onerror=alert(1)>"


def start(stage: Stage, port: int, *backends: int, clients: int | None = None, http: str = "") -> tuple[Process, int]:
    names = f'[[backend]]\nname = "{NASTY}"\nhost = "127.0.0.1"\nport = {free_port()}\n'
    text = f'{FAST}[http]\nlisten = "127.0.0.1:{port}"\n{http}[choice]\nfirst_round_s = 0\n{names}'
    master, clients = stage.master(*backends, text=text, backend="capacity = 50", port=clients)
    wait_for_port(port, master)
    wait_until_up(master, len(backends))
    return master, clients


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
    at, other = free_port(), free_port()
    backend, _ = stage.server("--users", "20", port=at)
    stage.server("--users", "10", port=other)
    port = free_port()
    _, clients = start(stage, port, at, other)
    page, name = Page(browser, port), f"127.0.0.1:{at}"
    page.verdict("2 of 3 backends take clients; the users fit if the biggest falls")
    page.sees(page.row(name), r"✓ ready.*20 of 50")
    page.sees(page.row(NASTY), "✗ unprobed.*Connection refused")
    with asking(clients):
        page.sees(page.page.locator("#rates"), r"line: [0-9.]*[1-9][0-9.]* /s told a backend")
    page.shoot("all-well")
    backend.signal(signal.SIGKILL)
    backend.wait()
    page.sees(page.row(name), "✗ (lost|down)")
    page.verdict("1 of 3 backends takes clients; the users do not fit if the biggest")
    page.sees(page.page.locator("#log li").first, f"backend down · {name}")
    page.shoot("one-dead")
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
    playwright.expect(page.page.locator("#link")).to_have_text("", timeout=LONG_MS)
    master.signal(signal.SIGTERM)
    master.wait()
    page.sees(page.page.locator("#link"), "The link to the master is lost")
    page.shoot("link-lost")
    start(stage, port, at, clients=clients)  # with one backend less
    page.verdict("1 of 2 backends takes clients")
    playwright.expect(page.page.locator("#link")).to_have_text("", timeout=LONG_MS)
    playwright.expect(page.page.locator("#backends tr")).to_have_count(2, timeout=LONG_MS)
    page.close()


def test_a_master_that_hangs_is_a_link_that_is_lost(stage: Stage, browser: Any) -> None:
    at, port = free_port(), free_port()
    stage.server(port=at)
    master, _ = start(stage, port, at)
    page = Page(browser, port)
    page.verdict("1 of 2 backends takes clients")
    master.signal(signal.SIGSTOP)
    page.sees(page.page.locator("#link"), "The link to the master is lost")
    master.signal(signal.SIGCONT)
    playwright.expect(page.page.locator("#link")).to_have_text("", timeout=LONG_MS)
    page.close()


def test_with_tokens_the_browser_asks_for_one_and_all_of_the_page_works(stage: Stage, browser: Any) -> None:
    at, port, token = free_port(), free_port(), "a-token-of-many-letters"
    (stage.folder / "tokens").write_text(f"ann: {token}: read\n")
    stage.server(port=at)
    start(stage, port, at, http='tokens_file = "tokens"\n')
    page = Page(browser, port, http_credentials={"username": "ann", "password": token})
    page.verdict("1 of 2 backends takes clients")
    page.page.get_by_role("button", name="Search").click()
    page.sees(page.page.locator("#answers"), "no answer to such a client is kept")
    page.close()


def test_on_a_phone_nothing_is_cut_off_and_why_and_the_buttons_work(stage: Stage, browser: Any) -> None:
    at, port = free_port(), free_port()
    stage.server("--users", "45", port=at)
    _, clients = start(stage, port, at)
    page, name = Page(browser, port, viewport={"width": 360, "height": 740}, color_scheme="dark"), f"127.0.0.1:{at}"
    page.sees(page.row(name), "✓ ready")
    ask(clients)
    page.page.get_by_role("textbox", name="Client").fill("127.0.0.1")
    page.page.get_by_role("button", name="Search").click()
    page.sees(page.page.locator("#answers"), f"sent to {name}")
    page.shoot("phone")
    wide = page.page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 360
    page.page.get_by_role("button", name=f"drain {name}").click()
    dialog = page.page.get_by_role("dialog")
    page.sees(dialog, f"drain {name}")
    dialog.get_by_label("Reason").fill("upgrade")
    dialog.get_by_role("button", name="Do it").click()
    playwright.expect(dialog).to_be_hidden()
    page.sees(page.row(name), "✗ drain")
    page.sees(page.row(name), "drain.*by local: upgrade")
    page.shoot("drained")
    page.page.get_by_role("button", name=f"ready {name}").click()
    dialog.get_by_label("Reason").fill("done")
    dialog.get_by_role("button", name="Do it").click()
    page.sees(page.row(name), "✓ ready")
    page.close()
