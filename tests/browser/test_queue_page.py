"""The virtual queue on the status page: who waits, what holds them up, and how an operator changes it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import NASTY, PHONE, FedPage, Page, playwright, row, start
from tests.end_to_end.conftest import Stage, free_port

DARK_PHONE = {"viewport": PHONE, "color_scheme": "dark"}
SUMMARY = {"mode": "auto", "waiting": 1, "called": 0, "limit": "places", "reason": "NoPlace"}


def line(queue: str, waiting: int, **more: Any) -> dict[str, Any]:
    """Return what a master tells of one queue."""
    told = {"queue": queue, "waiting": waiting, "lanes": {"resume": 0, "vip": 0, "plain": waiting}}
    told |= {"template": "*", "per_minute": None, "drain_per_s": 2.0, "planned_per_s": 1.5, "show_rate": 0.9}
    return told | {"at_once": False, "eta_s": 740.0, "eta90_s": 900.0} | more


def whole(*lines: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return what a master tells of its queue."""
    waiting = sum(each["waiting"] for each in lines)
    told = SUMMARY | {"waiting": waiting, "called": 12, "text": "", "claimed": 30, "held": 4, "count": len(lines)}
    told |= {"limits": {"free_places": 0, "per_minute": None}}
    told |= {"load": {"target_load": 0.9, "users": 540, "places": 540, "serving": 2, "wanted": 3, "cpu": None}}
    told |= {"loop": {"control": "on", "by": "loop", "planned_per_s": 3.0, "per_s": None}}
    told |= {"promises": {"kept": 93, "broken": 7, "share": 0.93}, "store": None, "orders": [], "queues": list(lines)}
    told |= {"gone": {"left": 3, "lapsed": 20, "missed": 4, "returned": 2, "share": 0.25}, "counts": {"claimed": 75}}
    return told | more


@pytest.fixture
def page(browser: Any, idle_master: int, request: pytest.FixtureRequest) -> Any:
    page = FedPage(browser, idle_master, **getattr(request, "param", {}))
    yield page
    page.close()


def test_where_there_is_no_queue_nothing_is_said_of_one(page: FedPage) -> None:
    page.begin([row("b1")], [])
    page.verdict("all is well")
    assert page.at("queue").is_hidden()
    assert page.at("to-queue").is_hidden()
    page.tell_pool(1, queue=SUMMARY)
    page.tell("queue", whole(line("default", 1)))
    page.sees(page.at("queue"), "1 waits")
    page.tell_pool(1, queue=None)
    assert page.at("queue").is_hidden()


@pytest.mark.parametrize(
    "page", [{}, {"viewport": PHONE, "color_scheme": "dark"}], indirect=True, ids=["desk", "phone"]
)
def test_a_crowd_is_shown_with_what_holds_it_up(page: FedPage, request: pytest.FixtureRequest) -> None:
    page.begin([row("b1")], [], queue=SUMMARY)
    crowd = [
        line("default", 12345, lanes={"resume": 5, "vip": 40, "plain": 12300}, per_minute=300.0),
        line("match-1", 0, at_once=True, eta_s=None, eta90_s=None, drain_per_s=None, planned_per_s=None),
        line("match-2", 7, eta_s=None, eta90_s=None, drain_per_s=None),
    ]
    page.tell("queue", whole(*crowd, count=1000))
    page.sees_only(page.at("queue-state"), "12,352 wait · mode auto; places: no place is free (NoPlace)")
    shown = page.page.locator("#queues li")
    page.counts(shown, 3)
    page.sees(
        shown.nth(0), "default.*12,345 .resume 5, vip 40.*120 a minute.*90 a minute.*12 min, nine in ten at most 15 m"
    )
    page.sees(shown.nth(0), "Own rate300 a minute")
    page.sees(shown.nth(1), "match-1.*nobody waits.*no limit.*not at all")
    page.sees(shown.nth(2), "match-2.*unknown.*unknown")
    page.sees_only(page.at("queue-more"), "997 more, in each of which fewer wait")
    facts = (
        "540 users of 540 places at a target load of 0.9 · 2 of 3 backends serve.*set by the places alone.*93 % of 100"
    )
    page.sees(page.at("queue-facts"), facts)
    page.sees(
        page.at("queue-facts"), r"25 % have gone \(left 3, lapsed 20, missed their call 4, came back 2\) · 75 let in"
    )
    assert page.is_no_wider_than_the_screen()
    page.shoot(f"queue-{request.node.callspec.id}")


