-- Every call, keyed by platform, session, turn and call id. Times are Unix milliseconds by the database's clock.
CREATE TABLE calls (
    platform        TEXT    NOT NULL,
    session         TEXT    NOT NULL,
    turn            TEXT    NOT NULL,
    call_id         TEXT    NOT NULL,
    function        TEXT    NOT NULL,
    state           TEXT    NOT NULL,
    attempt         INTEGER NOT NULL,
    fence           INTEGER NOT NULL,
    until_at        INTEGER NOT NULL,
    deadline_at     INTEGER NOT NULL,
    success         INTEGER,
    body            BLOB,
    idempotency_key TEXT,
    generation      INTEGER NOT NULL DEFAULT 0,
    submissions     INTEGER NOT NULL DEFAULT 0,
    detail          TEXT,
    note            TEXT,
    approval        TEXT,
    -- JSON Lines, an entry each event.
    history         TEXT    NOT NULL DEFAULT '',
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    PRIMARY KEY (platform, session, turn, call_id)
) WITHOUT ROWID;
-- For listings. A column that never changes costs later updates nothing.
CREATE INDEX calls_created ON calls (created_at);

-- Sessions that are to be looked at again at a time; held while a scheduler publishes them.
CREATE TABLE due (
    platform    TEXT    NOT NULL,
    session     TEXT    NOT NULL,
    at          INTEGER NOT NULL,
    held_until  INTEGER NOT NULL DEFAULT 0,
    tries       INTEGER NOT NULL,
    accepted_at INTEGER NOT NULL,
    traceparent TEXT,
    PRIMARY KEY (platform, session)
) WITHOUT ROWID;
CREATE INDEX due_at ON due (at);

-- The embedded queue. `taken` rows are held by this process or were when it died; dead rows have a reason.
CREATE TABLE queue (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    message    TEXT    NOT NULL,
    deliveries INTEGER NOT NULL DEFAULT 0,
    taken      INTEGER NOT NULL DEFAULT 0,
    reason     TEXT,
    dead_at    INTEGER,
    redriven   INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX queue_ready ON queue (id) WHERE taken = 0 AND reason IS NULL;
CREATE INDEX queue_dead ON queue (id) WHERE reason IS NOT NULL;

-- Actions that are no function calls, from when they were first seen; forwarded_at is when their receiver took them.
CREATE TABLE actions (
    platform     TEXT    NOT NULL,
    session      TEXT    NOT NULL,
    turn         TEXT    NOT NULL,
    kind         TEXT    NOT NULL,
    id           TEXT    NOT NULL,
    seen_at      INTEGER NOT NULL,
    forwarded_at INTEGER,
    PRIMARY KEY (platform, session, turn, kind, id)
) WITHOUT ROWID;
CREATE INDEX actions_seen ON actions (seen_at);

-- Calls that wait or waited for a person's approval. Their arguments stand here only as long as nobody has decided.
CREATE TABLE approvals (
    platform     TEXT    NOT NULL,
    session      TEXT    NOT NULL,
    turn         TEXT    NOT NULL,
    call_id      TEXT    NOT NULL,
    function     TEXT    NOT NULL,
    arguments    TEXT,
    digest       BLOB    NOT NULL,
    asked_at     INTEGER NOT NULL,
    expires_at   INTEGER NOT NULL,
    decision     TEXT,
    decided_by   TEXT,
    decided_at   INTEGER,
    reason       TEXT,
    notify_at    INTEGER,
    notify_tries INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (platform, session, turn, call_id)
) WITHOUT ROWID;
CREATE INDEX approvals_open ON approvals (asked_at) WHERE decision IS NULL;

-- What every process that shares this store must know and nobody else: the key that signs result addresses.
CREATE TABLE secrets (
    name  TEXT NOT NULL PRIMARY KEY,
    value BLOB NOT NULL
);

-- Functions that no worker starts until an operator resumes them.
CREATE TABLE paused (
    function TEXT    NOT NULL PRIMARY KEY,
    since    INTEGER NOT NULL
);
