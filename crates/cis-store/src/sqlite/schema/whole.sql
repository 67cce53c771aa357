-- What all migrations together make of an empty file, as SQLite itself writes it down: a new file begins with it.
CREATE TABLE clock (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    boot_id    TEXT    NOT NULL,
    started_at INTEGER NOT NULL,
    -- By how much, all in all. Keys are too many to move: they are kept by a clock without it.
    moved      INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE counters (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE dag_confirmations (
    definition_key INTEGER PRIMARY KEY REFERENCES dag_definitions,
    content_hash   TEXT    NOT NULL,
    decision       TEXT    NOT NULL CHECK (decision IN ('confirmed', 'rejected')),
    decided_by     TEXT    NOT NULL,
    decided_at     INTEGER NOT NULL,
    run_key        INTEGER
, note TEXT) STRICT;
CREATE TABLE dag_definitions (
    definition_key INTEGER PRIMARY KEY,
    dag_key        INTEGER NOT NULL REFERENCES dags,
    revision       INTEGER NOT NULL CHECK (revision > 0),
    content_hash   TEXT    NOT NULL CHECK (length(content_hash) = 64),
    tasks_json     TEXT    NOT NULL,
    tasks_count    INTEGER NOT NULL CHECK (tasks_count > 0),
    target_node    TEXT,
    status         TEXT    NOT NULL CHECK (status IN ('pending', 'confirmed') OR status IN ('rejected', 'expired')),
    version        INTEGER NOT NULL DEFAULT 1,
    created_by     TEXT    NOT NULL,
    created_at     INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL,
    expires_at     INTEGER, review_id TEXT, publisher_proven INTEGER NOT NULL DEFAULT 1 CHECK (publisher_proven IN (0, 1)), stored_bytes INTEGER NOT NULL DEFAULT 0, removed_at INTEGER CHECK (removed_at IS NULL OR status IN ('rejected', 'expired')),
    UNIQUE (dag_key, revision)
) STRICT;
CREATE TABLE dag_runs (
    run_key         INTEGER PRIMARY KEY,
    run_id          TEXT    NOT NULL UNIQUE,
    dag_key         INTEGER NOT NULL REFERENCES dags,
    definition_key  INTEGER NOT NULL REFERENCES dag_definitions,
    number          INTEGER NOT NULL,
    status          TEXT    NOT NULL CHECK (status IN ('queued', 'running') OR status IN ('completed', 'failed')
                                    OR status IN ('cancelling', 'cancelled') OR status IN ('timed_out', 'compensating')),
    version         INTEGER NOT NULL DEFAULT 1,
    stop_reason     TEXT    CHECK (stop_reason IN ('cancel', 'owner_gone') OR stop_reason IN ('timeout', 'first_success')),
    params_json     TEXT    NOT NULL,
    priority        INTEGER NOT NULL,
    max_parallel    INTEGER CHECK (max_parallel > 0),
    attached        INTEGER NOT NULL CHECK (attached IN (0, 1)),
    resumed_from    INTEGER,
    fates           TEXT,
    created_by      TEXT    NOT NULL,
    created_at      INTEGER NOT NULL,
    started_at      INTEGER,
    completed_at    INTEGER,
    deadline        INTEGER,
    first_position  INTEGER NOT NULL,
    first_execution INTEGER NOT NULL,
    tasks_total     INTEGER NOT NULL CHECK (tasks_total > 0),
    tasks_left      INTEGER NOT NULL CHECK (tasks_left >= 0),
    completed       INTEGER NOT NULL DEFAULT 0,
    failed          INTEGER NOT NULL DEFAULT 0,
    debts           INTEGER NOT NULL DEFAULT 0,
    cancelled       INTEGER NOT NULL DEFAULT 0,
    skipped         INTEGER NOT NULL DEFAULT 0,
    sinks_completed INTEGER NOT NULL DEFAULT 0,
    -- Tasks that are claimable or live; kept only where max_parallel is set, and never above it.
    window          INTEGER NOT NULL DEFAULT 0 CHECK (window >= 0), paused INTEGER NOT NULL DEFAULT 0 CHECK (paused IN (0, 1)), at_node INTEGER NOT NULL DEFAULT 0 CHECK (at_node IN (0, 1)), traceparent TEXT, last_position INTEGER, starter_proven INTEGER NOT NULL DEFAULT 1 CHECK (starter_proven IN (0, 1)), counts_for TEXT,
    UNIQUE (dag_key, number),
    CHECK ((completed_at IS NOT NULL) = (status IN ('completed', 'failed') OR status IN ('cancelled', 'timed_out'))),
    CHECK (max_parallel IS NULL OR window <= max_parallel)
) STRICT;
CREATE TABLE dags (
    dag_key        INTEGER PRIMARY KEY,
    scope          TEXT    NOT NULL,
    dag_id         TEXT    NOT NULL,
    revisions      INTEGER NOT NULL DEFAULT 0,
    runs           INTEGER NOT NULL DEFAULT 0,
    latest_run     INTEGER,
    updated_at     INTEGER NOT NULL,
    UNIQUE (dag_id, scope)
) STRICT;
CREATE TABLE events (
    position       INTEGER PRIMARY KEY,
    run_key        INTEGER,
    -- The task it is about; NULL for the run itself.
    task_ix        INTEGER,
    -- The revision it is about, where it is not about a run.
    definition_key INTEGER,
    version        INTEGER NOT NULL,
    step           TEXT    NOT NULL,
    status         TEXT    NOT NULL,
    at             INTEGER NOT NULL,
    data           TEXT, actor TEXT, subject_key INTEGER,
    CHECK (((run_key IS NULL) <> (definition_key IS NULL) AND subject_key IS NULL)
        OR (run_key IS NULL AND definition_key IS NULL AND subject_key IS NOT NULL))
) STRICT;
CREATE TABLE idempotency_keys (
    caller       TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    request_hash TEXT    NOT NULL,
    answer       TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (caller, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE "leases" (
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
CREATE TABLE outbox (
    position    INTEGER NOT NULL,
    way         TEXT    NOT NULL CHECK (way IN ('command', 'webhook')),
    occasion    TEXT    NOT NULL CHECK (occasion IN ('waiting', 'failed') OR occasion = 'completed'),
    tries       INTEGER NOT NULL DEFAULT 0,
    -- When it is tried next.
    due_at      INTEGER,
    given_up_at INTEGER,
    -- What the last try came to.
    problem     TEXT,
    PRIMARY KEY (position, way),
    CHECK ((due_at IS NULL) <> (given_up_at IS NULL))
) STRICT, WITHOUT ROWID;
CREATE TABLE paused_scopes (
    scope     TEXT PRIMARY KEY,
    paused_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE pruned_runs (
    run_key   INTEGER PRIMARY KEY,
    run_id    TEXT    NOT NULL UNIQUE,
    dag_key   INTEGER NOT NULL REFERENCES dags,
    number    INTEGER NOT NULL,
    status    TEXT    NOT NULL CHECK (status IN ('completed', 'failed') OR status IN ('cancelled', 'timed_out')),
    ended_at  INTEGER NOT NULL,
    pruned_at INTEGER NOT NULL,
    UNIQUE (dag_key, number)
) STRICT;
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
CREATE TABLE public_definitions (
    definition_key INTEGER PRIMARY KEY REFERENCES dag_definitions,
    text           TEXT    NOT NULL
) STRICT;
CREATE TABLE "queues" (
    queue_key INTEGER PRIMARY KEY,
    kind      TEXT NOT NULL,
    scope     TEXT NOT NULL,
    needs     TEXT NOT NULL,
    UNIQUE (kind, scope, needs)
) STRICT;
CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value BLOB NOT NULL CHECK (length(value) = 32)
) STRICT, WITHOUT ROWID;
CREATE TABLE "steps" (
    step_key INTEGER PRIMARY KEY,
    run_key  INTEGER NOT NULL,
    kind     TEXT    NOT NULL CHECK (kind IN ('create', 'spread') OR kind IN ('stop', 'pause')),
    -- The task whose end is still to be told to its dependents.
    task_ix  INTEGER,
    impact   TEXT CHECK (impact IN ('fine', 'failed') OR impact = 'blocked'),
    -- How far it has got.
    cursor   INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE TABLE subjects (
    subject_key INTEGER PRIMARY KEY,
    kind        TEXT NOT NULL,
    scope       TEXT NOT NULL,
    name        TEXT NOT NULL,
    UNIQUE (kind, scope, name)
) STRICT;
CREATE TABLE task_decisions (
    execution_id INTEGER PRIMARY KEY,
    decision     TEXT    NOT NULL CHECK (decision IN ('approved', 'rejected')),
    decided_by   TEXT    NOT NULL,
    decided_at   INTEGER NOT NULL,
    note         TEXT
) STRICT;
CREATE TABLE task_executions (
    execution_id   INTEGER PRIMARY KEY,
    run_key        INTEGER NOT NULL,
    task_id        TEXT    NOT NULL,
    status         TEXT    NOT NULL CHECK (status IN ('pending', 'ready') OR status IN ('running', 'completed')
                                   OR status IN ('failed', 'skipped') OR status IN ('cancelling', 'cancelled')
                                   OR status IN ('waiting', 'timed_out')),
    version        INTEGER NOT NULL DEFAULT 1,
    attempt        INTEGER NOT NULL DEFAULT 0,
    free_tries     INTEGER NOT NULL DEFAULT 0,
    deps_left      INTEGER NOT NULL CHECK (deps_left >= 0),
    deps_failed    INTEGER NOT NULL DEFAULT 0,
    deps_blocked   INTEGER NOT NULL DEFAULT 0,
    -- While ready: 0 claimable, 1 held back by max_parallel, 2 held back until not_before.
    hold           INTEGER NOT NULL DEFAULT 0 CHECK (hold BETWEEN 0 AND 2),
    queue_key      INTEGER NOT NULL,
    priority       INTEGER NOT NULL,
    ready_order    INTEGER NOT NULL DEFAULT 0,
    not_before     INTEGER,
    queue_deadline INTEGER,
    fence          INTEGER,
    holder         TEXT,
    claimed_at     INTEGER,
    started_at     INTEGER,
    completed_at   INTEGER,
    exit_code      INTEGER,
    cause          TEXT,
    output         TEXT,
    error          TEXT,
    outputs_json   TEXT,
    log_bytes      INTEGER NOT NULL DEFAULT 0,
    log_cut_bytes  INTEGER NOT NULL DEFAULT 0, asked_at INTEGER CHECK (status <> 'waiting' OR asked_at IS NOT NULL), answer_deadline INTEGER CHECK (answer_deadline IS NULL OR asked_at IS NOT NULL), review_id TEXT, last_identity TEXT,
    CHECK (status NOT IN ('running', 'cancelling') OR (fence IS NOT NULL AND holder IS NOT NULL)),
    CHECK (status = 'pending' OR status IN ('cancelled', 'skipped') OR deps_left = 0),
    CHECK (hold = 0 OR status = 'ready'),
    CHECK (hold <> 2 OR not_before IS NOT NULL)
) STRICT;
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
CREATE INDEX dags_recent ON dags (updated_at);
CREATE INDEX definitions_expiring ON dag_definitions (expires_at) WHERE status = 'pending' AND expires_at IS NOT NULL;
CREATE INDEX definitions_pending ON dag_definitions (created_by, stored_bytes) WHERE status = 'pending';
CREATE INDEX definitions_removable ON dag_definitions (updated_at) WHERE status IN ('rejected', 'expired') AND removed_at IS NULL;
CREATE UNIQUE INDEX definitions_review ON dag_definitions (review_id) WHERE review_id IS NOT NULL;
CREATE INDEX keys_old ON idempotency_keys (created_at);
CREATE INDEX leases_expiring ON leases (subject_kind, expires);
CREATE INDEX leases_overdue ON leases (subject_kind, deadline) WHERE deadline IS NOT NULL;
CREATE INDEX outbox_due ON outbox (way, due_at) WHERE due_at IS NOT NULL;
CREATE INDEX outbox_given_up ON outbox (given_up_at) WHERE given_up_at IS NOT NULL;
CREATE INDEX runs_due ON dag_runs (deadline) WHERE completed_at IS NULL AND deadline IS NOT NULL;
CREATE INDEX runs_resuming ON dag_runs (resumed_from) WHERE completed_at IS NULL AND resumed_from IS NOT NULL;
CREATE INDEX runs_unfinished ON dag_runs (counts_for) WHERE completed_at IS NULL;
CREATE INDEX steps_of_run ON steps (run_key);
CREATE INDEX tasks_backing_off ON task_executions (not_before) WHERE status = 'ready' AND hold = 2;
CREATE INDEX tasks_claimable ON task_executions (queue_key, priority DESC, ready_order)
    WHERE status = 'ready' AND hold = 0;
CREATE INDEX tasks_held ON task_executions (run_key, priority DESC, ready_order)
    WHERE status = 'ready' AND hold = 1;
CREATE INDEX tasks_live ON task_executions (run_key) WHERE status IN ('running', 'cancelling');
CREATE INDEX tasks_queue_due ON task_executions (queue_deadline)
    WHERE status = 'ready' AND queue_deadline IS NOT NULL;
CREATE UNIQUE INDEX tasks_review ON task_executions (review_id) WHERE review_id IS NOT NULL;
CREATE INDEX tasks_waiting ON task_executions (answer_deadline) WHERE status = 'waiting';
CREATE INDEX tokens_live ON tokens (secret_hash, expires_at) WHERE revoked_at IS NULL;

INSERT INTO counters VALUES ('coordinator_epoch', 0), ('next_execution', 1), ('log_floor', 0);
