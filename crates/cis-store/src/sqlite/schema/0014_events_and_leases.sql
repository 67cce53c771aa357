-- The identity that an event was caused by; NULL where the node itself did it. An event may also be about something else than
-- a DAG, a run or a task: about a subject that has a name of its own, which it keeps when what it names is gone. Rows stay as
-- they are, so the check is changed, not made anew. Every column costs every event something, so there are no more.
CREATE TABLE subjects (
    subject_key INTEGER PRIMARY KEY,
    kind        TEXT NOT NULL,
    scope       TEXT NOT NULL,
    name        TEXT NOT NULL,
    UNIQUE (kind, scope, name)
) STRICT;
ALTER TABLE events ADD COLUMN actor TEXT;
ALTER TABLE events ADD COLUMN subject_key INTEGER;
PRAGMA writable_schema = ON;
UPDATE sqlite_schema SET sql = replace(sql,
    'CHECK ((run_key IS NULL) <> (definition_key IS NULL))',
    'CHECK (((run_key IS NULL) <> (definition_key IS NULL) AND subject_key IS NULL)
        OR (run_key IS NULL AND definition_key IS NULL AND subject_key IS NOT NULL))')
WHERE type = 'table' AND name = 'events';
PRAGMA writable_schema = RESET;

-- A lease is of anything: of a task by its execution id, of others by their key among the subjects.
CREATE TABLE leases_of_subjects (
    subject_kind TEXT    NOT NULL,
    subject_key  INTEGER NOT NULL,
    fence        INTEGER NOT NULL,
    -- The holder: whatever is said of the subject must come from it.
    identity     TEXT    NOT NULL,
    term_ms      INTEGER NOT NULL CHECK (term_ms > 0),
    -- When it runs out, in milliseconds since that boot of the machine.
    boot_id      TEXT    NOT NULL,
    expires      INTEGER NOT NULL,
    -- When the subject's own time is over.
    deadline     INTEGER,
    PRIMARY KEY (subject_kind, subject_key)
) STRICT, WITHOUT ROWID;
INSERT INTO leases_of_subjects
    SELECT 'task', execution_id, fence, identity, term_ms, boot_id, expires, deadline FROM leases;
DROP TABLE leases;
ALTER TABLE leases_of_subjects RENAME TO leases;
CREATE INDEX leases_expiring ON leases (subject_kind, expires);
CREATE INDEX leases_overdue ON leases (subject_kind, deadline) WHERE deadline IS NOT NULL;
