"""A real Chromium, a page in it that is looked at, and a page that hears what a test tells it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import Process, Stage, free_port, wait_for_port, wait_until_up

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
NASTY = "<img src=x onerror=alert(1)>"
SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
LONG_MS = 15_000
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.end()


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Page:
    """A page that is looked at; whatever the browser complains of fails the test, but for a link that is lost."""

    def __init__(self, browser: Any, port: int, script: str = "", path: str = "", **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", self._hear)
        self.page.on("dialog", lambda dialog: self.complaints.append(dialog.message))
        if script:
            self.page.add_init_script(script)
        self.page.goto(f"http://127.0.0.1:{port}/{path}")

    def _hear(self, message: Any) -> None:
        if message.type in {"error", "warning"} and "net::ERR_" not in message.text:
            self.complaints.append(message.text)

    def row(self, name: str) -> Any:
        return self.page.locator(f"tr[data-name={json.dumps(name)}]")

    def at(self, where: str) -> Any:
        return self.page.locator(f"#{where}")

    def sees(self, where: Any, text: str) -> None:
        playwright.expect(where).to_contain_text(re.compile(text), timeout=LONG_MS)

    def sees_only(self, where: Any, text: str) -> None:
        playwright.expect(where).to_have_text(text, timeout=LONG_MS)

    def counts(self, where: Any, count: int) -> None:
        playwright.expect(where).to_have_count(count, timeout=LONG_MS)

    def verdict(self, text: str) -> None:
        self.sees(self.at("verdict"), text)

    def order(self, word: str, name: str, reason: str, until: str | None = None) -> None:
        """Press a button of a backend, and say why."""
        self.page.get_by_role("button", name=f"{word} {name}").click()
        dialog = self.page.get_by_role("dialog")
        self.sees(dialog, f"{word} {name}")
        dialog.get_by_label("Reason").fill(reason)
        if until:
            dialog.get_by_label("Until").select_option(until)
        dialog.get_by_role("button", name="Do it").click()
        playwright.expect(dialog).to_be_hidden()

    def search(self, client: str) -> None:
        self.page.get_by_role("textbox", name="Client").fill(client)
        self.page.get_by_role("button", name="Search").click()

    def shoot(self, name: str) -> None:
        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)

    def shoot_without_colour(self, name: str) -> None:
        session = self.context.new_cdp_session(self.page)
        session.send("Emulation.setEmulatedVisionDeficiency", {"type": "achromatopsia"})
        self.shoot(name)
        session.send("Emulation.setEmulatedVisionDeficiency", {"type": "none"})

    def is_no_wider_than_the_screen(self) -> bool:
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))

    def close(self) -> None:
        self.context.close()
        assert self.complaints == []


FEED = """
window.EventSource = class extends EventTarget {
  constructor() { super(); window.feed = this; }
  close() {}
};
window.tell = (kind, data) => window.feed.dispatchEvent(new MessageEvent(kind, { data: JSON.stringify(data) }));
"""
"""What the page takes for its link: it hears from it what a test says by `tell`."""


class FedPage(Page):
    """A page with a feed of its own. The page itself, and the rules the browser holds it to, are a real master's."""

    def __init__(self, browser: Any, port: int, **options: Any) -> None:
        super().__init__(browser, port, FEED, **options)
        self.seconds = time.time()

    def tell(self, kind: str, data: Any) -> None:
        self.page.evaluate("([kind, data]) => tell(kind, data)", [kind, data])

    def begin(self, rows: list[dict[str, Any]], events: list[dict[str, Any]], **pool: Any) -> None:
        """Tell everything, as a master does at the beginning, and the first second after it."""
        self.tell("begin", {"count": len(rows)})
        self.tell("backends", rows)
        self.tell("log", events)
        self.tell("complete", {})
        self.tell_pool(len(rows), **pool)

    def tell_pool(self, backends: int, **more: Any) -> None:
        self.seconds += 1.0
        told = {"verdict": "all is well", "takers": backends, "count": backends, "ready": True, "unready": ""}
        told |= {"connections": 1, "session_s": 300.0, "asks_per_s": {"OK": 1.0}, "at": self.seconds}
        self.tell("pool", told | more)


def row(name: str, **more: Any) -> dict[str, Any]:
    """Return what a master tells of a backend, without what a master of before did not tell."""
    told = {"name": name, "zone": "", "address": "10.0.0.1:9001", "state": "ready", "why": "", "works": True}
    told |= {"takes_clients": True, "users": 10, "capacity": 50, "report_age_s": 0.5, "reservations": 0}
    told |= {"assignments": 7, "assignments_per_s": 0.5, "probes": 90, "probe_failures": 0, "probe_mean_s": 0.002}
    return told | {"admin": None} | more


def start(stage: Stage, port: int, *backends: int, clients: int | None = None, http: str = "") -> tuple[Process, int]:
    """Start a master that has one backend more, with a bad name, at a port where nobody listens."""
    nasty = f'[[backend]]\nname = "{NASTY}"\nhost = "127.0.0.1"\nport = {free_port()}\n'
    text = f'{FAST}[http]\nlisten = "127.0.0.1:{port}"\n{http}[choice]\nfirst_round_s = 0\n{nasty}'
    master, clients = stage.master(*backends, text=text, backend="capacity = 50", port=clients)
    wait_for_port(port, master)
    wait_until_up(master, len(backends))
    return master, clients


@pytest.fixture(scope="session")
def idle_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Yield the port of the operators' side of a master whose pool nobody looks at."""
    stage, port = Stage(tmp_path_factory.mktemp("idle")), free_port()
    try:
        start(stage, port)
        yield port
    finally:
        stage.end()
