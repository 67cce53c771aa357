-- One identity may have only so many revisions that wait for a decision, so many bytes of them, and so many runs that are not
-- over. They are counted by indexes that hold no others: those of before, with the identity in front.
ALTER TABLE dag_definitions ADD COLUMN stored_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE dag_definitions SET stored_bytes = octet_length(tasks_json) WHERE status = 'pending';
DROP INDEX definitions_pending;
CREATE INDEX definitions_pending ON dag_definitions (created_by, stored_bytes) WHERE status = 'pending';

-- The identity that a run counts for: its starter, or the publisher of a DAG that was confirmed. Runs that are over count for none.
ALTER TABLE dag_runs ADD COLUMN counts_for TEXT;
UPDATE dag_runs SET counts_for = coalesce(
        (SELECT f.created_by FROM dag_confirmations c JOIN dag_definitions f USING (definition_key)
         WHERE c.definition_key = dag_runs.definition_key AND c.run_key = dag_runs.run_key), created_by)
    WHERE completed_at IS NULL;
DROP INDEX runs_unfinished;
CREATE INDEX runs_unfinished ON dag_runs (counts_for) WHERE completed_at IS NULL;

-- When the definition of a revision that was rejected or expired was removed: its row stays, and says so.
ALTER TABLE dag_definitions ADD COLUMN removed_at INTEGER CHECK (removed_at IS NULL OR status IN ('rejected', 'expired'));
CREATE INDEX definitions_removable ON dag_definitions (updated_at) WHERE status IN ('rejected', 'expired') AND removed_at IS NULL;

-- The public text of a large definition, as it is served.
CREATE TABLE public_definitions (
    definition_key INTEGER PRIMARY KEY REFERENCES dag_definitions,
    text           TEXT    NOT NULL
) STRICT;
