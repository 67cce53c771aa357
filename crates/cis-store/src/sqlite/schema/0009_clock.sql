-- By which clock deadlines are kept: when the machine was started, in its present boot, by the clock on the wall. If
-- that moves, somebody has set the clock, and every deadline moves along.
CREATE TABLE clock (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    boot_id    TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    -- By how much, all in all. Keys are too many to move: they are kept by a clock without it.
    moved      INTEGER NOT NULL DEFAULT 0
) STRICT;
