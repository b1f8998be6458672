-- lowkey fence for MySQL 8 and MariaDB 10.5 and newer, version 1.
-- Run it as often as you like: it creates what is missing, and replaces the procedure.
--
-- First statement of every transaction that writes under a lock:
--
--   START TRANSACTION;
--   CALL lowkey_fence('accounts', 34, FALSE);   -- resource, token, shared
--
-- It returns, or fails with SQLSTATE LK001: your lock is gone, stop, do not retry. Roll back then: MySQL
-- undoes the statement, and not the transaction. If it returns, other holders wait until the transaction ends.

CREATE TABLE IF NOT EXISTS lowkey_fence (
    resource    VARBINARY(512) NOT NULL PRIMARY KEY COMMENT 'bytes: no collation may take two names for one',
    `exclusive` BIGINT         NOT NULL COMMENT 'the highest exclusive token that was accepted; 0 for none',
    `shared`    BIGINT         NOT NULL COMMENT 'the highest shared token that was accepted; 0 for none'
) ENGINE = InnoDB COMMENT = 'lowkey fence, version 1';

DROP PROCEDURE IF EXISTS lowkey_fence;

DELIMITER //
CREATE PROCEDURE lowkey_fence(IN name VARCHAR(512) CHARACTER SET utf8mb4, IN ticket BIGINT, IN reads BOOLEAN)
MODIFIES SQL DATA
BEGIN
    DECLARE exclusive_mark BIGINT;
    DECLARE shared_mark BIGINT;
    DECLARE said VARCHAR(128);

    IF name IS NULL OR LENGTH(name) NOT BETWEEN 1 AND 512 OR ticket IS NULL OR ticket < 1 OR reads IS NULL THEN
        SIGNAL SQLSTATE 'LK002' SET MESSAGE_TEXT =
            'a resource has 1 to 512 bytes, a fencing token is a number from 1, and shared is TRUE or FALSE';
    END IF;

    -- Raises only what may rise, and locks the row until the transaction ends.
    INSERT INTO lowkey_fence (resource, `exclusive`, `shared`)
    VALUES (name, IF(reads, 0, ticket), IF(reads, ticket, 0))
    ON DUPLICATE KEY UPDATE
        `exclusive` = IF(NOT reads AND ticket >= `exclusive` AND ticket >= `shared`, ticket, `exclusive`),
        `shared` = IF(reads AND ticket >= `exclusive`, GREATEST(`shared`, ticket), `shared`);

    -- A locking read sees the row as it is now, whatever snapshot the transaction has.
    SELECT `exclusive`, `shared` INTO exclusive_mark, shared_mark
      FROM lowkey_fence WHERE resource = CAST(name AS BINARY) FOR UPDATE;
    IF ticket < exclusive_mark OR (NOT reads AND ticket < shared_mark) THEN
        SET said = CONCAT('STALE_TOKEN token=', ticket, ' exclusive=', exclusive_mark, ' shared=', shared_mark,
                          ': your lock is gone: stop, do not retry');
        SIGNAL SQLSTATE 'LK001' SET MESSAGE_TEXT = said;
    END IF;
END//
DELIMITER ;
