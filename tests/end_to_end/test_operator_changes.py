"""`lambdamu drain`, `maint`, `ready` and `reload` against a real master."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from tests.end_to_end.conftest import Stage, free_port, named, wait_for_port, wait_until_named, wait_until_up

FAST = "[probe]\ninterval_s = 0.2\ntimeout_s = 0.2\nstale_after_s = 0.6\n[choice]\nfirst_round_s = 0\n"


class Scene:
    """A master of two backends with 7 users each, and its file."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        started = [stage.server("--users", "7") for _ in range(2)]
        self.servers, self.ports = [server for server, _ in started], [port for _, port in started]
        http = free_port()
        self.state = stage.folder / f"state-{http}.sqlite"
        self.extra = f'{FAST}[http]\nlisten = "127.0.0.1:{http}"\n[state]\nfile = "{self.state}"\n'
        self.url = f"http://127.0.0.1:{http}"
        self.master, self.clients = stage.master(*self.ports, text=self.extra)
        wait_for_port(http, self.master)
        wait_until_up(self.master, 2)

    def run(self, *command: str) -> tuple[int, str]:
        done = self.stage.run(*command, "--url", self.url)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    def name(self, i: int) -> str:
        return f"127.0.0.1:{self.ports[i]}"

    def states(self) -> dict[str, str]:
        got = json.loads(self.stage.run("status", "--json", "--url", self.url).stdout)
        return {row["name"]: row["state"] for row in got["backends"]}

    def named(self, times: int = 20) -> set[int | None]:
        return {named(self.clients) for _ in range(times)}


@pytest.fixture
def scene(stage: Stage) -> Iterator[Scene]:
    yield Scene(stage)
    stage.end()


def test_nobody_is_sent_to_a_drained_backend_and_everybody_again_when_it_is_ready(scene: Scene) -> None:
    first, second = scene.ports
    code, said = scene.run("drain", scene.name(0), "--reason", "upgrade")
    assert (code, said.startswith(f"{scene.name(0)} is drain, ")) == (0, True)
    assert scene.named() == {second}
    assert scene.run("status")[1].count("drain by local: upgrade") == 1
    assert scene.run("ready", scene.name(0), "--reason", "done")[0] == 0
    assert scene.named(60) == {first, second}


def test_a_drain_that_waits_says_how_many_are_left_and_gives_up_at_its_deadline(scene: Scene) -> None:
    code, said = scene.run("drain", scene.name(0), "--reason", "upgrade", "--wait", "--to", "3", "--deadline", "1")
    assert code == 4
    assert f"7 users on {scene.name(0)}" in said
    code, said = scene.run("drain", scene.name(0), "--reason", "upgrade", "--wait", "--to", "7")
    assert (code, said) == (0, f"{scene.name(0)} is drain, 7 users\n")


def test_a_drain_that_waits_for_one_that_is_dead_ends_and_says_so(scene: Scene) -> None:
    scene.servers[0].signal(signal.SIGKILL)
    code, said = scene.run("drain", scene.name(0), "--reason", "upgrade", "--wait")
    assert code == 1
    assert f"{scene.name(0)} is " in said
    assert "not known any more" in said


def test_what_operators_want_outlives_the_master(scene: Scene) -> None:
    assert scene.run("maint", scene.name(1), "--reason", "disk", "--for", "3600")[0] == 0
    scene.master.signal(signal.SIGTERM)
    assert scene.master.wait() == 0
    again, scene.clients = scene.stage.master(*scene.ports, text=scene.extra)
    wait_until_up(again, 1)
    assert scene.states() == {scene.name(0): "ready", scene.name(1): "maint"}
    assert scene.named() == {scene.ports[0]}


def test_a_reload_takes_in_the_whole_file_or_nothing_of_it(scene: Scene) -> None:
    path = scene.stage.folder / f"pool-{scene.clients}.toml"
    before = path.read_text()
    _, third = scene.stage.server("--users", "0")
    path.write_text(f'{before}[[backend]]\nhost = "127.0.0.1"\nport = {third}\n')
    code, said = scene.run("reload")
    assert (code, f"127.0.0.1:{third}" in said) == (0, True)
    end = time.monotonic() + 10
    while third not in scene.named():
        assert time.monotonic() < end
    path.write_text(before.replace("interval_s = 0.2", "interval_s = true"))
    code, said = scene.run("reload")
    assert code == 1
    assert "interval_s" in said
    assert third in scene.named(60)


@pytest.mark.parametrize(
    "command",
    [
        ["drain", "nobody", "--reason", "x"],
        ["maint", "nobody", "--reason", "x"],
        ["drain", "nobody", "--reason", "x", "--wait"],
    ],
)
def test_a_backend_that_is_not_there_is_named(scene: Scene, command: list[str]) -> None:
    code, said = scene.run(*command)
    assert code == 1
    assert "nobody" in said


