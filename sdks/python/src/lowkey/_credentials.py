"""What a client shows to nodes, and how it knows them: TLS and a bearer token, from files.

The files are read again when they change, so that certificates and tokens can be rotated under a
running program. A file that cannot be read any more leaves what was read before in force: half a
rotation must not cost a lease.
"""

from __future__ import annotations

import logging
import os
import ssl
from typing import Callable, Generic, TypeVar

from lowkey._clock import SECOND, now_ns
from lowkey.errors import InvalidArgument

_log = logging.getLogger("lowkey")

# How often the files are looked at.
_LOOK_NS = SECOND

T = TypeVar("T")


class _FromFiles(Generic[T]):
    def __init__(self, paths: list[str], read: Callable[[], T]) -> None:
        self._paths = paths
        self._read = read
        self._stamps = self._look()
        self._looked_ns = now_ns()
        self._value = read()

    def get(self) -> tuple[T, bool]:
        """Return the value, and whether it is a new one."""
        if now_ns() - self._looked_ns < _LOOK_NS:
            return self._value, False
        self._looked_ns = now_ns()
        stamps = self._look()
        if stamps == self._stamps:
            return self._value, False
        try:
            self._value = self._read()
        except (OSError, InvalidArgument) as error:
            _log.warning("%s: going on with what was read before", error)
            return self._value, False
        self._stamps = stamps
        return self._value, True

    def _look(self) -> list[tuple[int, int, int]]:
        stamps = []
        for path in self._paths:
            try:
                found = os.stat(path)
                stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
            except OSError:
                stamps.append((0, 0, 0))
        return stamps


class Credentials:
    """The TLS context and the token of a client."""

    def __init__(
        self,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        token_file: str | None = None,
    ) -> None:
        if key is not None and cert is None:
            raise InvalidArgument("key= needs cert= beside it: a key alone proves nothing")
        self._ca, self._cert, self._key = ca, cert, key
        paths = [path for path in (ca, cert, key) if path is not None]
        self._context: _FromFiles[ssl.SSLContext] | None = None
        self._paths = paths
        if paths:
            self._context = _FromFiles(paths, self._make_context)
        self._token: _FromFiles[str] | None = None
        if token_file is not None:
            path = token_file
            self._token = _FromFiles([path], lambda: _read_token(path))

    def context(self) -> tuple[ssl.SSLContext, bool]:
        """Return the TLS context, and whether it is a new one."""
        if self._context is None:
            self._context = _FromFiles(self._paths, self._make_context)
        return self._context.get()

    def token(self) -> str | None:
        """Return the bearer token, if there is one."""
        return None if self._token is None else self._token.get()[0]

    def _make_context(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=self._ca)
            context.minimum_version = ssl.TLSVersion.TLSv1_2
            if self._cert is not None:
                context.load_cert_chain(self._cert, self._key)
        except (OSError, ssl.SSLError) as error:
            names = ", ".join(path for path in (self._ca, self._cert, self._key) if path)
            raise InvalidArgument(f"cannot use the TLS files {names}: {error}") from error
        return context


def _read_token(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            token = file.read().strip()
    except (OSError, UnicodeError) as error:
        raise InvalidArgument(f"cannot read the token file {path}: {error}") from error
    if not token or not token.isprintable() or " " in token:
        raise InvalidArgument(f"the token file {path} must contain one token, on one line")
    return token
