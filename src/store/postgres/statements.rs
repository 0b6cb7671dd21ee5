//! The statements, each over arrays with one element a call. `now` is the database's clock in Unix milliseconds; an `entry` is
//! what follows it in the call's history.

pub(super) const READ: &str = "
    SELECT state, function, attempt, fence, until_at, deadline_at, success, body, idempotency_key, generation, submissions,
           note, approval,
           (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now
    FROM calls WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4";

/// $5 and $6 are fence and state as they were read: whoever came between makes this miss.
pub(super) const TAKE: &str = "
    UPDATE calls
    SET state = $7, fence = fence + 1, attempt = attempt + 1, until_at = now + $8, updated_at = now,
        approval = CASE WHEN state = 'waiting' AND approval = 'pending' THEN 'expired' ELSE approval END,
        history = CASE WHEN length(history) > $10 THEN history ELSE history || '{\"at\":' || now || ',' || $9 END
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS clock
    WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4 AND fence = $5 AND state = $6";

/// What a handler keeps for its next attempt, while it holds the call.
pub(super) const NOTE: &str = "
    UPDATE calls SET note = $6
    WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4 AND fence = $5 AND state = 'claimed'";

/// $5 is the entry, $6 the most that a history holds.
pub(super) const TELL: &str = "
    UPDATE calls SET history = history || '{\"at\":' || now || ',' || $5
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS clock
    WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4 AND length(history) <= $6";

/// Whoever holds the call finds a higher fence. A call whose time is over is answered otherwise.
pub(super) const ARRIVE: &str = "
    UPDATE calls SET state = 'completed', fence = fence + 1, success = $5, body = $6, idempotency_key = $7,
                     updated_at = now,
                     history = CASE WHEN length(history) > $9 THEN history ELSE history || '{\"at\":' || now || ',' || $8 END
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS clock
    WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4 AND body IS NULL
      AND state IN ('claimed', 'retrying', 'waiting', 'interrupted') AND deadline_at > now
      AND (approval IS NULL OR approval <> 'pending')
    RETURNING function";

pub(super) const NEW_SECRET: &str = "INSERT INTO secrets (name, value) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING";

pub(super) const SECRET: &str = "SELECT value FROM secrets WHERE name = $1";

pub(super) const UNFINISHED: &str = "
    SELECT platform, session, turn, call_id,
           state, function, attempt, fence, until_at, deadline_at, success, body, idempotency_key, generation, submissions,
           note, approval
    FROM calls WHERE platform = $1 AND session = $2 AND state NOT IN ('settled', 'refused', 'obsolete')";

/// $1 platform, $2 reach, $3 quiet, $4 limit.
pub(super) const STRANDED: &str = "
    SELECT DISTINCT session
    FROM calls AS c, (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now OFFSET 0) AS clock
    WHERE created_at >= now - $2 AND created_at <= now - $3 AND platform = $1
      AND state IN ('claimed', 'retrying', 'completed', 'submitted') AND until_at <= now - $3 AND updated_at <= now - $3
      AND NOT EXISTS (SELECT FROM due AS d WHERE d.platform = c.platform AND d.session = c.session)
    LIMIT $4";

/// $1 and $2 are the sessions, $3 is within.
pub(super) const IN_HAND: &str = "
    SELECT place
    FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS asked (platform, session, place),
         (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS clock
    WHERE EXISTS (SELECT FROM due AS d
                  WHERE d.platform = asked.platform AND d.session = asked.session AND d.at <= now + $3)
       OR EXISTS (SELECT FROM calls AS c
                  WHERE c.platform = asked.platform AND c.session = asked.session
                    AND (c.state = 'claimed' AND c.until_at > now
                         OR c.state = 'waiting'
                            AND CASE WHEN c.approval = 'pending' THEN c.until_at ELSE c.deadline_at END > now))";

pub(super) const POSTPONE: &str = "
    INSERT INTO due AS d (platform, session, at, tries, accepted_at, traceparent)
    SELECT platform, session, now + after, tries, accepted_at, traceparent
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[])
             AS asked (platform, session, after, tries, accepted_at, traceparent),
         (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS clock
    ON CONFLICT (platform, session) DO UPDATE
    SET at = CASE WHEN d.held_until > 0 THEN excluded.at ELSE least(d.at, excluded.at) END, held_until = 0,
        tries = excluded.tries";

pub(super) const DUE: &str = "
    UPDATE due AS d SET held_until = now + $2
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS clock,
         (SELECT platform, session FROM due
          WHERE at <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
            AND held_until <= (extract(epoch FROM clock_timestamp()) * 1000)::bigint
          ORDER BY at LIMIT $1 FOR UPDATE SKIP LOCKED) AS ready
    WHERE d.platform = ready.platform AND d.session = ready.session
    RETURNING d.platform, d.session, d.held_until, d.tries, d.accepted_at, d.traceparent";

pub(super) const FORGET: &str = "
    DELETE FROM due AS d
    USING unnest($1::text[], $2::text[], $3::bigint[]) AS taken (platform, session, held_until)
    WHERE d.platform = taken.platform AND d.session = taken.session AND d.held_until = taken.held_until";

pub(super) const OVERDUE: &str = "
    SELECT count(*) FROM due, (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS clock
    WHERE at <= now AND held_until <= now";
