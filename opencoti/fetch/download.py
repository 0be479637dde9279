"""One download as a state machine: resume, ask, receive, ask again, until the bytes are right or hope ends.

States of the partial between attempts: *empty*, *prefix* (its bytes went through the hash), *complete*. Every
attempt starts by asking for what is missing. Two rules keep it honest: the pinned SHA-256 alone decides, and
bytes that came from more than one answer get one second chance from zero before they are called wrong.
Where a chunk table is known, `ranged` does the work instead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from opencoti.console import Console
from opencoti.errors import NetworkError, VerificationError
from opencoti.fetch import store
from opencoti.fetch.answers import Ask, BodyPlan, Head, TransferFailure, judge
from opencoti.fetch.pace import Patience, SpeedGuard, announcement, given_up, repeat
from opencoti.fetch.partial import Partial, ResumeNote
from opencoti.fetch.progress import Progress
from opencoti.fetch.settings import Limits
from opencoti.fetch.store import Slot
from opencoti.fetch.transport import Answer, Transport

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The outside of a download; tests put in their own. `pause` is a sleep that an event ends early."""

    transport: Transport
    sleep: Callable[[float], None] = time.sleep
    pause: Callable[[threading.Event, float], object] = threading.Event.wait
    clock: Callable[[], float] = time.monotonic
    free_bytes: Callable[[Path], int] = store.free_bytes


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """What a finished transfer moved.

    Attributes:
        transferred_bytes: arrived now.
        resumed_from: bytes of an earlier run that were kept.
        seeded_bytes: came from an older file on this machine.
    """

    transferred_bytes: int
    resumed_from: int
    seeded_bytes: int = 0


