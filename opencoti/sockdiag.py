"""Listening TCP sockets, asked of the kernel directly (netlink, sock_diag(7)).

The table in `/proc/net/tcp` says the same, but to print it the kernel walks every connection that it ever has
room for, which takes many milliseconds on a large machine; this asks for listening sockets only. It is there
on every common Linux; where it is not, `listening` returns None and `opencoti.procfs` reads the table.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

# linux/netlink.h, linux/sock_diag.h, linux/inet_diag.h, net/tcp_states.h
_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20
_NLM_F_REQUEST_DUMP: Final = 0x301
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_TCP_LISTEN: Final = 10
_HEADER: Final = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_REQUEST: Final = struct.Struct("=BBBBI48x")  # family, protocol, extensions, padding, states; socket id
_ANSWER: Final = struct.Struct("=BBBB2s2s16s16sI8sIIIII")
_TIMEOUT_S: Final = 2.0
_READ_BYTES: Final = 1 << 16


@dataclass(frozen=True, kw_only=True)
class ListeningSocket:
    """A socket as the kernel knows it; `address` is its raw form, 4 or 16 bytes in network order."""

    port: int
    address: bytes
    inode: int


class _UnusableError(Exception):
    """The kernel does not answer this kind of question."""


def listening() -> tuple[ListeningSocket, ...] | None:
    """Return every listening TCP socket of this network namespace, None where the kernel does not say."""
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as link:
            link.settimeout(_TIMEOUT_S)
            return tuple(item for family in (socket.AF_INET, socket.AF_INET6) for item in _ask(link, family))
    except (OSError, AttributeError, _UnusableError, struct.error):
        return None


def _ask(link: socket.socket, family: int) -> Iterator[ListeningSocket]:
    request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _TCP_LISTEN)
    size = _HEADER.size + len(request)
    link.sendto(_HEADER.pack(size, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, family, 0) + request, (0, 0))
    while True:
        for kind, body in _messages(link.recv(_READ_BYTES)):
            if kind == _NLMSG_DONE:
                return
            if kind != _SOCK_DIAG_BY_FAMILY:
                raise _UnusableError(kind)
            yield _parse(body, family)


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Cut what arrived into messages: a header with their length, then the body, padded to 4 bytes."""
    at = 0
    while at + _HEADER.size <= len(data):
        size, kind, *_ = _HEADER.unpack_from(data, at)
        if size < _HEADER.size or at + size > len(data):
            raise _UnusableError(size)
        yield kind, data[at + _HEADER.size : at + size]
        at += (size + 3) & ~3


def _parse(body: bytes, family: int) -> ListeningSocket:
    fields = _ANSWER.unpack_from(body)
    raw: bytes = fields[6]
    return ListeningSocket(
        port=int.from_bytes(fields[4], "big"),
        address=raw[:4] if family == socket.AF_INET else raw,
        inode=fields[14],
    )
