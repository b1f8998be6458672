from __future__ import annotations

import importlib
import os
import pwd
import random
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from nodes import free_ports, until

from lowkey import Client, InvalidArgument, fence


def missing(text: str) -> NoReturn:
    if os.environ.get("LOWKEY_REQUIRE_ALL") == "1":
        pytest.fail(text)
    pytest.skip(text)


def program(*names: str) -> str:
    for name in names:
        found = shutil.which(name) or next(
            (str(path) for path in Path("/usr/lib/postgresql").glob(f"*/bin/{name}")), None
        )
        if found is not None:
            return found
    missing(f"no {names[0]} here")


def package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        missing(f"{name} is not installed")


@pytest.fixture
def path(tmp_path: Path) -> str:
    connection = sqlite3.connect(tmp_path / "db")
    fence.install_sqlite(connection)
    fence.install_sqlite(connection)
    connection.execute("CREATE TABLE written (token INTEGER)")
    connection.commit()
    connection.close()
    return str(tmp_path / "db")


class Marks:
    """The rule itself, in five lines."""

    def __init__(self) -> None:
        self.exclusive = self.shared = 0

    def present(self, token: int, shared: bool) -> bool:
        if token < self.exclusive or (not shared and token < self.shared):
            return False
        self.exclusive = self.exclusive if shared else token
        self.shared = max(self.shared, token) if shared else self.shared
        return True


def test_sqlite_follows_the_rule(path: str) -> None:
    connection = sqlite3.connect(path)
    randomness = random.Random(7)
    for resource in range(30):
        model = Marks()
        for _ in range(40):
            token, shared = randomness.randrange(1, 12), randomness.random() < 0.5
            accepted = True
            try:
                with fence.sqlite(connection, f"r{resource}", token, shared):
                    pass
            except fence.StaleToken as stale:
                accepted = False
                assert (stale.exclusive, stale.shared) == (model.exclusive, model.shared)
            assert accepted is model.present(token, shared), (token, shared)
    connection.close()


def test_tokens_of_sqlite_keep_all_their_bits(path: str) -> None:
    connection = sqlite3.connect(path)
    with fence.sqlite(connection, "big", (1 << 53) + 1):
        pass
    with pytest.raises(fence.StaleToken), fence.sqlite(connection, "big", 1 << 53):
        pass
    with fence.sqlite(connection, "big", (1 << 63) - 1):
        pass
    connection.close()


def test_a_block_that_fails_writes_nothing_and_raises_no_mark(path: str) -> None:
    connection = sqlite3.connect(path)

    def work() -> None:
        with fence.sqlite(connection, "r", 9):
            connection.execute("INSERT INTO written VALUES (9)")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with fence.sqlite(connection, "r", 3):
        connection.execute("INSERT INTO written VALUES (3)")
    assert connection.execute("SELECT token FROM written").fetchall() == [(3,)]
    connection.execute("INSERT INTO written VALUES (4)")
    with pytest.raises(InvalidArgument, match="transaction"), fence.sqlite(connection, "r", 5):
        pass
    connection.close()


def test_writers_with_random_tokens_never_go_back(path: str) -> None:
    def work(seed: int) -> None:
        connection = sqlite3.connect(path, timeout=60)
        randomness = random.Random(seed)
        for _ in range(50):
            token = randomness.randrange(1, 10_000)
            try:
                with fence.sqlite(connection, "busy", token):
                    connection.execute("INSERT INTO written VALUES (?)", (token,))
            except fence.StaleToken:
                pass
        connection.close()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection = sqlite3.connect(path)
    history = [token for (token,) in connection.execute("SELECT token FROM written ORDER BY rowid")]
    connection.close()
    assert history == sorted(history)
    assert len(history) > 2


def test_a_late_holder_is_refused_with_tokens_of_the_service(client: Client, path: str) -> None:
    connection = sqlite3.connect(path)
    with client.session() as one, client.session() as two:
        late = one.lock("fence/late")
        late.release()  # as the service sees it; its holder believes for a while longer
        with two.lock("fence/late") as guard, fence.sqlite(connection, "rows", guard.token):
            connection.execute("INSERT INTO written VALUES (?)", (guard.token,))
        with pytest.raises(fence.StaleToken), fence.sqlite(connection, "rows", late.token):
            connection.execute("INSERT INTO written VALUES (?)", (late.token,))
    assert len(connection.execute("SELECT * FROM written").fetchall()) == 1
    connection.close()


