-- Tasks that others claim: by what they need, under a lease, with notes for whoever takes over.

-- A queue is now also what its tasks need of a claimant: names in order, with a space between.
CREATE TABLE queues_by_needs (
    queue_key INTEGER PRIMARY KEY,
    kind      TEXT NOT NULL,
    scope     TEXT NOT NULL,
    needs     TEXT NOT NULL,
    UNIQUE (kind, scope, needs)
) STRICT;
INSERT INTO queues_by_needs SELECT queue_key, kind, scope, '' FROM queues;
DROP TABLE queues;
ALTER TABLE queues_by_needs RENAME TO queues;

-- Nothing ever wrote it: what is leased has a row of its own, for as long as the attempt lives.
ALTER TABLE task_executions DROP COLUMN lease_expires;

CREATE TABLE leases (
    execution_id INTEGER PRIMARY KEY,
    fence        INTEGER NOT NULL,
    -- Who must say so whatever is said of the attempt.
    identity     TEXT    NOT NULL,
    term_ms      INTEGER NOT NULL CHECK (term_ms > 0),
    -- When it runs out, in milliseconds since that boot of the machine.
    boot_id      TEXT    NOT NULL,
    expires      INTEGER NOT NULL,
    -- When the task's own time is over.
    deadline     INTEGER
) STRICT;
CREATE INDEX leases_expiring ON leases (expires);
CREATE INDEX leases_overdue ON leases (deadline) WHERE deadline IS NOT NULL;

-- What holders said of how far they are. Whoever takes over is told.
CREATE TABLE notes (
    execution_id INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    number       INTEGER NOT NULL,
    holder       TEXT    NOT NULL,
    at           INTEGER NOT NULL,
    percent      REAL CHECK (percent BETWEEN 0 AND 100),
    note         TEXT,
    PRIMARY KEY (execution_id, fence, number)
) STRICT, WITHOUT ROWID;
