-- What this store's review ids are derived from. The program draws it when it opens the file.
CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL CHECK (length(value) = 32)
) STRICT, WITHOUT ROWID;
-- What a person types to decide about it. It stays after the decision, so that the same decision again is the same answer.
ALTER TABLE dag_definitions ADD COLUMN review_id TEXT;
ALTER TABLE task_executions ADD COLUMN review_id TEXT;
CREATE UNIQUE INDEX definitions_review ON dag_definitions (review_id) WHERE review_id IS NOT NULL;
CREATE UNIQUE INDEX tasks_review ON task_executions (review_id) WHERE review_id IS NOT NULL;
ALTER TABLE dag_confirmations ADD COLUMN note TEXT;
