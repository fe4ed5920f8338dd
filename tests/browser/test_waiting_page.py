"""The waiting page in a real browser, served by the port of the gateway; what the master answers is scripted."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
import trio

from lambdamu.address import Address
from lambdamu.epoll_guarded import GuardedServer
from lambdamu.http_wire import HttpWire
from lambdamu.messages import Result
from lambdamu.port import PortLimits
from lambdamu.tcp_server import open_listeners
from master.gateway import Gateway, GatewayRules
from master.wait_page.page import WaitRules
from master.wait_page.redirect import Redirect
from master.wait_page.texts import load_texts
from tests.browser.conftest import NASTY, Page, playwright
from tests.master.wait_page.scripted import ScriptedDoor, ok, wait

NARROW = {"width": 320, "height": 640}
DESKTOP = {"width": 1280, "height": 800}
LOOKS = [(viewport, scheme) for viewport in (NARROW, DESKTOP) for scheme in ("light", "dark")]
PATIENCE_S = 15.0
LEFT = (Result.CLOSED, {"Reason": "Left", "RetryAfter": None, "Text": "the client has left"})
HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@attrs.define
class Served:
    """A door, and the port of the gateway before it."""

    door: ScriptedDoor
    port: int

    def answer(self, *answers: tuple[Result, dict[str, Any]]) -> None:
        self.door.answers = list(answers)

    def open(self, browser: Any, **options: Any) -> Page:
        return Page(browser, self.port, path="wait/default", **options)

    def hears(self, key: str) -> bool:
        """Wait until somebody says so."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if any(asked.get(key) for asked in self.door.asked):
                return True
            time.sleep(0.02)
        return False


