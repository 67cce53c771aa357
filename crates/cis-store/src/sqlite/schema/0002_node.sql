-- Who may call over the network. The secret itself is nowhere: only its hash.
CREATE TABLE tokens (
    token_id     TEXT    PRIMARY KEY,
    secret_hash  TEXT    NOT NULL UNIQUE CHECK (length(secret_hash) = 64),
    identity     TEXT    NOT NULL,
    -- Lists as JSON; no scopes means all of them.
    roles        TEXT    NOT NULL,
    scopes       TEXT,
    self_confirm INTEGER NOT NULL CHECK (self_confirm IN (0, 1)),
    created_by   TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    expires_at   INTEGER,
    revoked_at   INTEGER
) STRICT;

-- What waits for a person.
CREATE INDEX definitions_pending ON dag_definitions (created_at) WHERE status = 'pending';

-- Requests that were answered: the same one again gets the same answer.
CREATE TABLE idempotency_keys (
    caller       TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    request_hash TEXT    NOT NULL,
    answer       TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (caller, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_old ON idempotency_keys (created_at);
