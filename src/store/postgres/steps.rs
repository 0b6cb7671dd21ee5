//! Steps of many calls in one statement: one trip, one commit, and rows found by key.

use std::{collections::HashSet, sync::LazyLock};

use sqlx::{PgConnection, Row as _};

use super::{Keys, PgQuery, clean, read_key};
use crate::store::{
    Claim, ClaimRequest, Completion, Mark, Result, Step, history,
    judge::{Move, in_millis},
    step::Sorted,
};

const CLOCK: &str = "WITH clock AS MATERIALIZED (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now)";

/// Each `$` is followed by a number within its part: parts stand alone or together. An `entry` is what follows `now` in the
/// call's history.
const CLAIMED: Part = Part {
    parameters: 8,
    with: "
    claimed AS (
        INSERT INTO calls (platform, session, turn, call_id, function, state, attempt, fence,
                           until_at, deadline_at, created_at, updated_at, history)
        SELECT platform, session, turn, call_id, function, 'claimed', 1, 1, now + lease, now + deadline, now, now,
               '{\"at\":' || now || ',' || entry
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::bigint[], $7::bigint[], $8::text[])
                 AS asked (platform, session, turn, call_id, function, lease, deadline, entry),
             clock
        ON CONFLICT (platform, session, turn, call_id) DO NOTHING
        RETURNING platform, session, turn, call_id)",
    select: "SELECT 0 AS kind, 0::bigint AS place, platform, session, turn, call_id FROM claimed",
};

/// $12 is the most that a history holds. A higher generation replaces a stored result that the platform found too large.
const COMPLETED: Part = Part {
    parameters: 12,
    with: "
    completed AS (
        UPDATE calls AS c
        SET state = 'completed', success = given.success, body = given.body, idempotency_key = given.idempotency_key,
            generation = given.generation, detail = given.detail, updated_at = now,
            history = CASE WHEN length(c.history) > $12 THEN c.history
                           ELSE c.history || '{\"at\":' || now || ',' || given.entry END
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::boolean[], $7::bytea[],
                    $8::text[], $9::bigint[], $10::text[], $11::text[])
                 WITH ORDINALITY AS given (platform, session, turn, call_id, fence, success, body, idempotency_key,
                                           generation, detail, entry, place),
             clock
        WHERE c.platform = given.platform AND c.session = given.session AND c.turn = given.turn
          AND c.call_id = given.call_id AND c.fence = given.fence
          AND (c.state = 'claimed' OR (c.state IN ('completed', 'submitted') AND given.generation > c.generation))
        RETURNING place)",
    select: "SELECT 1 AS kind, place, NULL AS platform, NULL AS session, NULL AS turn, NULL AS call_id FROM completed",
};

/// $12 is the most that a history holds.
const MARKED: Part = Part {
    parameters: 12,
    with: "
    marked AS (
        UPDATE calls AS c
        SET state = given.state, until_at = now + given.until, submissions = c.submissions + given.accepted,
            detail = coalesce(given.detail, c.detail), attempt = c.attempt + given.attempts, updated_at = now,
            history = CASE WHEN given.entry IS NULL OR length(c.history) > $12 THEN c.history
                           ELSE c.history || '{\"at\":' || now || ',' || given.entry END
        FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::bigint[], $6::text[], $7::bigint[],
                    $8::bigint[], $9::text[], $10::bigint[], $11::text[])
                 WITH ORDINALITY AS given (platform, session, turn, call_id, fence, state, until, accepted, detail,
                                           attempts, entry, place),
             clock
        WHERE c.platform = given.platform AND c.session = given.session AND c.turn = given.turn
          AND c.call_id = given.call_id AND c.fence = given.fence AND c.state <> 'settled'
          AND (given.state <> 'claimed' OR c.state = 'claimed')
        RETURNING place)",
    select: "SELECT 2 AS kind, place, NULL AS platform, NULL AS session, NULL AS turn, NULL AS call_id FROM marked",
};

/// What a statement does for the steps of one kind.
struct Part {
    parameters: usize,
    with: &'static str,
    select: &'static str,
}

/// A statement for each choice of kinds: one step alone should not pay for three.
static STATEMENTS: LazyLock<[String; 8]> = LazyLock::new(|| {
    std::array::from_fn(|kinds| {
        let (mut with, mut selects, mut before) = (CLOCK.to_owned(), Vec::new(), 0);
        for (_, part) in [CLAIMED, COMPLETED, MARKED].iter().enumerate().filter(|(kind, _)| kinds >> kind & 1 == 1) {
            with.push(',');
            with.push_str(&renumbered(part.with, before));
            selects.push(part.select);
            before += part.parameters;
        }
        format!("{with} {}", selects.join(" UNION ALL "))
    })
});

