"""https: certificates that are trusted or not, fast bodies over TLS, and HTTP/2 where it is offered."""

from __future__ import annotations

import ipaddress
import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from opencoti.errors import NetworkError
from tests.fakes.h2_server import serving_h2
from tests.fakes.http_faults import Fault, serving
from tests.integration.fetch.bench import CONTENT, SHA, run_cli
from tests.integration.fetch.test_fast import BIG, CHUNK, fast_bench


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1, signed by itself, with its key in the same file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = built.public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = tmp_path / "cert.pem"
    path.write_bytes(pem + secret)
    return path


def test_certificate_must_be_trusted_and_can_be_named(tmp_path: Path, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    with serving(CONTENT, tls=context) as server:
        words = ("--url", server.url(), "--sha256", SHA, "--dest", tmp_path / "d", "--json")
        refused = run_cli(*words)
        assert (refused.returncode, json.loads(refused.stdout)["error"]) == (7, "tls-untrusted")
        assert server.seen == []
        trusted = run_cli(*words, env={"SSL_CERT_FILE": str(certificate)})
        assert (trusted.returncode, len(server.seen)) == (0, 1), trusted.stderr


@pytest.mark.parametrize("has_table", [True, False])
def test_fast_body_is_read_through_tls(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch, has_table: bool
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    bench = fast_bench(tmp_path, has_table=has_table)
    with serving(BIG, Fault(kind="close", at=3_000_000), tls=context) as server:
        server.block_bytes = 1 << 18
        fetched = bench.fetch(server)
    assert fetched.path.read_bytes() == BIG
    assert len(BIG) <= fetched.transferred_bytes < len(BIG) + CHUNK


@pytest.mark.parametrize("has_table", [True, False])
def test_http2_is_spoken_where_it_is_offered(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch, has_table: bool
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    bench = fast_bench(tmp_path, has_table=has_table)
    bench.connections = 4
    with serving_h2(BIG, str(certificate)) as server:
        fetched = bench.fetch(server)  # type: ignore[arg-type]
        assert server.connections == 1
        assert bool(server.ranges[0]) == has_table
        assert has_table == (len(server.ranges) > 1)
    assert fetched.path.read_bytes() == BIG
    assert fetched.transferred_bytes == len(BIG)


@pytest.mark.parametrize("has_table", [True, False])
@pytest.mark.parametrize("excess", [-1000, 1000])
def test_http2_body_of_another_length_than_promised_is_fetched_again(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch, has_table: bool, excess: int
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    bench = fast_bench(tmp_path, has_table=has_table)
    with serving_h2(BIG, str(certificate)) as server:
        server.excess = [excess]
        fetched = bench.fetch(server)  # type: ignore[arg-type]
        assert len(server.ranges) > 1
    assert fetched.path.read_bytes() == BIG


def test_http2_body_of_empty_blocks_without_end_counts_as_a_stall(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    bench = fast_bench(tmp_path, has_table=False)
    with serving_h2(BIG, str(certificate)) as server:
        server.empty = 1
        fetched = bench.fetch(server)  # type: ignore[arg-type]
        assert len(server.ranges) == 2
    assert fetched.path.read_bytes() == BIG
    assert "only 0 bytes in" in bench.recorded.text


def test_http2_status_that_is_no_number_is_our_error(
    tmp_path: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    bench = fast_bench(tmp_path, has_table=False)
    with serving_h2(BIG, str(certificate)) as server:
        server.status = "abc"
        error = bench.outcome(server)  # type: ignore[arg-type]
    assert isinstance(error, NetworkError)
    assert (error.error_id, "rules of HTTP" in error.why) == ("download-failed", True)
