"""The parts of a tier that start nothing: wishes, capabilities, leases, and providers that are not ours."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from opencoti.errors import MissingError, NetworkError, OpencotiError, UsageError, VerificationError
from opencoti.launch.options import LaunchOptions
from opencoti.tier import AddressTier, Capabilities, Health, Lease, LocalTier, TierProvider
from opencoti.tier.fingerprint import fingerprint
from opencoti.tier.measure import with_props
from opencoti.tier.users import UserLock
from tests.fakes.chat_server import ChatServer, raw_server


@pytest.fixture
def options(tmp_path: Path) -> LaunchOptions:
    model = tmp_path / "model.gguf"
    model.write_bytes(b"GGUF")
    return LaunchOptions(model=model)


def test_same_wish_has_the_same_fingerprint_wherever_it_is_made(
    options: LaunchOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.gguf").symlink_to("model.gguf")
    same = [
        options,
        replace(options, model=Path("model.gguf")),
        replace(options, model=tmp_path / "link.gguf"),
        replace(options, name="other", timeout_s=5, max_log_bytes=5000),
    ]
    assert len({fingerprint(item, {"HOME": "/x", "LLAMA_ARG_PORT": "1"}) for item in same}) == 1
    assert fingerprint(options, {}) == fingerprint(options, {"PATH": "/bin"})


@pytest.mark.parametrize(
    "change",
    [
        {"parallel": 2},
        {"purpose": "embedding"},
        {"is_isolated": True},
        {"gpu": "nvidia"},
        {"arguments": ("--ctx-size", "64")},
        {"env": {"A": "b"}},
        {"binary": Path("/bin/sh")},
        {"model": None},
        {"alias": "x"},
        {"port": 1234},
    ],
    ids=str,
)
def test_other_wish_has_another_fingerprint(options: LaunchOptions, change: dict[str, Any]) -> None:
    assert fingerprint(replace(options, **change), {}) != fingerprint(options, {})


def test_changed_files_and_passed_variables_change_the_wish(options: LaunchOptions, tmp_path: Path) -> None:
    before = fingerprint(options, {})
    passing = replace(options, pass_env=("LLAMA_*",))
    assert fingerprint(passing, {"LLAMA_X": "1"}) != fingerprint(passing, {"LLAMA_X": "2"})
    engine = tmp_path / "engine"
    engine.write_bytes(b"")
    assert fingerprint(options, {"OPENCOTI_LLAMAFILE_LOCAL": str(engine)}) != before
    assert options.model is not None
    options.model.write_bytes(b"GGUF and more")
    assert fingerprint(options, {}) != before


def test_engine_tells_its_slots_and_context() -> None:
    promised = Capabilities(reuse="slots")
    props = {"total_slots": 4, "default_generation_settings": {"n_ctx": 2048}}
    assert with_props(promised, props) == replace(promised, slots=4, context_tokens=2048)
    named = with_props(promised, {"opencoti": {"features": ["session-id"]}})
    assert named.reuse == "session-id"


@pytest.mark.parametrize(
    "lie",
    [None, [], "x", {"total_slots": "4"}, {"total_slots": True}, {"opencoti": {"features": "session-id"}}],
    ids=str,
)
def test_nonsense_of_an_engine_changes_nothing(lie: Any) -> None:
    assert with_props(Capabilities(slots=2), lie) == Capabilities(slots=2)


def test_lease_is_given_back_once_however_often_it_is_released() -> None:
    given_back: list[int] = []
    lease = Lease(
        url="http://127.0.0.1:1", model="m", capabilities=Capabilities(), release=lambda: given_back.append(1)
    )
    threads = [threading.Thread(target=lease.release) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with lease:
        pass
    assert given_back == [1]
    assert not lease.is_alive


@pytest.mark.parametrize("name", ["", "Local", "a/b", "..", "a" * 42, "-a"])
def test_bad_names_of_tiers_are_refused(options: LaunchOptions, name: str) -> None:
    with pytest.raises(UsageError):
        LocalTier(options, name=name)


def test_bad_options_are_refused_before_anything_starts(options: LaunchOptions, tmp_path: Path) -> None:
    environ = {"OPENCOTI_CACHE_DIR": str(tmp_path / "cache")}
    for change, idle_s in (({"model": tmp_path / "none.gguf"}, 1.0), ({}, -1.0), ({}, float("nan"))):
        with pytest.raises(UsageError):
            LocalTier(replace(options, **change), idle_s=idle_s, environ=environ)
    assert not (tmp_path / "cache").exists()


def test_lock_of_users_is_shared_or_alone(tmp_path: Path) -> None:
    path = tmp_path / "tier" / "users"
    one, two = UserLock.try_take(path, "shared"), UserLock.try_take(path, "shared")
    assert one is not None
    assert two is not None
    assert UserLock.try_take(path, "alone") is None
    one.release()
    one.release()
    assert UserLock.try_take(path, "alone") is None
    two.release()
    alone = UserLock.try_take(path, "alone")
    assert alone is not None
    assert UserLock.try_take(path, "shared") is None
    alone.release()


def test_lock_on_a_removed_file_counts_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users"
    old = UserLock.try_take(path, "alone")
    assert old is not None
    path.unlink()
    new = UserLock.try_take(path, "alone")
    assert new is not None
    assert os.fstat(new._handle).st_ino == path.stat().st_ino
    old.release()
    new.release()


def test_address_is_a_tier_too() -> None:
    with ChatServer().running() as url:
        tier = AddressTier(url + "/v1", name="there", model="tiny")
        assert isinstance(tier, TierProvider)
        assert tier.health() == Health(status="ready", url=url, model="tiny")
        with tier.acquire() as lease, lease.client() as client:
            assert client.chat([{"role": "user", "content": "hello"}]).text == "so it is"
        assert asyncio.run(tier.acquire_async()).model == "tiny"
        assert tier.capabilities.is_local
        with pytest.raises(MissingError) as caught:
            AddressTier(url, name="there", model="big").acquire()
        assert caught.value.error_id == "tier-model-missing"


def test_address_where_nobody_answers_is_a_failed_tier() -> None:
    tier = AddressTier("http://127.0.0.1:1", name="nowhere")
    health = tier.health()
    assert (health.status, health.is_usable) == ("failed", False)
    with pytest.raises(NetworkError):
        tier.acquire()


def test_address_that_serves_nothing_is_told() -> None:
    body = b'{"data": []}'
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(body), body)
    with raw_server(lambda: [answer]) as url:
        with pytest.raises(VerificationError):
            AddressTier(url, name="empty").acquire()
        assert AddressTier(url, name="empty").health().status == "failed"


class OwnTier:
    """A provider as another program would write it, without anything of ours but the types."""

    name = "own"
    capabilities = Capabilities(has_embeddings=True)

    def health(self) -> Health:
        return Health(status="ready")

    def acquire(self, *, cancel: threading.Event | None = None) -> Lease:
        return Lease(url="http://127.0.0.1:1", model="own", capabilities=self.capabilities)

    async def acquire_async(self) -> Lease:
        return self.acquire()


def first_usable(tiers: list[TierProvider]) -> Lease:
    """What a program does that chooses between tiers."""
    for tier in tiers:
        if tier.health().is_usable:
            try:
                return tier.acquire()
            except OpencotiError:
                continue
    raise AssertionError("no tier")


def test_program_chooses_between_tiers_by_the_interface_alone() -> None:
    lease = first_usable([AddressTier("http://127.0.0.1:1", name="nowhere"), OwnTier()])
    assert lease.model == "own"
    assert lease.capabilities.has_embeddings
