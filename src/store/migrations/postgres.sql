-- Every call, keyed by platform, session, turn and call id. Times are Unix milliseconds by the database's clock.
CREATE TABLE calls (
    platform        TEXT   NOT NULL,
    session         TEXT   NOT NULL,
    turn            TEXT   NOT NULL,
    call_id         TEXT   NOT NULL,
    function        TEXT   NOT NULL,
    state           TEXT   NOT NULL,
    attempt         BIGINT NOT NULL,
    fence           BIGINT NOT NULL,
    until_at        BIGINT NOT NULL,
    deadline_at     BIGINT NOT NULL,
    success         BOOLEAN,
    body            BYTEA,
    idempotency_key TEXT,
    generation      BIGINT NOT NULL DEFAULT 0,
    submissions     BIGINT NOT NULL DEFAULT 0,
    detail          TEXT,
    note            TEXT,
    approval        TEXT,
    -- JSON Lines, an entry each event.
    history         TEXT   NOT NULL DEFAULT '',
    created_at      BIGINT NOT NULL,
    updated_at      BIGINT NOT NULL,
    PRIMARY KEY (platform, session, turn, call_id)
) WITH (fillfactor = 30);
-- No index names a column that an update changes: updates stay within their page.
CREATE INDEX calls_created ON calls (created_at);

-- Sessions that are to be looked at again at a time; held while a scheduler publishes them.
CREATE TABLE due (
    platform    TEXT   NOT NULL,
    session     TEXT   NOT NULL,
    at          BIGINT NOT NULL,
    held_until  BIGINT NOT NULL DEFAULT 0,
    tries       BIGINT NOT NULL,
    accepted_at BIGINT NOT NULL,
    traceparent TEXT,
    PRIMARY KEY (platform, session)
);
CREATE INDEX due_at ON due (at);

-- Actions that are no function calls, from when they were first seen; forwarded_at is when their receiver took them.
CREATE TABLE actions (
    platform     TEXT   NOT NULL,
    session      TEXT   NOT NULL,
    turn         TEXT   NOT NULL,
    kind         TEXT   NOT NULL,
    id           TEXT   NOT NULL,
    seen_at      BIGINT NOT NULL,
    forwarded_at BIGINT,
    PRIMARY KEY (platform, session, turn, kind, id)
);
CREATE INDEX actions_seen ON actions (seen_at);

-- Calls that wait or waited for a person's approval. Their arguments stand here only as long as nobody has decided.
CREATE TABLE approvals (
    platform     TEXT   NOT NULL,
    session      TEXT   NOT NULL,
    turn         TEXT   NOT NULL,
    call_id      TEXT   NOT NULL,
    function     TEXT   NOT NULL,
    arguments    TEXT,
    digest       BYTEA  NOT NULL,
    asked_at     BIGINT NOT NULL,
    expires_at   BIGINT NOT NULL,
    decision     TEXT,
    decided_by   TEXT,
    decided_at   BIGINT,
    reason       TEXT,
    notify_at    BIGINT,
    notify_tries BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (platform, session, turn, call_id)
);
CREATE INDEX approvals_open ON approvals (asked_at) WHERE decision IS NULL;

-- What every process that shares this store must know and nobody else: the key that signs result addresses.
CREATE TABLE secrets (
    name  TEXT NOT NULL PRIMARY KEY,
    value BYTEA NOT NULL
);

-- Functions that no worker starts until an operator resumes them.
CREATE TABLE paused (
    function TEXT    NOT NULL PRIMARY KEY,
    since    BIGINT  NOT NULL
);