def serve(redirect: str = "") -> Iterator[Served]:
    door, ready, made = ScriptedDoor(), threading.Event(), list[Any]()
    rules = WaitRules(load_texts(), Redirect.parse(redirect) if redirect else None)

    async def run() -> None:
        server = GuardedServer(Gateway(door, GatewayRules(wait=rules)), PortLimits(), wire=HttpWire())
        async with trio.open_nursery() as nursery:
            [place] = await nursery.start(server.serve, open_listeners(Address("127.0.0.1", 0)))
            made.extend((place.port, trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            ready.set()

    thread = threading.Thread(target=trio.run, args=(run,))
    thread.start()
    assert ready.wait(PATIENCE_S)
    port, token, scope = made
    yield Served(door, port)
    trio.from_thread.run_sync(scope.cancel, trio_token=token)
    thread.join()


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    yield from serve(getattr(request, "param", ""))


def soon(position: int, **more: Any) -> tuple[Result, dict[str, Any]]:
    return wait(position, **{"RetryAfter": 1.0, "ETA": 90.0 * position, "ETA90": 160.0 * position, **more})


@pytest.mark.parametrize("script", [True, False])
def test_the_place_goes_down_by_itself_until_it_is_ones_turn(served: Served, browser: Any, script: bool) -> None:
    served.answer(soon(1234), soon(617), soon(617))
    page = served.open(browser, java_script_enabled=script)
    page.sees_only(page.at("place"), "People ahead of you: 1,234")
    page.sees_only(page.at("place"), "People ahead of you: 617")
    if script:  # without it nothing can be evaluated
        assert page.at("done").evaluate("bar => bar.value") == pytest.approx(0.5, abs=0.01)
    else:
        playwright.expect(page.at("done")).to_have_attribute("value", "0.5004")
    served.answer(soon(0))
    page.sees_only(page.at("place"), "You are next")
    served.answer(ok())
    page.sees_only(page.at("heading"), "It is your turn")
    page.sees_only(page.at("address"), "10.0.0.1:9001")
    assert page.at("leave").is_hidden()
    assert len({asked["Client"] for asked in served.door.asked}) == 1
    page.close()


@pytest.mark.parametrize("script", [True, False])
@pytest.mark.parametrize("served", ["http://127.0.0.1:{port}/livez?turn={turn}"], indirect=True)
def test_the_browser_goes_where_the_operator_says(served: Served, browser: Any, script: bool) -> None:
    served.answer(soon(1))
    page = served.open(browser, java_script_enabled=script)
    page.sees_only(page.at("heading"), "You are in line")
    served.answer(ok("127.0.0.1", Port=served.port, Turn="a-turn"))
    page.page.wait_for_url(f"http://127.0.0.1:{served.port}/livez?turn=a-turn", timeout=1000 * PATIENCE_S)
    page.context.close()  # and no look at complaints: what the browser shows then has no icon


@pytest.mark.parametrize("script", [True, False])
def test_one_leaves_and_comes_again(served: Served, browser: Any, script: bool) -> None:
    page = served.open(browser, java_script_enabled=script)
    page.sees_only(page.at("heading"), "You are in line")
    served.answer(LEFT)
    page.page.get_by_role("button", name="Leave the line").click()
    page.sees_only(page.at("heading"), "You have left the line")
    served.answer(soon(5))
    page.page.get_by_role("link", name="Take a place").click()
    page.sees_only(page.at("place"), "People ahead of you: 5")
    clients = [asked["Client"] for asked in served.door.asked]
    assert clients[0] == clients[1] != clients[2]
    page.close()


def test_who_looks_elsewhere_says_so_and_comes_back(served: Served, browser: Any) -> None:
    page = served.open(browser)
    page.sees_only(page.at("heading"), "You are in line")
    page.page.evaluate(HIDE, True)
    assert served.hears("Away")
    served.answer(soon(3))
    page.page.evaluate(HIDE, False)
    page.sees_only(page.at("place"), "People ahead of you: 3")
    assert "Away" not in served.door.asked[-1]
    page.close()


def test_a_page_that_loses_its_link_says_so_and_goes_on(served: Served, browser: Any) -> None:
    served.answer(soon(9))
    page = served.open(browser)
    page.sees_only(page.at("place"), "People ahead of you: 9")
    page.context.set_offline(True)
    playwright.expect(page.at("offline")).to_be_visible(timeout=1000 * PATIENCE_S)
    page.sees_only(page.at("place"), "People ahead of you: 9")
    page.shoot("wait-offline")
    page.context.set_offline(False)
    playwright.expect(page.at("offline")).to_be_hidden(timeout=1000 * PATIENCE_S)
    page.close()


def test_without_cookies_the_page_says_so_and_takes_one_place(served: Served, browser: Any) -> None:
    served.answer(soon(9))
    page = served.open(browser)
    page.sees_only(page.at("place"), "People ahead of you: 9")
    page.context.clear_cookies()
    page.sees_only(page.at("heading"), "There is no place of yours here")
    assert len({asked["Client"] for asked in served.door.asked}) == 1
    page.close()


@pytest.mark.parametrize(("viewport", "scheme"), LOOKS)
def test_every_page_fits_the_screen(served: Served, browser: Any, viewport: dict[str, int], scheme: str) -> None:
    long = "https://status.example/" + "a" * 120
    shots = {
        "waiting": ("de", soon(12345, Reason="FewerBackends", RetryAfter=60.0)),
        "next": ("ru", soon(0, Reason="Rate", RetryAfter=60.0, ETA=None)),
        "ready": ("en", ok("2001:db8:1234:5678:9abc:def0:1234:5678")),
        "closed": (
            "en",
            (Result.CLOSED, {"Reason": "Closed", "RetryAfter": 60.0, "Text": f"{NASTY}\nBack at 18:00, see {long}"}),
        ),
        "denied": ("de", (Result.DENIED, {"Reason": "PassMissing", "RetryAfter": None})),
        "lost": ("ru", (Result.DENIED, {"Reason": "Used", "RetryAfter": None})),
    }
    for name, (language, answer) in shots.items():
        served.answer(answer)
        page = served.open(browser, viewport=viewport, color_scheme=scheme, locale=language)
        playwright.expect(page.at("heading")).to_be_visible()
        page.shoot(f"wait-{name}-{viewport['width']}-{scheme}")
        assert page.is_no_wider_than_the_screen(), name
        page.complaints = [each for each in page.complaints if "Failed to load resource" not in each]
        page.close()