/// With every parameter's number raised.
fn renumbered(sql: &str, by: usize) -> String {
    let mut pieces = sql.split('$');
    let mut renumbered = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let digits = piece.bytes().take_while(u8::is_ascii_digit).count();
        let number = piece[..digits].parse::<usize>().unwrap_or_default();
        renumbered.push_str(&format!("${}{}", number + by, &piece[digits..]));
    }
    renumbered
}

/// Which steps were taken.
pub(super) async fn run(db: &mut PgConnection, steps: &[Step]) -> Result<Vec<bool>> {
    let sorted = Sorted::new(steps);
    let Sorted { claims, completions, marks, .. } = &sorted;
    let kinds = [claims.is_empty(), completions.is_empty(), marks.is_empty()];
    let choice = kinds.iter().enumerate().fold(0, |choice, (kind, none)| choice | usize::from(!none) << kind);
    let mut query = sqlx::query(STATEMENTS[choice].as_str());
    if !claims.is_empty() {
        query = bind_claims(query, claims);
    }
    if !completions.is_empty() {
        query = bind_completions(query, completions);
    }
    if !marks.is_empty() {
        query = bind_marks(query, marks);
    }

    let mut fresh = HashSet::new();
    let mut done = [vec![false; completions.len()], vec![false; marks.len()]];
    for row in query.fetch_all(db).await? {
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

/// In one order everywhere: two workers that claim the same calls wait for each other, not in a circle.
fn bind_claims<'q>(query: PgQuery<'q>, claims: &[&'q ClaimRequest]) -> PgQuery<'q> {
    let mut claims = claims.to_vec();
    claims.sort_by(|a, b| a.key.cmp(&b.key));
    Keys::of(claims.iter().map(|r| &r.key))
        .bind(query)
        .bind(claims.iter().map(|r| r.function.as_str()).collect::<Vec<_>>())
        .bind(claims.iter().map(|r| in_millis(r.lease)).collect::<Vec<_>>())
        .bind(claims.iter().map(|r| in_millis(r.deadline)).collect::<Vec<_>>())
        .bind(claims.iter().map(|r| clean(history::claimed(r, &Claim::Run(r.first_lease())))).collect::<Vec<_>>())
}

fn bind_completions<'q>(query: PgQuery<'q>, completions: &[&'q Completion]) -> PgQuery<'q> {
    Keys::of(completions.iter().map(|c| &c.stored.key))
        .bind(query)
        .bind(completions.iter().map(|c| c.stored.fence).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| c.stored.success).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| c.stored.submission.body.as_slice()).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| c.stored.submission.idempotency_key.as_str()).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| i64::from(c.stored.generation)).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| c.detail.as_deref().map(clean)).collect::<Vec<_>>())
        .bind(completions.iter().map(|c| clean(history::completed(c))).collect::<Vec<_>>())
        .bind(history::MOST)
}

fn bind_marks<'q>(query: PgQuery<'q>, marks: &[&'q Mark]) -> PgQuery<'q> {
    let moves: Vec<Move> = marks.iter().map(|m| Move::of(m.transition)).collect();
    Keys::of(marks.iter().map(|m| &m.key))
        .bind(query)
        .bind(marks.iter().map(|m| m.fence).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.state).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.until).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.accepted).collect::<Vec<_>>())
        .bind(marks.iter().map(|m| m.detail.as_deref().map(clean)).collect::<Vec<_>>())
        .bind(moves.iter().map(|m| m.attempts).collect::<Vec<_>>())
        .bind(marks.iter().map(|m| history::marked(m).map(clean)).collect::<Vec<_>>())
        .bind(history::MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The highest number of a parameter, and whether every number up to it is there.
    fn parameters(sql: &str) -> (usize, bool) {
        let number = |piece: &str| piece.split(|c: char| !c.is_ascii_digit()).next().and_then(|n| n.parse().ok());
        let numbers: HashSet<usize> = sql.split('$').skip(1).filter_map(number).collect();
        let highest = numbers.iter().copied().max().unwrap_or(0);
        (highest, numbers.len() == highest)
    }

    #[test]
    fn every_choice_of_parts_numbers_its_parameters_from_one() {
        for (choice, sql) in STATEMENTS.iter().enumerate().skip(1) {
            let parts = [CLAIMED, COMPLETED, MARKED];
            let wanted = parts.iter().enumerate().filter(|(kind, _)| choice >> kind & 1 == 1);
            assert_eq!(parameters(sql), (wanted.map(|(_, part)| part.parameters).sum(), true), "{sql}");
        }
    }
}