class Download:
    """One file from one address into one partial. Call `run` once, under the lock of the slot."""

    def __init__(
        self,
        url: str,
        sha256: str,
        *,
        slot: Slot,
        part: Partial,
        limits: Limits,
        tools: Tools,
        console: Console,
    ) -> None:
        self._url = url
        self._sha256 = sha256
        self._slot = slot
        self._part = part
        self._limits = limits
        self._tools = tools
        self._console = console
        self._progress = Progress(slot.name, console, clock=tools.clock)
        self._note: ResumeNote | None = None
        self._allow_range = True
        self._answers = 0  # how many answers the bytes in the partial come from
        self._is_end_certain = True
        self._is_html = False
        self._transferred = 0
        self._resumed_from = 0

    def run(self) -> Transfer:
        """Fill the partial with the wanted bytes.

        Raises:
            VerificationError: `hash-mismatch`; the partial is removed.
            NetworkError: `download-failed`, `not-found`, `http-refused`, …; the partial stays.
            StorageError: `disk-full`, `storage-failed`; the partial stays.
        """
        self._resume()
        self._complete()
        if not self._is_right() and (self._answers > 1 or not self._is_end_certain):
            self._console.info(f"{self._slot.name}: the pieces do not add up; starting from the beginning")
            self._write(self._part.restart)
            self._forget_source()
            self._complete()
        if not self._is_right():
            store.discard(self._slot)
            raise self._mismatch()
        return Transfer(transferred_bytes=self._transferred, resumed_from=self._resumed_from)

    def _resume(self) -> None:
        """Take over what an earlier run left, if its note says that it was the same file."""
        note = ResumeNote.load(self._slot.note)
        stored = self._write(lambda: self._part.stored_bytes)
        is_usable = note is not None and note.sha256 == self._sha256
        if not stored or note is None or not is_usable or (note.total is not None and stored > note.total):
            self._write(self._part.restart)
            return
        self._write(lambda: self._part.load(lambda size: self._progress.show(size, stored, "checking")))
        self._note = note
        self._answers = 1
        self._resumed_from = self._part.size
        self._console.info(f"{self._slot.name}: going on from byte {self._part.size}")

    def _complete(self) -> None:
        if self._is_right():
            return
        patience = Patience(self._limits, lambda: self._part.size)
        try:
            repeat(self._attempt, patience, sleep=self._tools.sleep, announce=self._announce)
        except TransferFailure as failure:
            raise self._given_up(failure, patience) from failure

    def _attempt(self) -> None:
        ask = self._ask()
        try:
            with self._tools.transport.get(self._url, ask.headers()) as answer:
                plan = judge(ask, answer.head, self._url)
                self._begin(ask, plan, answer.head)
                self._receive(answer, plan)
        except TransferFailure as failure:
            self._allow_range = self._allow_range and not failure.is_range_useless
            raise
        if plan.total is not None and self._part.size != plan.total:
            raise TransferFailure(f"the body ended at byte {self._part.size} of {plan.total}")

    def _ask(self) -> Ask:
        note = self._note
        if (
            note is None
            or not self._allow_range
            or (note.total is not None and self._part.size >= note.total)
        ):
            return Ask()
        # Validators are the server's own: another mirror's say nothing here.
        is_same_server = note.url == self._url
        return Ask(
            offset=self._part.size,
            etag=note.etag if is_same_server else "",
            last_modified=note.last_modified if is_same_server else "",
            total=note.total,
        )

    def _begin(self, ask: Ask, plan: BodyPlan, head: Head) -> None:
        if plan.offset == 0:
            if ask.offset:
                why = f"the server does not go on from byte {ask.offset}"
                self._console.info(f"{self._slot.name}: {why}; starting from the beginning")
            self._write(self._part.restart)
            self._forget_source()
        self._check_room(plan)
        self._is_html = head.is_html
        self._is_end_certain = plan.total is not None
        self._answers += 1
        self._remember(plan, head)
        self._progress.start(self._part.size)

    def _receive(self, answer: Answer, plan: BodyPlan) -> None:
        guard = SpeedGuard(self._limits, self._tools.clock)
        for block in answer.blocks:
            guard.feed(len(block))
            if plan.total is not None and self._part.size + len(block) > plan.total:
                raise TransferFailure(
                    f"the server sent more than the {plan.total} bytes it announced", is_range_useless=True
                )
            self._write(partial(self._part.append, block), plan.total)
            self._transferred += len(block)
            self._progress.show(self._part.size, plan.total)

    def _check_room(self, plan: BodyPlan) -> None:
        if plan.total is None:
            return
        needed = plan.total - plan.offset
        free = self._write(lambda: self._tools.free_bytes(self._slot.folder))
        if needed > free:
            raise store.disk_full(self._slot, needed=needed, free=free)

    def _remember(self, plan: BodyPlan, head: Head) -> None:
        """Keep what a later run needs for going on; validators of a compressed body fit no file."""
        note = ResumeNote(
            sha256=self._sha256,
            url=self._url,
            etag="" if head.is_encoded else head.etag,
            last_modified="" if head.is_encoded else head.last_modified,
            total=plan.total,
        )
        if note != self._note:
            note.store(self._slot.note)
            self._note = note

    def _forget_source(self) -> None:
        self._answers = 0
        self._resumed_from = 0
        self._note = None

    def _is_right(self) -> bool:
        return self._part.hexdigest() == self._sha256

    def _write(self, action: Callable[[], T], total: int | None = None) -> T:
        """Do something with the partial; a failure becomes an error that tells needed and free bytes."""
        try:
            return action()
        except OSError as exc:
            needed = None if total is None else total - self._part.size
            free = self._tools.free_bytes(self._slot.folder)
            raise store.write_failure(exc, self._slot, needed=needed, free=free) from exc

    def _announce(self, failure: TransferFailure, pause_s: float) -> None:
        self._console.info(f"{self._slot.name}: {announcement(failure, pause_s)}")

    def _given_up(self, failure: TransferFailure, patience: Patience) -> NetworkError:
        kept = f", which goes on from byte {self._part.size}" if self._part.size else ""
        return given_up(self._url, failure, attempts=patience.attempts, kept=kept)

    def _mismatch(self) -> VerificationError:
        why = f"expected sha256 {self._sha256}, got {self._part.hexdigest()} ({self._part.size} bytes)"
        if self._is_html or self._part.head.lstrip().lower().startswith((b"<!doctype html", b"<html")):
            why += "; it is a web page, such as a login or error page"
        return VerificationError(
            "hash-mismatch",
            f"what {self._url} gave is not the wanted file, and was removed",
            why=why,
            hint="check the pin, and whether a proxy or mirror in between changes files",
        )
