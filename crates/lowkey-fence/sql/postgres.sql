-- lowkey fence for PostgreSQL 13 and newer, version 1.
-- Run it as often as you like: it creates what is missing, and replaces functions.
--
-- First statement of every transaction that writes under a lock:
--
--   SELECT lowkey_fence('accounts', 34, false);   -- resource, token, shared
--
-- It returns nothing, or fails with SQLSTATE LK001: your lock is gone, stop, do not retry. The failure
-- aborts the transaction. If it returns, other holders wait until this transaction ends.

CREATE TABLE IF NOT EXISTS lowkey_fence (
    resource     text   PRIMARY KEY,
    exclusive    bigint NOT NULL,  -- the highest exclusive token that was accepted; 0 for none
    shared       bigint NOT NULL,  -- the highest shared token that was accepted; 0 for none
    presented_in xid8   NOT NULL   -- the transaction that presented the last accepted token
);

COMMENT ON TABLE lowkey_fence IS 'lowkey fence, version 1';

CREATE OR REPLACE FUNCTION lowkey_fence(resource text, token bigint, shared boolean DEFAULT false)
RETURNS void LANGUAGE plpgsql AS $lowkey$
#variable_conflict use_column
DECLARE
    name   CONSTANT text    := $1;
    ticket CONSTANT bigint  := $2;
    reads  CONSTANT boolean := $3;
    marks  lowkey_fence%ROWTYPE;
BEGIN
    -- A NULL that compares as neither true nor false must not pass.
    IF name IS NULL OR octet_length(name) NOT BETWEEN 1 AND 512 THEN
        RAISE EXCEPTION 'the name of a resource must have 1 to 512 bytes' USING ERRCODE = 'LK002';
    END IF;
    IF ticket IS NULL OR ticket < 1 OR reads IS NULL THEN
        RAISE EXCEPTION 'a fencing token is a number from 1, and shared is true or false' USING ERRCODE = 'LK002';
    END IF;

    -- The row stays locked until the transaction ends: check and write are one step.
    INSERT INTO lowkey_fence AS kept (resource, exclusive, shared, presented_in)
    VALUES (name, CASE WHEN reads THEN 0 ELSE ticket END, CASE WHEN reads THEN ticket ELSE 0 END,
            pg_current_xact_id())
    ON CONFLICT (resource) DO UPDATE SET
        exclusive    = CASE WHEN reads THEN kept.exclusive ELSE ticket END,
        shared       = CASE WHEN reads THEN greatest(kept.shared, ticket) ELSE kept.shared END,
        presented_in = pg_current_xact_id()
    WHERE ticket >= kept.exclusive AND (reads OR ticket >= kept.shared);
    IF FOUND THEN
        RETURN;
    END IF;

    SELECT * INTO marks FROM lowkey_fence AS kept WHERE kept.resource = name;
    RAISE EXCEPTION '% refused the % token %, since it has accepted %: your lock is gone: stop, do not retry',
        name, CASE WHEN reads THEN 'shared' ELSE 'exclusive' END, ticket, greatest(marks.exclusive, marks.shared)
        USING ERRCODE = 'LK001',
              DETAIL = format('token=%s exclusive=%s shared=%s', ticket, marks.exclusive, marks.shared);
END
$lowkey$;

-- For tables that must not be written without a token: `lowkey fence sql postgres --trigger TABLE=RESOURCE`.
CREATE OR REPLACE FUNCTION lowkey_fence_required() RETURNS trigger LANGUAGE plpgsql AS $lowkey$
BEGIN
    PERFORM 1 FROM lowkey_fence AS kept
     WHERE kept.resource = TG_ARGV[0] AND kept.presented_in = pg_current_xact_id();
    IF NOT FOUND THEN
        RAISE EXCEPTION '% is written only under a lock: this transaction has presented no token for resource %',
            TG_TABLE_NAME, TG_ARGV[0]
            USING ERRCODE = 'LK003',
                  HINT = format('Begin the transaction with SELECT lowkey_fence(%L, TOKEN, SHARED).', TG_ARGV[0]);
    END IF;
    RETURN NULL;
END
$lowkey$;