def test_nonsense_is_refused(path: str) -> None:
    connection = sqlite3.connect(path)
    nonsense: list[tuple[str, Any]] = [("", 1), ("x" * 513, 1)]
    nonsense += [("r", token) for token in (0, -1, 1 << 63, 1.5, True, "7")]
    for resource, token in nonsense:
        with pytest.raises(InvalidArgument), fence.sqlite(connection, resource, token):
            pass
    connection.close()


# PostgreSQL, with the statements that `lowkey fence sql postgres` prints, where they are to be had.


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    sql = Path(__file__).resolve().parents[3] / "crates/lowkey-fence/sql/postgres.sql"
    if not sql.exists():
        pytest.skip("this tree has no statements of lowkey fence for PostgreSQL")
    psycopg = package("psycopg")
    server, maker = program("postgres"), program("initdb")
    folder = tmp_path_factory.mktemp("postgres")
    (port,) = free_ports(1)

    def be_nobody() -> None:
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            os.setuid(pwd.getpwnam("postgres").pw_uid)

    if os.getuid() == 0:
        try:
            shutil.chown(folder, "postgres")
        except LookupError:
            missing("PostgreSQL does not run as root, and there is no user postgres")
        for parent in list(folder.parents)[:3]:
            parent.chmod(parent.stat().st_mode | 0o111)
    data = str(folder / "data")
    (Path(folder)).mkdir(exist_ok=True)
    made = subprocess.run(
        [maker, "-D", data, "-U", "postgres", "-A", "trust", "-N"],
        preexec_fn=be_nobody,
        capture_output=True,
    )
    if made.returncode != 0:
        missing(f"initdb: {made.stderr.decode()[:200]}")
    process = subprocess.Popen(
        [server, "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", ""],
        preexec_fn=be_nobody,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    url = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"

    def connect() -> Any:
        try:
            return psycopg.connect(url)
        except psycopg.OperationalError:
            return None

    with until(connect, "a PostgreSQL server") as connection:
        connection.execute(sql.read_text())
    yield lambda: psycopg.connect(url)
    process.terminate()
    process.wait()


def test_postgres_refuses_a_late_token(postgres: Any) -> None:
    with postgres() as connection:
        fence.postgres(connection, "accounts", 34)
    with postgres() as connection, connection.cursor() as cursor:
        fence.postgres(cursor, "accounts", 34)
    with postgres() as connection:
        with pytest.raises(fence.StaleToken) as stale:
            fence.postgres(connection, "accounts", 33)
        assert (stale.value.exclusive, stale.value.shared) == (34, 0)
        connection.rollback()
        fence.postgres(connection, "accounts", 40, shared=True)
    with postgres() as connection:
        with pytest.raises(fence.StaleToken):
            fence.postgres(connection, "accounts", 39)
        connection.rollback()
        connection.autocommit = True
        with pytest.raises(InvalidArgument, match="autocommit"):
            fence.postgres(connection, "accounts", 50)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    redis_py = package("redis")
    server = program("redis-server", "valkey-server")
    (port,) = free_ports(1)
    folder = str(tmp_path_factory.mktemp("redis"))
    process = subprocess.Popen(
        [server, "--port", str(port), "--dir", folder, "--save", ""], stdout=subprocess.DEVNULL
    )
    client = redis_py.Redis(port=port)

    def answers() -> bool:
        try:
            return bool(client.ping())
        except redis_py.ConnectionError:
            return False

    until(answers, "a Redis server")
    yield client
    client.close()
    process.terminate()
    process.wait()


def test_redis_follows_the_rule(redis: Any) -> None:
    randomness = random.Random(8)
    for resource in range(20):
        model, kept = Marks(), fence.RedisFence(redis, f"r{resource}")
        for _ in range(40):
            # Around a power of ten, where text and numbers compare differently.
            token, shared = randomness.randrange(95, 105), randomness.random() < 0.5
            accepted = True
            try:
                kept.set(token, kept.key("value"), token, shared=shared)
            except fence.StaleToken as stale:
                accepted = False
                assert (stale.exclusive, stale.shared) == (model.exclusive, model.shared)
            assert accepted is model.present(token, shared)
            if accepted:
                assert int(redis.get(kept.key("value"))) == token
    big = fence.RedisFence(redis, "big")
    big.claim((1 << 53) + 1)
    with pytest.raises(fence.StaleToken):
        big.claim(1 << 53)
    assert big.write((1 << 53) + 1, "return redis.call('INCR', KEYS[1])", [big.key("n")]) == 1
    with pytest.raises(InvalidArgument):
        fence.RedisFence(redis, "a{b}")
