"""What the status page makes of what it is told: pools, names and faults that a real master seldom has."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.conftest import NASTY, PHONE, FedPage, row

HOSTILE = (
    NASTY,
    "\"><script>alert('2')</script>",
    "'onmouseover='alert(3)",
    "شركة-\u202eevil\u2066",
    "a" * 128,
    "x/../y z",
)


@pytest.fixture
def page(browser: Any, idle_master: int, request: pytest.FixtureRequest) -> Any:
    page = FedPage(browser, idle_master, **getattr(request, "param", {}))
    yield page
    page.close()


def event(number: int, text: str, backend: str = "") -> dict[str, Any]:
    return {"number": number, "at": 1.7e9 + number, "kind": "backend_down", "backend": backend, "text": text}


def test_a_refused_reload_is_shown_with_its_faults_until_one_succeeds(page: FedPage) -> None:
    refused = {
        "ok": False,
        "at": 1.7e9,
        "who": "SIGHUP",
        "faults": ["pool.toml: [[backend]] 3: port must be a number", NASTY],
    }
    page.begin([row("b1")], [], reload=refused)
    page.sees(
        page.at("reload"), "✗ The reload of .* by SIGHUP was refused; the old configuration stays:.*3: port must be"
    )
    page.counts(page.page.locator("#faults li"), 2)
    page.shoot("reload-refused")
    page.tell_pool(1, reload={"ok": True, "at": 1.7e9, "who": "ann", "faults": []})
    page.sees(page.at("pool"), "configuration read at .* by ann")
    assert page.at("reload").is_hidden()


def test_panic_is_said_in_words(page: FedPage) -> None:
    page.begin([row("b1")], [], panic=True, takers=0, verdict="too few backends work")
    page.sees_only(page.at("panic"), "Panic: too few backends work, so nobody is sent anywhere.")
    page.sees_only(page.at("mark"), "✗")
    page.tell_pool(1, panic=True)
    page.sees(page.at("panic"), "so the last good reports of all are taken for true")
    page.sees_only(page.at("mark"), "!")
    page.tell_pool(1)
    page.sees_only(page.at("panic"), "")
    page.sees_only(page.at("mark"), "✓")


def test_probe_times_failures_by_reason_and_ejections_are_shown_where_they_are_told(page: FedPage) -> None:
    more: dict[str, Any] = {"failures": {"refused": 2, "timeout": 1200, "closed": 0}, "ejections": 3}
    much = row("much", probe_failures=1202, probe_p50_s=0.0004, probe_p99_s=0.0125, **more)
    none = row("none", failures={}, ejections=0, probe_p50_s=None, probe_p99_s=None, probe_mean_s=None, capacity=None)
    page.begin([much, none, row("before")], [])
    page.sees(page.row("much"), "0.4 / 13 msp50 / p99")
    page.sees(page.row("much"), "1,202 of 1,292timeout 1,200, refused 2, ejected 3 times")
    page.sees(page.row("before"), "2 msmean0 of 90")
    page.sees(page.row("none"), r"10 \(no limit\).*none good yet")


@pytest.mark.parametrize("page", [{"viewport": PHONE}], indirect=True)
def test_texts_from_outside_are_shown_as_they_are_and_turn_nothing_around(page: FedPage) -> None:
    admin = {"state": "drain", "who": NASTY, "reason": HOSTILE[1], "until": None}
    rows = [row(name, zone=name, why=name, state="down", takes_clients=False, admin=admin) for name in HOSTILE]
    page.begin(
        rows,
        [event(i, name, name) for i, name in enumerate(HOSTILE)],
        verdict=f"{HOSTILE[3]} falls",
        reload={"ok": False, "at": 1.7e9, "who": HOSTILE[0], "faults": list(HOSTILE)},
    )
    page.counts(page.page.locator("#backends tr"), len(HOSTILE))
    page.sees(page.at("verdict"), r"شركة-\\u202eevil\\u2066 falls")
    page.sees(page.at("log"), "<script>alert")
    answer = {"at": 1.7e9, "client": None, "network": NASTY, "zone": HOSTILE[1], "result": "OK", "reason": NASTY}
    answers = {"answers": [answer | {"backend": HOSTILE[3], "loads": [{"name": HOSTILE[2], "load": None}]}]}
    page.page.route("**/api/v1/answers?*", lambda route: route.fulfill(json=answers))
    page.page.route(
        "**/api/v1/explain?*",
        lambda route: route.fulfill(
            json={
                "zone": HOSTILE[1],
                "chosen": HOSTILE[0],
                "reason": NASTY,
                "backends": [{"name": HOSTILE[0], "load": 1, "reason": NASTY}],
            }
        ),
    )
    page.search(NASTY)
    page.sees(page.at("answers"), r"sent to شركة-\\u202eevil\\u2066 because <img")
    page.page.get_by_role("button", name=f"drain {HOSTILE[1]}").click()
    page.sees(page.at("ask-head"), "<script>alert")
    page.page.keyboard.press("Escape")
    assert page.page.locator("main img, main script, header img").count() == 0
    assert page.is_no_wider_than_the_screen()
    page.shoot("hostile-names")


def test_a_thousand_backends_are_shown_in_part_and_found_by_words(page: FedPage) -> None:
    rows = [row(f"b{i:04}", users=i, zone=f"z{i % 2}") for i in range(1000)]
    rows[777] |= {"state": "lost", "takes_clients": False, "works": False, "why": "it went away"}
    page.begin(rows, [])
    shown = page.page.locator("#backends tr")
    page.counts(shown, 50)
    page.sees(shown.first, "b0777.*✗ lost.*it went away")
    page.sees_only(page.at("more"), "950 more are not shown: filter or sort to see them.")
    page.page.get_by_role("button", name="Show 200").click()
    page.counts(shown, 200)
    page.page.get_by_role("button", name="Users").click()
    page.sees(shown.first, "b0999")
    page.page.get_by_label("Filter").fill("z0 b04")
    page.counts(shown, 50)
    page.sees(shown.first, "b0498")
    page.sees_only(page.at("more"), "")
    page.page.get_by_label("Filter").fill("nobody")
    page.sees_only(page.at("more"), "No backend has all of these words.")
    page.sees(page.at("users"), "994 others together")


def test_an_update_writes_what_has_changed_and_leaves_the_focus_where_it_is(page: FedPage) -> None:
    rows = [row(f"b{i:03}") for i in range(100)]
    page.begin(rows, [])
    page.sees(page.row("b002"), "10 of 50")
    page.page.get_by_role("button", name="drain b002").focus()
    page.page.evaluate("""window.writes = []; new MutationObserver((changes) => writes.push(...changes))
        .observe(document.getElementById("backends"), { childList: true, subtree: true, characterData: true })""")
    page.tell("backends", [rows[2] | {"users": 20, "state": "down", "takes_clients": False, "works": False}])
    page.sees(page.page.locator("#backends tr").first, r"b002.*✗ down.*20 of 50")
    assert page.page.evaluate("document.activeElement.ariaLabel") == "drain b002"
    ages = page.page.evaluate("writes.filter((each) => each.target.parentNode.className === 'report').length")
    assert page.page.evaluate("writes.length") - ages < 10


def test_the_charts_go_on_and_show_the_biggest_and_the_rest(page: FedPage) -> None:
    rows = [row(f"b{i}", users=100 * i) for i in range(10)]
    page.begin(rows, [])
    page.sees(page.at("users"), "b9900")
    line = page.page.locator("#asks-chart .line.OK")
    ways = [line.get_attribute("d")]
    for asks in (50.0, 90.0):
        page.tell_pool(10, asks_per_s={"OK": asks, "NoServer": asks / 10})
        ways.append(line.get_attribute("d"))
    assert [way.count("L") for way in ways] == [0, 1, 2]
    page.sees_only(page.at("asks-top"), "100 /s")
    page.sees(page.at("rates"), "90 /s OK.*9 /s NoServer")
    page.sees(page.at("users"), "4 others together600all together4,500")
    page.sees(page.at("users-scale"), "The biggest of 10 backends, from 0 to 1,000 users")
    page.seconds += 30.0  # the link was lost
    page.tell_pool(10)
    assert (line.get_attribute("d") or "").count("M") == 2
