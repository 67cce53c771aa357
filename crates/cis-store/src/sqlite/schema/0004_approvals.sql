-- When a person was asked about a task, and until when an answer is waited for (NULL: for as long as it takes).
ALTER TABLE task_executions ADD COLUMN asked_at INTEGER CHECK (status <> 'waiting' OR asked_at IS NOT NULL);
ALTER TABLE task_executions ADD COLUMN answer_deadline INTEGER CHECK (answer_deadline IS NULL OR asked_at IS NOT NULL);
CREATE INDEX tasks_waiting ON task_executions (answer_deadline) WHERE status = 'waiting';

-- One decision per task that waited for a person.
CREATE TABLE task_decisions (
    execution_id INTEGER PRIMARY KEY,
    decision     TEXT    NOT NULL CHECK (decision IN ('approved', 'rejected')),
    decided_by   TEXT    NOT NULL,
    decided_at   INTEGER NOT NULL,
    note         TEXT
) STRICT;
