-- Did the publisher prove its identity? The name does not tell: a token's identity may look like one that was only said.
-- What waits under a DID now may have been published without proof, so owners decide about it.
ALTER TABLE dag_definitions ADD COLUMN publisher_proven INTEGER NOT NULL DEFAULT 1 CHECK (publisher_proven IN (0, 1));
UPDATE dag_definitions SET publisher_proven = 0 WHERE status = 'pending' AND created_by GLOB 'did:*';

-- The same of the caller that started a run: it approves none of its tasks.
ALTER TABLE dag_runs ADD COLUMN starter_proven INTEGER NOT NULL DEFAULT 1 CHECK (starter_proven IN (0, 1));
UPDATE dag_runs SET starter_proven = 0 WHERE completed_at IS NULL AND created_by GLOB 'did:*';

-- The identity that held the last attempt under a lease which is over: the only one that may repeat its result.
ALTER TABLE task_executions ADD COLUMN last_identity TEXT;

-- Tokens that may still be good, found without reading those that were revoked.
CREATE INDEX tokens_live ON tokens (secret_hash, expires_at) WHERE revoked_at IS NULL;
