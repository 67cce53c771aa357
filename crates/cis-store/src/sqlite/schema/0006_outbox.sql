-- What people are still to be told, and what was given up: a row per event and way. A notice that was given is gone.
CREATE TABLE outbox (
    position    INTEGER NOT NULL,
    way         TEXT    NOT NULL CHECK (way IN ('command', 'webhook')),
    occasion    TEXT    NOT NULL CHECK (occasion IN ('waiting', 'failed', 'completed')),
    tries       INTEGER NOT NULL DEFAULT 0,
    -- When it is tried next.
    due_at      INTEGER,
    given_up_at INTEGER,
    -- What the last try came to.
    problem     TEXT,
    PRIMARY KEY (position, way),
    CHECK ((due_at IS NULL) <> (given_up_at IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX outbox_due ON outbox (way, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_given_up ON outbox (given_up_at) WHERE given_up_at IS NOT NULL;
