//! The statements of the ledger in SQLite. ?1 to ?4 are the call's key where there is one; instants are Unix milliseconds.

pub(super) const NOW: &str = "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER)";

pub(super) const READ: &str = "
    SELECT state, function, attempt, fence, until_at, deadline_at, success, body, idempotency_key, generation, submissions,
           note, approval
    FROM calls WHERE platform = ?1 AND session = ?2 AND turn = ?3 AND call_id = ?4";

pub(super) const TAKE: &str = "
    UPDATE calls
    SET state = ?5, fence = fence + 1, attempt = attempt + 1, until_at = ?6, updated_at = ?7,
        approval = CASE WHEN state = 'waiting' AND approval = 'pending' THEN 'expired' ELSE approval END,
        history = CASE WHEN length(history) > ?9 THEN history ELSE history || '{\"at\":' || ?7 || ',' || ?8 END
    WHERE platform = ?1 AND session = ?2 AND turn = ?3 AND call_id = ?4";

/// What a handler keeps for its next attempt, while it holds the call.
pub(super) const NOTE: &str = "
    UPDATE calls SET note = ?6
    WHERE platform = ?1 AND session = ?2 AND turn = ?3 AND call_id = ?4 AND fence = ?5 AND state = 'claimed'";

/// ?5 is now, ?6 the entry, ?7 the most that a history holds.
pub(super) const TELL: &str = "
    UPDATE calls SET history = history || '{\"at\":' || ?5 || ',' || ?6
    WHERE platform = ?1 AND session = ?2 AND turn = ?3 AND call_id = ?4 AND length(history) <= ?7";

/// Whoever holds the call finds a higher fence. A call whose time is over is answered otherwise.
pub(super) const ARRIVE: &str = "
    UPDATE calls SET state = 'completed', fence = fence + 1, success = ?5, body = ?6, idempotency_key = ?7,
                     updated_at = ?8,
                     history = CASE WHEN length(history) > ?10 THEN history ELSE history || '{\"at\":' || ?8 || ',' || ?9 END
    WHERE platform = ?1 AND session = ?2 AND turn = ?3 AND call_id = ?4 AND body IS NULL
      AND state IN ('claimed', 'retrying', 'waiting', 'interrupted') AND deadline_at > ?8
      AND (approval IS NULL OR approval <> 'pending')
    RETURNING function";

pub(super) const NEW_SECRET: &str = "INSERT INTO secrets (name, value) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING";

pub(super) const SECRET: &str = "SELECT value FROM secrets WHERE name = ?1";

pub(super) const UNFINISHED: &str = "
    SELECT turn, call_id,
           state, function, attempt, fence, until_at, deadline_at, success, body, idempotency_key, generation, submissions,
           note, approval
    FROM calls WHERE platform = ?1 AND session = ?2 AND state NOT IN ('settled', 'refused', 'obsolete')";

/// ?1 platform, ?2 first seen after, ?3 quiet since, ?4 limit.
pub(super) const STRANDED: &str = "
    SELECT DISTINCT session FROM calls AS c INDEXED BY calls_created
    WHERE created_at >= ?2 AND created_at <= ?3 AND platform = ?1
      AND state IN ('claimed', 'retrying', 'completed', 'submitted') AND until_at <= ?3 AND updated_at <= ?3
      AND NOT EXISTS (SELECT 1 FROM due AS d WHERE d.platform = c.platform AND d.session = c.session)
    LIMIT ?4";

/// ?1 platform, ?2 session, ?3 due before, ?4 now.
pub(super) const IN_HAND: &str = "
    SELECT EXISTS (SELECT 1 FROM due WHERE platform = ?1 AND session = ?2 AND at <= ?3)
        OR EXISTS (SELECT 1 FROM calls WHERE platform = ?1 AND session = ?2
                      AND (state = 'claimed' AND until_at > ?4
                           OR state = 'waiting' AND CASE WHEN approval = 'pending' THEN until_at ELSE deadline_at END > ?4))";

pub(super) const POSTPONE: &str = "
    INSERT INTO due (platform, session, at, tries, accepted_at, traceparent) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (platform, session) DO UPDATE
    SET at = CASE WHEN held_until > 0 THEN excluded.at ELSE min(at, excluded.at) END, held_until = 0,
        tries = excluded.tries";

pub(super) const DUE: &str = "
    UPDATE due SET held_until = ?2
    WHERE (platform, session) IN
          (SELECT platform, session FROM due WHERE at <= ?1 AND held_until <= ?1 ORDER BY at LIMIT ?3)
    RETURNING platform, session, tries, accepted_at, traceparent";

pub(super) const FORGET: &str = "DELETE FROM due WHERE platform = ?1 AND session = ?2 AND held_until = ?3";

pub(super) const OVERDUE: &str = "
    SELECT count(*) FROM due, (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) AS now)
    WHERE at <= now AND held_until <= now";
