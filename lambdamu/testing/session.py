"""One connection of a fake backend."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from typing import Final

import trio

from lambdamu.datapack import Decoder
from lambdamu.errors import RemoteProtocolError
from lambdamu.messages import AUTH, SYSTEM, USER_COUNT, USER_MAIL, USER_NAME, Command, Message, as_text
from lambdamu.testing.script import Question, Reply, Reset, Script, Then, reply_to
from lambdamu.testing.stats import End, Tally
from lambdamu.testing.streams import every_byte

_RESET_AT_CLOSE: Final = struct.pack("ii", 1, 0)
"""SO_LINGER on, 0 seconds: closing sends RST."""
_KEPT_QUESTION_BYTES: Final = 65536


class Session:
    """Hears questions, answers as the script of the moment says, and notes how it ended.

    It reads while an answer is delayed, so that it sees at once when the peer gives up.
    """

    def __init__(
        self, stream: trio.SocketStream, script: Callable[[], Script], tally: Tally, clock: Callable[[], float]
    ) -> None:
        self._stream = stream
        self._script = script
        self._tally = tally
        self._clock = clock
        self._decoder = Decoder()
        self._scope = trio.CancelScope()
        self._end: End | None = None
        self._writing = trio.StrictFIFOLock()
        self._mute = False
        self._heard = bytearray()
        self._heard_is_taken = False
        self._names: dict[str, str | None] = {}
        self._waiting: list[Question] = []
        """Questions whose reply has not been begun."""
        self._owed: list[Question] = []
        """Questions whose answer has not gone out whole."""
        self._counts_answered = 0
        """UserCount questions answered while another answer was owed."""
        self._any_answered = False

    async def run(self) -> None:
        self._tally.opened()
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    await self._converse(nursery)
        finally:
            self._tally.no_longer_asking(self._owed.count(Question.COUNT))
            self._tally.over(self._end or End.HERE)
            self._stream.socket.close()

    def hang_up(self, *, reset: bool) -> None:
        """End the connection from this side."""
        if reset:
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        self._finish(End.HERE)

    def _finish(self, end: End) -> None:
        if self._end is None:
            self._end = end
        self._scope.cancel()

    async def _converse(self, nursery: trio.Nursery) -> None:
        script = self._script()
        if script.close or script.reset is Reset.ACCEPT:
            self.hang_up(reset=not script.close)
            return
        try:
            while data := await self._stream.receive_some(65536):
                await self._hear(data, nursery)
        except trio.BrokenResourceError:
            self._finish(End.ABORTED)
        except RemoteProtocolError:
            self._finish(End.HERE)
        else:
            self._finish(End.WELL if self._is_done() else End.ABORTED)

    def _is_done(self) -> bool:
        # A reset that came right behind the end of the stream shows here, and in no read.
        broken = self._stream.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return self._any_answered and not self._owed and not self._decoder.pending and not broken

    async def _hear(self, data: bytes, nursery: trio.Nursery) -> None:
        self._keep(data)
        for batch in self._decoder.feed(data):
            for message in batch:
                self._note(message)
        script = self._script()
        if not self._waiting or (script.waits_for_both and Question.COUNT not in self._waiting):
            return
        questions, self._waiting = self._waiting, []
        self._heard_is_taken = True
        if script.delay_s:
            nursery.start_soon(self._answer_late, questions, script.delay_s)
        else:
            await self._answer(questions)

    def _keep(self, data: bytes) -> None:
        if self._heard_is_taken:
            self._heard.clear()
            self._heard_is_taken = False
        self._heard += data[: _KEPT_QUESTION_BYTES - len(self._heard)]
        self._tally.last_question = bytes(self._heard)

    def _note(self, message: Message) -> None:
        """Take a question; what this backend does not know it passes over."""
        if (message.object, message.command, message.name) == (SYSTEM, Command.GET, USER_COUNT):
            self._ask(Question.COUNT)
            self._tally.asked(self._clock())
        elif (message.object, message.command) == (AUTH, Command.SET) and message.name in (USER_NAME, USER_MAIL):
            self._names[message.name] = as_text(message.data)
            if len(self._names) == 2:
                self._tally.user_name, self._tally.user_mail = self._names[USER_NAME], self._names[USER_MAIL]
                self._names.clear()
                self._ask(Question.AUTH)

    def _ask(self, question: Question) -> None:
        self._waiting.append(question)
        self._owed.append(question)

    async def _answer_late(self, questions: list[Question], delay_s: float) -> None:
        await trio.sleep(delay_s)
        await self._answer(questions)

    async def _answer(self, questions: list[Question]) -> None:
        async with self._writing:
            if self._mute:
                return
            script = self._script()
            reply = reply_to(script, questions)
            try:
                for piece in every_byte(reply.payload) if script.split else (reply.payload,):
                    await self._stream.send_all(piece)
            except trio.BrokenResourceError:
                self._finish(End.ABORTED)
                return
            self._settle(reply)

    def _settle(self, reply: Reply) -> None:
        for question in reply.answered:
            self._owed.remove(question)
        counts = reply.answered.count(Question.COUNT)
        self._tally.no_longer_asking(counts)
        self._counts_answered += counts
        self._any_answered = self._any_answered or bool(reply.answered)
        if not self._owed:
            self._tally.answered(self._counts_answered)
            self._counts_answered = 0
        if reply.then is Then.SILENCE:
            self._mute = True
        elif reply.then is not Then.GO_ON:
            self.hang_up(reset=reply.then is Then.RESET)
