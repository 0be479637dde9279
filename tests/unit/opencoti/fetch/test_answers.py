"""What an answer means for the bytes on disk, and how long a pause it asks for."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencoti.errors import NetworkError
from opencoti.fetch.answers import Ask, BodyPlan, Head, TransferFailure, judge

URL = "https://example.com/a"
ASK = Ask(offset=100, etag='"v1"', total=1000)


def part(content_range: str, **headers: str) -> Head:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Head(status=206, headers={"content-range": content_range, **named})


def test_request_asks_for_plain_bytes_and_guards_a_range_by_the_validator() -> None:
    assert Ask().headers() == {"accept-encoding": "identity", "accept": "*/*"}
    headers = ASK.headers()
    assert (headers["range"], headers["if-range"]) == ("bytes=100-", '"v1"')
    dated = Ask(offset=5, last_modified="Wed, 21 Oct 2015 07:28:00 GMT")
    assert dated.headers()["if-range"] == "Wed, 21 Oct 2015 07:28:00 GMT"
    assert "if-range" not in Ask(offset=5).headers()


def test_weak_entity_tags_are_no_validators() -> None:
    assert Head(status=200, headers={"etag": 'W/"v1"'}).etag == ""
    assert Head(status=200, headers={"etag": '"v1"'}).etag == '"v1"'


@pytest.mark.parametrize("text", ['"é"', '"\x07"', '"a\tb"'])
def test_validators_that_no_request_may_hold_are_none(text: str) -> None:
    head = Head(status=200, headers={"etag": text, "last-modified": text})
    assert (head.etag, head.last_modified) == ("", "")


def test_rest_of_the_file_is_taken() -> None:
    plan = judge(ASK, part("bytes 100-999/1000", content_length="900", etag='"v1"'), URL)
    assert plan == BodyPlan(offset=100, total=1000)


def test_case_b37_status_200_means_the_whole_file() -> None:
    assert judge(ASK, Head(status=200, headers={"content-length": "2052"}), URL) == BodyPlan(
        offset=0, total=2052
    )


def test_length_of_a_compressed_body_says_nothing_about_the_file() -> None:
    head = Head(status=200, headers={"content-length": "10", "content-encoding": "gzip"})
    assert judge(Ask(), head, URL) == BodyPlan(offset=0, total=None)


@pytest.mark.parametrize(
    ("ask", "head"),
    [
        (Ask(), part("bytes 0-999/1000")),
        (ASK, Head(status=206, headers={})),
        (ASK, part("bytes 101-999/1000")),
        (ASK, part("bytes 0-999/1000")),
        (ASK, part("bytes 100-500/1000")),
        (ASK, part("bytes 100-99/100")),
        (ASK, part("bytes 100-1000/1001")),
        (ASK, part("bytes 100-999/1000", content_length="899")),
        (ASK, part("bytes 100-999/1000", etag='"v2"')),
        (ASK, part("bytes 100-999/1000", content_encoding="gzip")),
        (ASK, part("items 100-999/1000")),
        (ASK, Head(status=416, headers={})),
        (ASK, Head(status=412, headers={})),
    ],
)
def test_odd_parts_end_the_use_of_ranges(ask: Ask, head: Head) -> None:
    with pytest.raises(TransferFailure) as caught:
        judge(ask, head, URL)
    assert caught.value.is_range_useless


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_passing_troubles_are_worth_another_attempt(status: int) -> None:
    with pytest.raises(TransferFailure) as caught:
        judge(ASK, Head(status=status, headers={}), URL)
    assert not caught.value.is_range_useless


@pytest.mark.parametrize(
    ("status", "error_id"),
    [(404, "not-found"), (410, "not-found"), (401, "http-refused"), (403, "http-refused"),
     (204, "http-refused"), (304, "http-refused"), (416, "http-refused")],
)  # fmt: skip
def test_final_answers_name_the_address(status: int, error_id: str) -> None:
    with pytest.raises(NetworkError) as caught:
        judge(Ask(), Head(status=status, headers={}), URL)
    assert caught.value.error_id == error_id
    assert URL in caught.value.what


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7.0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", 30.0),
        ("Wed, 21 Oct 2015 07:00:00 GMT", 0.0),
        ("soon", None),
        ("-3", None),
        ("", None),
        ("\u0663", None),
        ("Mon, 01 Jan 99999999999999999999 00:00:00 GMT", None),
        ("Fri, 31 Dec 9999 23:59:59 -9999999999999999999", None),
    ],
)
def test_retry_after_in_both_forms(text: str, expected: float | None) -> None:
    now = datetime(2015, 10, 21, 7, 28, 0, tzinfo=UTC)
    with pytest.raises(TransferFailure) as caught:
        judge(Ask(), Head(status=503, headers={"retry-after": text}), URL, now=now)
    assert caught.value.retry_after_s == expected


@given(
    st.integers(100, 599),
    st.dictionaries(
        st.sampled_from(["content-range", "content-length", "etag", "content-encoding", "retry-after"]),
        st.text(max_size=40),
    ),
)
def test_any_answer_is_a_plan_or_a_failure_of_ours(status: int, headers: dict[str, str]) -> None:
    try:
        plan = judge(ASK, Head(status=status, headers=headers), URL)
    except (TransferFailure, NetworkError):
        return
    assert plan.offset in (0, 100)