def test_what_is_wrong_is_said_and_what_operators_want(page: FedPage) -> None:
    page.begin([row("b1")], [], queue=SUMMARY)
    page.tell("queue", whole(line("default", 5)))
    page.sees_only(page.at("queue-alarm"), "")
    order = {"queue": "", "who": "ann", "reason": "a fire", "at": 1.7e9, "mode": "hold", "text": ""}
    orders = [order | {"per_minute": None, "target_load": 0.5}]
    orders += [orders[0] | {"queue": NASTY, "mode": None, "text": None, "per_minute": "none", "target_load": None}]
    failing = {"failing": True, "unwritten": 1234, "written_s_ago": 61.0}
    frozen = {"control": "on", "by": "frozen", "planned_per_s": 3.0, "per_s": 3.0}
    page.tell("queue", whole(line("default", 5), store=failing, loop=frozen, orders=orders))
    page.sees(page.at("queue-alarm"), "has not been written for 61 s: 1,234 changes.*The control loop is frozen")
    wanted = page.page.locator("#queue-orders li")
    page.sees(wanted.nth(0), "mode hold, text empty, target load 0.5 by ann, .*: a fire")
    page.sees(wanted.nth(1), "<img src=x.*: per minute none by ann")
    page.shoot("queue-alarm")


def test_a_queue_with_a_bad_name_is_text(page: FedPage) -> None:
    page.begin([row("b1")], [], queue=SUMMARY)
    page.tell("queue", whole(line(NASTY, 5), line("\u202eevil", 3)))
    page.sees(page.at("queues"), "<img src=x")
    page.sees(page.at("queues"), r"\\u202eevil")
    assert page.page.locator("#queue img").count() == 0
    page.page.get_by_role("button", name=f"rate of {NASTY}").click()
    page.sees(page.at("order-head"), "Rate of <img src=x")
    page.page.keyboard.press("Escape")


def test_an_update_leaves_the_focus_and_the_rows_where_they_are(page: FedPage) -> None:
    page.begin([row("b1")], [], queue=SUMMARY)
    page.tell("queue", whole(line("b", 9), line("a", 8)))
    page.page.get_by_role("button", name="rate of b").focus()
    page.tell("queue", whole(line("c", 30), line("a", 20), line("b", 10)))
    shown = page.page.locator("#queues .queue bdi")
    playwright.expect(shown).to_have_text(["a", "b", "c"])
    assert page.page.evaluate("document.activeElement.ariaLabel") == "rate of b"


def test_an_operator_changes_a_real_queue(stage: Stage, browser: Any) -> None:
    http = free_port()
    start(stage, http, http="[queue]\n")
    page = Page(browser, http)
    page.sees(page.at("queue-state"), "Nobody waits · mode auto")
    page.page.get_by_role("button", name="change the queue").click()
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_label("Why").fill("a fire")
    dialog.get_by_label("Mode").select_option("hold")
    dialog.get_by_label("So many a minute").fill("30")
    page.shoot("queue-change")
    dialog.get_by_role("button", name="Do it").click()
    playwright.expect(dialog).to_be_hidden()
    page.sees(page.at("queue-state"), "mode hold")
    page.sees(page.at("queue-orders"), "mode hold, per minute 30 by local, .*: a fire")
    page.sees(page.at("log"), "the queue: mode hold, per_minute 30, by local: a fire")
    page.page.get_by_role("button", name="change the queue").click()
    dialog.get_by_label("Why").fill("it is out")
    dialog.get_by_role("button", name="As configured").click()
    page.sees(page.at("queue-state"), "mode auto")
    page.sees_only(page.at("queue-orders"), "")
    page.close()


def test_what_a_master_refuses_stands_in_the_dialog(stage: Stage, browser: Any) -> None:
    http = free_port()
    start(stage, http, http="[queue]\n")
    page = Page(browser, http)
    page.page.get_by_role("button", name="change the queue").click()
    dialog = page.page.get_by_role("dialog")
    dialog.get_by_label("Why").fill("x")
    for text, said in (("", "must be wanted, or else reset"), ("many", 'per_minute must be a number .* or "none"')):
        dialog.get_by_label("So many a minute").fill(text)
        dialog.get_by_role("button", name="Do it").click()
        page.sees(page.at("order-error"), said)
    page.context.close()
    assert [each for each in page.complaints if "status of 400" not in each] == []
