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
CREATE PROCEDURE lowkey_fence(IN resource_name VARCHAR(512) CHARACTER SET utf8mb4, IN token BIGINT, IN is_shared BOOLEAN)
MODIFIES SQL DATA
BEGIN
    DECLARE exclusive_mark BIGINT;
    DECLARE shared_mark BIGINT;
    DECLARE said VARCHAR(128);

    IF resource_name IS NULL OR LENGTH(resource_name) NOT BETWEEN 1 AND 512
       OR token IS NULL OR token < 1 OR is_shared IS NULL THEN
        SIGNAL SQLSTATE 'LK002' SET MESSAGE_TEXT =
            'a resource has 1 to 512 bytes, a fencing token is a number from 1, and shared is TRUE or FALSE';
    END IF;

    -- Raises only what may rise, and locks the row until the transaction ends.
    INSERT INTO lowkey_fence (resource, `exclusive`, `shared`)
    VALUES (resource_name, IF(is_shared, 0, token), IF(is_shared, token, 0))
    ON DUPLICATE KEY UPDATE
        `exclusive` = IF(NOT is_shared AND token >= `exclusive` AND token >= `shared`, token, `exclusive`),
        `shared` = IF(is_shared AND token >= `exclusive`, GREATEST(`shared`, token), `shared`);

    -- A locking read sees the row as it is now, whatever snapshot the transaction has.
    SELECT `exclusive`, `shared` INTO exclusive_mark, shared_mark
      FROM lowkey_fence WHERE resource = CAST(resource_name AS BINARY) FOR UPDATE;
    IF token < exclusive_mark OR (NOT is_shared AND token < shared_mark) THEN
        -- At most 128 characters, also with the longest marks.
        SET said = CONCAT('STALE_TOKEN exclusive=', exclusive_mark, ' shared=', shared_mark,
                          ': your lock is gone: stop, do not retry');
        SIGNAL SQLSTATE 'LK001' SET MESSAGE_TEXT = said;
    END IF;
END//
DELIMITER ;
