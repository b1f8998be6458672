"""TLS and tokens, against a real node behind a proxy that ends TLS."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
from nodes import Cluster, until
from proxy import Proxy

import lowkey
from lowkey import Client, InvalidArgument, Unavailable


def make_certificate(folder: Path, name: str, host: str = "IP:127.0.0.1") -> tuple[str, str]:
    """Make a certificate that signs itself."""
    if shutil.which("openssl") is None:
        text = "no openssl program to make certificates with"
        if os.environ.get("LOWKEY_REQUIRE_ALL") == "1":
            pytest.fail(text)
        pytest.skip(text)
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", f"/CN={name}", "-addext", f"subjectAltName={host}"]
    command += ["-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def server_context(cert: str, key: str, client_ca: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    return context


def test_a_lock_over_tls(node: Cluster, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "node")
    with Proxy(node.nodes[0].http_port, server_context(cert, key)) as proxy:
        with Client([proxy.url], ca=cert) as client, client.session() as session:
            with session.lock("access/tls", timeout=5) as guard:
                assert guard.held
            with client.watch("access/tls") as watch, session.lock("access/tls"):
                assert next(watch).type == "ACQUIRED"


def test_a_node_that_is_not_trusted_is_not_used(node: Cluster, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "node")
    other, _ = make_certificate(tmp_path, "other")
    elsewhere, elsewhere_key = make_certificate(tmp_path, "elsewhere", "DNS:elsewhere.example")
    with Proxy(node.nodes[0].http_port, server_context(cert, key)) as proxy:
        for ca in (None, other):
            with Client([proxy.url], ca=ca, call_timeout=1) as client:
                with pytest.raises(Unavailable, match="certificate") as refused:
                    client.session()
                assert not refused.value.outcome_unknown
        assert proxy.requests == []
    context = server_context(elsewhere, elsewhere_key)
    with Proxy(node.nodes[0].http_port, context) as proxy:
        with Client([proxy.url], ca=elsewhere, call_timeout=1) as client:
            with pytest.raises(Unavailable, match="certificate"):
                client.session()
        assert proxy.requests == []


def test_a_client_shows_its_certificate(node: Cluster, tmp_path: Path) -> None:
    cert, key = make_certificate(tmp_path, "node")
    own, own_key = make_certificate(tmp_path, "client")
    with Proxy(node.nodes[0].http_port, server_context(cert, key, own)) as proxy:
        with Client([proxy.url], ca=cert, cert=own, key=own_key) as client:
            assert client.session().held
        with Client([proxy.url], ca=cert, call_timeout=1) as client, pytest.raises(Unavailable):
            client.session()


def test_certificates_and_tokens_are_read_again_when_they_change(
    node: Cluster, tmp_path: Path
) -> None:
    cert, key = make_certificate(tmp_path, "node")
    ca = tmp_path / "ca.pem"
    shutil.copy(cert, ca)
    token = tmp_path / "token"
    token.write_text("first\n")
    with Proxy(node.nodes[0].http_port, server_context(cert, key)) as proxy:
        with Client([proxy.url], ca=ca, token_file=token) as client:
            with client.session(ttl=5) as session, session.lock("access/rotate") as guard:
                assert any(b"Authorization: Bearer first\r\n" in r for r in proxy.requests)
                token.write_text("")  # half a rotation: the old one stays in force
                token.write_text("second\n")
                until(
                    lambda: any(b"Authorization: Bearer second\r\n" in r for r in proxy.requests),
                    "the new token",
                )
                new_cert, new_key = make_certificate(tmp_path, "new")
                # Both are trusted while the node changes over.
                ca.write_text(Path(cert).read_text() + Path(new_cert).read_text())
                before = proxy.connections
                proxy.context = server_context(new_cert, new_key)
                proxy.cut()
                until(lambda: proxy.connections > before, "a connection to the new one")
                assert guard.held


def test_a_token_from_the_environment(
    node: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("of-the-environment")
    with Proxy(node.nodes[0].http_port) as proxy:
        monkeypatch.setenv("LOWKEY_AUTH_FILE", str(token))
        monkeypatch.setenv("LOWKEY_ENDPOINTS", proxy.url + "," + node.urls[0])
        with Client() as client:
            client.session()
        assert any(b"Authorization: Bearer of-the-environment\r\n" in r for r in proxy.requests)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    for content in ("", "two words", "line\nbreak", "gr\u00fc\u00df"):
        token = tmp_path / "token"
        token.write_text(content, encoding="utf-8")
        with pytest.raises(InvalidArgument, match="token"):
            Client(token_file=token)
    with pytest.raises(InvalidArgument, match=r"nothing\.pem"):
        Client("https://127.0.0.1:1", ca=tmp_path / "nothing.pem")
    with (
        pytest.raises(lowkey.Unavailable),
        Client("http://127.0.0.1:1", call_timeout=0.3) as client,
    ):
        client.session()
