"""The grammar of trusted comments: one spelling per meaning, everything else refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opencoti.errors import VerificationError
from opencoti.trust.comment import Comment, render_time
from tests.unit.release.samples import result_or_known_error

FULL = (
    "product=opencoti repo=mann1x/opencoti tag=c1 version=opencoti-0.5.0-g0c1e570-c1 "
    "file=opencoti-release.json sequence=12 expires=2026-09-01T00:00:00Z x-note=hot:fix x-zeta=1"
)


def test_a_full_comment_is_read_and_written_in_the_same_spelling() -> None:
    comment = Comment.parse(FULL, "sample")
    assert comment.repo == "mann1x/opencoti"
    assert comment.sequence == 12
    assert comment.expires == datetime(2026, 9, 1, tzinfo=UTC)
    assert comment.notes == (("x-note", "hot:fix"), ("x-zeta", "1"))
    assert comment.render() == FULL


def test_the_short_form_of_a_root_is_enough() -> None:
    assert Comment.parse("product=opencoti file=root-2.json", "x").repo is None


def test_times_are_written_in_utc() -> None:
    moment = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=2)))
    assert render_time(moment) == "2025-12-31T23:00:00Z"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no key=value"),
        ("timestamp:1795972196\tfile:f\thashed", "no key=value"),
        (FULL + " ", "no key=value"),
        (" " + FULL, "no key=value"),
        (FULL.replace(" tag", "  tag"), "no key=value"),
        (FULL.replace("tag=c1", "tag="), "no key=value"),
        (FULL.replace("tag=c1", "tag=c=1"), "no key=value"),
        (FULL.replace("tag=c1", "tag=c\u0661"), "no key=value"),
        (FULL.replace("tag=c1", "tag=" + "c" * 201), "no key=value"),
        (FULL.replace("tag=c1", "tag=c1 tag=c1"), "stands twice"),
        (FULL.replace("tag=c1", "tag=c2 tag=c1"), "stands twice"),
        ("repo=a/b product=opencoti file=f", "not in their order"),
        (FULL.replace("x-note=hot:fix x-zeta=1", "x-zeta=1 x-note=hot:fix"), "not in their order"),
        (FULL + " y=1", "does not know"),
        (FULL.replace("product=", "Product="), "no key=value"),
        ("product=opencoti", "no file"),
        ("file=f", "no product"),
        (FULL.replace("repo=mann1x/opencoti", "repo=opencoti"), "repo"),
        (FULL.replace("repo=mann1x/opencoti", "repo=a/b/c"), "repo"),
        (FULL.replace("file=opencoti-release.json", "file=../x"), "file"),
        (FULL.replace("file=opencoti-release.json", "file=CON"), "file"),
        (FULL.replace("sequence=12", "sequence=0"), "sequence"),
        (FULL.replace("sequence=12", "sequence=012"), "sequence"),
        (FULL.replace("sequence=12", "sequence=-1"), "sequence"),
        (FULL.replace("sequence=12", "sequence=1.0"), "sequence"),
        (FULL.replace("sequence=12", "sequence=9007199254740992"), "sequence"),
        (FULL.replace("2026-09-01T00:00:00Z", "2026-09-31T00:00:00Z"), "no point in time"),
        (FULL.replace("2026-09-01T00:00:00Z", "0000-09-01T00:00:00Z"), "no point in time"),
        (FULL.replace("2026-09-01T00:00:00Z", "2026-09-01T00:00:60Z"), "no point in time"),
        (FULL.replace("2026-09-01T00:00:00Z", "2026-09-01T00:00:00+00:00"), "no time"),
        (FULL.replace("2026-09-01T00:00:00Z", "2026-9-1T00:00:00Z"), "no time"),
        (FULL + " x-long=" + "a" * 4000, "longer"),
    ],
)
def test_other_spellings_are_refused(text: str, why: str) -> None:
    with pytest.raises(VerificationError) as caught:
        Comment.parse(text, "sample")
    assert caught.value.error_id == "comment-malformed"
    assert why in caught.value.why


@settings(max_examples=400)
@given(st.integers(0, len(FULL)), st.integers(0, 30), st.text(max_size=12))
def test_damaged_comments_are_refused_or_keep_one_spelling(at: int, gone: int, new: str) -> None:
    text = FULL[:at] + new + FULL[at + gone :]
    comment = result_or_known_error(lambda: Comment.parse(text, "sample"), "comment-malformed")
    assert comment is None or comment.render() == text
