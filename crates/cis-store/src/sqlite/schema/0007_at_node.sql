-- Tasks of such a run start where its node says, not where somebody called from.
ALTER TABLE dag_runs ADD COLUMN at_node INTEGER NOT NULL DEFAULT 0 CHECK (at_node IN (0, 1));
-- What whoever asked for the run traces it by.
ALTER TABLE dag_runs ADD COLUMN traceparent TEXT;
