-- lowkey fence for SQLite 3.32 and newer, version 1.
-- Run it as often as you like: it creates what is missing, and replaces the view and its trigger.
--
-- First statements of every transaction that writes under a lock:
--
--   BEGIN IMMEDIATE;
--   INSERT INTO lowkey_present (resource, token, shared) VALUES ('accounts', 34, 0);
--
-- It succeeds, or fails with "STALE_TOKEN: your lock is gone: stop, do not retry". Roll back then. If it
-- succeeds, other writers wait until this transaction ends: SQLite has one writer at a time.

CREATE TABLE IF NOT EXISTS lowkey_fence (
    resource  TEXT    NOT NULL PRIMARY KEY CHECK (length(CAST(resource AS BLOB)) BETWEEN 1 AND 512),
    exclusive INTEGER NOT NULL CHECK (typeof(exclusive) = 'integer'),  -- the highest that was accepted; 0 for none
    shared    INTEGER NOT NULL CHECK (typeof(shared) = 'integer')
);

DROP VIEW IF EXISTS lowkey_present;
CREATE VIEW lowkey_present AS SELECT resource, max(exclusive, shared) AS token, 0 AS shared FROM lowkey_fence;

CREATE TRIGGER lowkey_present_insert INSTEAD OF INSERT ON lowkey_present
BEGIN
    -- A NULL that compares as neither true nor false must not pass.
    SELECT RAISE(ABORT, 'a fencing token is a whole number from 1, and shared is 0 or 1')
     WHERE typeof(NEW.token) <> 'integer' OR NEW.token < 1
        OR typeof(NEW.shared) <> 'integer' OR NEW.shared NOT IN (0, 1) OR typeof(NEW.resource) <> 'text';
    SELECT RAISE(ABORT, 'STALE_TOKEN: your lock is gone: stop, do not retry')
      FROM lowkey_fence AS kept
     WHERE kept.resource = NEW.resource
       AND (NEW.token < kept.exclusive OR (NOT NEW.shared AND NEW.token < kept.shared));
    INSERT INTO lowkey_fence AS kept (resource, exclusive, shared)
    VALUES (NEW.resource, iif(NEW.shared, 0, NEW.token), iif(NEW.shared, NEW.token, 0))
    ON CONFLICT (resource) DO UPDATE SET
        exclusive = iif(NEW.shared, kept.exclusive, NEW.token),
        shared    = iif(NEW.shared, max(kept.shared, NEW.token), kept.shared);
END;
