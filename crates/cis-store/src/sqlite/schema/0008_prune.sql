-- How far the log had got when the run was last written. Once it is over, no event of it comes later.
ALTER TABLE dag_runs ADD COLUMN last_position INTEGER;
UPDATE dag_runs SET last_position = told.position
    FROM (SELECT run_key, max(position) AS position FROM events GROUP BY run_key) AS told
    WHERE told.run_key = dag_runs.run_key;

-- Which runs are being carried on: what they carry over must stay.
CREATE INDEX runs_resuming ON dag_runs (resumed_from) WHERE completed_at IS NULL AND resumed_from IS NOT NULL;

-- What stays of a run that was pruned.
CREATE TABLE pruned_runs (
    run_key   INTEGER PRIMARY KEY,
    run_id    TEXT    NOT NULL UNIQUE,
    dag_key   INTEGER NOT NULL REFERENCES dags,
    number    INTEGER NOT NULL,
    status    TEXT    NOT NULL CHECK (status IN ('completed', 'failed', 'cancelled', 'timed_out')),
    ended_at  INTEGER NOT NULL,
    pruned_at INTEGER NOT NULL,
    UNIQUE (dag_key, number)
) STRICT;

-- Pruned runs of which something is left: events, then tasks, then files.
CREATE TABLE prunings (
    run_key         INTEGER PRIMARY KEY REFERENCES pruned_runs,
    -- Events that are left lie between these.
    next_position   INTEGER NOT NULL,
    last_position   INTEGER NOT NULL,
    -- And its tasks: their names are told with its events, so they go later.
    first_execution INTEGER NOT NULL,
    next_execution  INTEGER NOT NULL,
    last_execution  INTEGER NOT NULL
) STRICT;

-- Up to here the log may have gaps.
INSERT INTO counters VALUES ('log_floor', 0);
