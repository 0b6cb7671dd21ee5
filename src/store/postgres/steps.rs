//! Steps of many calls in one statement: one trip, one commit, and rows found by key.

use std::collections::HashSet;

use sqlx::{PgConnection, Row as _};

use super::{Keys, clean, read_key};
use crate::store::{
    Claim, Result, Step, history,
    judge::{Move, in_millis},
    step::Sorted,
};

/// $1 to $8 are claims, $9 to $19 completions, $20 to $30 marks, each an array with an element a call; $31 is the most that
/// a history holds. An `entry` is what follows `now` in the call's history. A higher generation replaces a stored result
/// that the platform found too large.
const STEPS: &str = "
    WITH clock AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now),
    claimed AS (
        INSERT INTO calls (platform, session, turn, call_id, function, state, attempt, fence,
                           until_at, deadline_at, created_at, updated_at, history)
        SELECT platform, session, turn, call_id, function, 'claimed', 1, 1, now + lease, now + deadline, now, now,
               '{\"at\":' || now || ',' || entry
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::text[])
                 AS asked (platform, session, turn, call_id, function, lease, deadline, entry),
             clock
        ON CONFLICT (platform, session, turn, call_id) DO NOTHING
        RETURNING platform, session, turn, call_id),
    completed AS (
        UPDATE calls AS c
        SET state = 'completed', success = given.success, body = given.body, idempotency_key = given.idempotency_key,
            generation = given.generation, detail = given.detail, updated_at = now,
            history = CASE WHEN length(c.history) > $31 THEN c.history
                           ELSE c.history || '{\"at\":' || now || ',' || given.entry END
        FROM unnest($9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[], $14::boolean[], $15::bytea[],
                    $16::text[], $17::bigint[], $18::text[], $19::text[])
                 WITH ORDINALITY AS given (platform, session, turn, call_id, fence, success, body, idempotency_key,
                                           generation, detail, entry, place),
             clock
        WHERE c.platform = given.platform AND c.session = given.session AND c.turn = given.turn
          AND c.call_id = given.call_id AND c.fence = given.fence
          AND (c.state = 'claimed' OR (c.state IN ('completed', 'submitted') AND given.generation > c.generation))
        RETURNING place),
    marked AS (
        UPDATE calls AS c
        SET state = given.state, until_at = now + given.until, submissions = c.submissions + given.accepted,
            detail = coalesce(given.detail, c.detail), attempt = c.attempt + given.attempts, updated_at = now,
            history = CASE WHEN given.entry IS NULL OR length(c.history) > $31 THEN c.history
                           ELSE c.history || '{\"at\":' || now || ',' || given.entry END
        FROM unnest($20::text[], $21::text[], $22::text[], $23::text[], $24::bigint[], $25::text[], $26::bigint[],
                    $27::bigint[], $28::text[], $29::bigint[], $30::text[])
                 WITH ORDINALITY AS given (platform, session, turn, call_id, fence, state, until, accepted, detail,
                                           attempts, entry, place),
             clock
        WHERE c.platform = given.platform AND c.session = given.session AND c.turn = given.turn
          AND c.call_id = given.call_id AND c.fence = given.fence AND c.state <> 'settled'
          AND (given.state <> 'claimed' OR c.state = 'claimed')
        RETURNING place)
    SELECT 0 AS kind, 0::bigint AS place, platform, session, turn, call_id FROM claimed
    UNION ALL SELECT 1, place, NULL, NULL, NULL, NULL FROM completed
    UNION ALL SELECT 2, place, NULL, NULL, NULL, NULL FROM marked";

/// Which steps were taken.
pub(super) async fn run(db: &mut PgConnection, steps: &[Step]) -> Result<Vec<bool>> {
    let sorted = Sorted::new(steps);
    let Sorted { completions, marks, .. } = &sorted;
    // In one order everywhere: two workers that claim the same calls wait for each other, not in a circle.
    let mut claims = sorted.claims.clone();
    claims.sort_by(|a, b| a.key.cmp(&b.key));
    let moves: Vec<Move> = marks.iter().map(|m| Move::of(m.transition)).collect();
    let [asked, completed, marked] = [
        Keys::of(claims.iter().map(|r| &r.key)),
        Keys::of(completions.iter().map(|c| &c.stored.key)),
        Keys::of(marks.iter().map(|m| &m.key)),
    ];
    let query = asked
        .bind(sqlx::query(STEPS))
        .bind(claims.iter().map(|r| r.function.as_str()).collect::<Vec<_>>())
        .bind(claims.iter().map(|r| in_millis(r.lease)).collect::<Vec<_>>())
        .bind(claims.iter().map(|r| in_millis(r.deadline)).collect::<Vec<_>>())
        .bind(claims.iter().map(|r| clean(&history::claimed(r, &Claim::Run(r.first_lease())))).collect::<Vec<_>>());
    let query = completed
        .bind(query)
        .bind(completions.iter().map(|c| c.stored.fence).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| c.stored.success).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| c.stored.submission.body.as_slice()).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| c.stored.submission.idempotency_key.as_str()).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| i64::from(c.stored.generation)).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| c.detail.as_deref().map(clean)).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| clean(&history::completed(c))).collect::<Vec<_>>());
    let query = marked
        .bind(query)
        .bind(marks.iter().map(|m| m.fence).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.state).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.until).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.accepted).collect::<Vec<_>>())
        .bind(marks.iter().map(|m| m.detail.as_deref().map(clean)).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.attempts).collect::<Vec<_>>())
        .bind(marks.iter().map(|m| history::marked(m).as_deref().map(clean)).collect::<Vec<_>>());

    let mut fresh = HashSet::new();
    let mut done = [vec![false; completions.len()], vec![false; marks.len()]];
    for row in query.bind(history::MOST).fetch_all(db).await? {
        match usize::try_from(row.try_get::<i32, _>("kind")?).unwrap_or(0).checked_sub(1) {
            None => drop(fresh.insert(read_key(&row)?)),
            Some(kind) => {
                let place = usize::try_from(row.try_get::<i64, _>("place")? - 1).unwrap_or(usize::MAX);
                if let Some(flag) = done.get_mut(kind).and_then(|done| done.get_mut(place)) {
                    *flag = true;
                }
            }
        }
    }
    let claimed: Vec<bool> = sorted.claims.iter().map(|request| fresh.remove(&request.key)).collect();
    Ok(sorted.answers(&claimed, &done[0], &done[1]))
}