CommandLine = Callable[..., tuple[int, str, str]]


def test_check_says_what_a_reload_would_change_and_a_reload_does_that(scene: Scene, command_line: CommandLine) -> None:
    path = scene.stage.folder / f"pool-{scene.clients}.toml"
    other = scene.stage.folder / "other.toml"
    before = path.read_text()

    def check(text: str, *options: str) -> tuple[int, str]:
        other.write_text(text)
        return command_line("check", str(other), "--diff", scene.url, *options)[:2]

    def reload(text: str) -> str:
        path.write_text(text)
        return command_line("reload", "--url", scene.url)[1]

    assert check(before) == (0, "nothing would change\n")
    after = before.replace("interval_s = 0.2", "interval_s = 0.25") + f'[[backend]]\nhost = "h"\nport = {free_port()}\n'
    code, said = check(after)
    assert (code, said[:2]) == (5, "+ ")
    assert "~ [probe]: interval_s: 0.2 -> 0.25\n" in said
    assert json.loads(check(after, "--json")[1]) == {"changes": said.splitlines(), "unseen": []}
    assert reload(after) == said
    assert check(after) == (0, "nothing would change\n")
    hush = after.replace("[probe]", '[probe]\nuser_mail = "hush@example.org"')
    assert check(hush) == (5, "~ [probe]: user_mail: another one, it is not shown\n")
    assert reload(hush) == "~ [probe]: user_mail: another one, it is not shown\n"
    code, said = check(hush)
    assert (code, said.splitlines()[-1]) == (0, "? [probe]: user_mail: may be another one, it is not shown")
    assert "hush" not in scene.master.stderr
    assert check(after.replace("0.25", "true"))[0] == 2
    assert check(after, "--json", "--diff", f"http://127.0.0.1:{free_port()}")[0] == 1


def test_what_the_process_makes_of_its_file_is_no_difference(
    stage: Stage, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = free_port()
    (stage.folder / "tokens").write_text("ann: a-token-of-many-letters: read\n")
    text = f'{FAST}[http]\nlisten = "127.0.0.1:{http}"\ntokens_file = "tokens"\n'
    master, port = stage.master(text=text, prefix=("prlimit", "--nofile=300:300"))
    wait_for_port(http, master)
    [few] = master.events("few_descriptors")
    assert few["connections"] < 300
    monkeypatch.chdir(stage.folder)
    command = ("check", f"pool-{port}.toml", "--diff", f"http://127.0.0.1:{http}")
    assert "refused (401)" in command_line(*command)[2]
    monkeypatch.setenv("LAMBDAMU_TOKEN", "a-token-of-many-letters")
    assert command_line(*command)[:2] == (0, "nothing would change\n")


@pytest.mark.parametrize("way", ["signal", "command", "change of the file"])
def test_with_a_wrong_file_of_tokens_no_reload_takes_in_anything(
    stage: Stage, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, other = "a-token-of-sixteen", "another-of-sixteen"
    monkeypatch.setenv("LAMBDAMU_TOKEN", token)
    tokens = stage.folder / "tokens"
    tokens.write_text(f"ann: {token}: write\n")
    (_, first), (_, second) = stage.server(), stage.server()
    http = free_port()
    extra = f"[master]\nreload_on_change = {str(way not in ('signal', 'command')).lower()}\n{FAST}[http]\n"
    master, port = stage.master(first, text=f'{extra}listen = "127.0.0.1:{http}"\ntokens_file = "tokens"\n')
    wait_for_port(http, master)
    wait_until_up(master, 1)
    file, url = stage.folder / f"pool-{port}.toml", f"http://127.0.0.1:{http}"

    def reload(code: int, event: str) -> None:
        told = len(master.events(event))
        if way == "command":
            done = stage.run("reload", "--url", url)
            assert done.returncode == code
            assert done.stderr.count("line 2 is not") == code
        elif way == "signal":
            master.signal(signal.SIGHUP)
        end = time.monotonic() + 10
        while len(master.events(event)) == told:
            assert time.monotonic() < end
            time.sleep(0.02)

    tokens.write_text(f"ann: {other}: write\nbob: {other}: all\n")
    file.write_text(file.read_text().replace(str(first), str(second)))
    reload(1, "reload_refused")
    [refused] = master.events("reload_refused")
    assert f"{tokens}: line 2 is not" in refused["error"]
    assert other not in master.stderr
    assert named(port) == first
    assert stage.run("status", "--url", url).returncode == 0
    tokens.write_text(f"ann: {other}: write\n")
    file.write_text(file.read_text() + "\n")
    reload(0, "reloaded")
    wait_until_named(port, second)
    assert stage.run("status", "--url", url).returncode == 1
