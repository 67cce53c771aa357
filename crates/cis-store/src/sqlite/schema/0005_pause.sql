-- Nothing more of a paused run is claimed: its tasks stand in the negative of their queue, which no claim reads.
ALTER TABLE dag_runs ADD COLUMN paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1));

-- Nothing of a paused scope is claimed: its queues are not read.
CREATE TABLE paused_scopes (
    scope     TEXT PRIMARY KEY,
    paused_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- `steps` once more with another kind: what a CHECK says cannot be changed in place.
CREATE TABLE steps_with_pause (
    step_key INTEGER PRIMARY KEY,
    run_key  INTEGER NOT NULL,
    kind     TEXT    NOT NULL CHECK (kind IN ('create', 'spread', 'stop', 'pause')),
    -- The task whose end is still to be told to its dependents.
    task_ix  INTEGER,
    impact   TEXT CHECK (impact IN ('fine', 'failed', 'blocked')),
    -- How far it has got.
    cursor   INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO steps_with_pause SELECT step_key, run_key, kind, task_ix, impact, cursor FROM steps;
DROP TABLE steps;
ALTER TABLE steps_with_pause RENAME TO steps;
CREATE INDEX steps_of_run ON steps (run_key);
