//! Statements over many rows. Each statement is a trip to the connection's thread and back, so a batch takes few of them.

use std::{collections::HashSet, sync::OnceLock};

use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::{SqliteQuery, bind_key};
use crate::{
    session::{CallKey, SessionKey},
    store::{
        Claim, ClaimRequest, Completion, Mark, Result, Step, history,
        judge::{Move, in_millis},
        step::Sorted,
    },
};

/// A batch is cut into powers of two of rows, so that few texts are enough for all lengths and each is prepared once.
const SIZES: usize = 7;

/// A statement over as many rows as it is given: `{rows}` in its text stands for them, `{most}` for what a history holds.
struct Batch {
    text: &'static str,
    columns: usize,
    texts: [OnceLock<String>; SIZES],
}

impl Batch {
    const fn new(columns: usize, text: &'static str) -> Self {
        Self { text, columns, texts: [const { OnceLock::new() }; SIZES] }
    }

    /// The statement for 2^`size` rows.
    fn sql(&'static self, size: usize) -> &'static str {
        self.texts[size].get_or_init(|| {
            let row = format!("({})", vec!["?"; self.columns].join(","));
            let text = self.text.replace("{rows}", &vec![row; 1 << size].join(","));
            text.replace("{most}", &history::MOST.to_string())
        })
    }

    /// Runs it for all of `items`, and says which of them it touched. At most one item a call.
    async fn run<I: Item>(&'static self, db: &mut SqliteConnection, items: &[&I]) -> Result<Vec<bool>> {
        let mut touched = HashSet::new();
        let mut rest = items;
        while let Some(largest) = rest.len().checked_ilog2() {
            let size = (largest as usize).min(SIZES - 1);
            let (chunk, others) = rest.split_at(1 << size);
            rest = others;
            let query = chunk.iter().fold(sqlx::query(self.sql(size)), |query, item| item.bind(query));
            for row in query.fetch_all(&mut *db).await? {
                touched.insert(read_touched(&row)?);
            }
        }
        Ok(items.iter().map(|item| touched.remove(&(item.key().clone(), item.fence()))).collect())
    }
}

/// What a batch has a row of.
trait Item {
    fn key(&self) -> &CallKey;
    /// The fence that its row has afterwards.
    fn fence(&self) -> i64;
    fn bind<'q>(&'q self, query: SqliteQuery<'q>) -> SqliteQuery<'q>;
}

fn read_touched(row: &SqliteRow) -> Result<(CallKey, i64)> {
    let session = SessionKey::new(row.try_get::<&str, _>(0)?, row.try_get::<&str, _>(1)?);
    Ok((CallKey::new(session, row.try_get::<&str, _>(2)?, row.try_get::<&str, _>(3)?), row.try_get(4)?))
}

static CLAIM: Batch = Batch::new(
    8,
    "WITH asked (platform, session, turn, call_id, function, lease, deadline, entry) AS (VALUES {rows}),
          clock (now) AS (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER))
     INSERT INTO calls (platform, session, turn, call_id, function, state, attempt, fence,
                        until_at, deadline_at, created_at, updated_at, history)
     SELECT platform, session, turn, call_id, function, 'claimed', 1, 1, now + lease, now + deadline, now, now,
            '{\"at\":' || now || ',' || entry
     FROM asked, clock WHERE true
     ON CONFLICT (platform, session, turn, call_id) DO NOTHING
     RETURNING platform, session, turn, call_id, fence",
);

/// A higher generation replaces a stored result that the platform found too large.
static COMPLETE: Batch = Batch::new(
    11,
    "WITH given (platform, session, turn, call_id, fence, success, body, idempotency_key, generation, detail, entry)
              AS (VALUES {rows}),
          clock (now) AS (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER))
     UPDATE calls
     SET state = 'completed', success = given.success, body = given.body, idempotency_key = given.idempotency_key,
         generation = given.generation, detail = given.detail, updated_at = now,
         history = CASE WHEN length(history) > {most} THEN history ELSE history || '{\"at\":' || now || ',' || entry END
     FROM given, clock
     WHERE calls.platform = given.platform AND calls.session = given.session AND calls.turn = given.turn
       AND calls.call_id = given.call_id AND calls.fence = given.fence
       AND (calls.state = 'claimed'
            OR (calls.state IN ('completed', 'submitted') AND given.generation > calls.generation))
     RETURNING platform, session, turn, call_id, fence",
);

static MARK: Batch = Batch::new(
    11,
    "WITH given (platform, session, turn, call_id, fence, state, until, accepted, detail, attempts, entry)
              AS (VALUES {rows}),
          clock (now) AS (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER))
     UPDATE calls
     SET state = given.state, until_at = now + given.until, submissions = calls.submissions + given.accepted,
         detail = coalesce(given.detail, calls.detail), updated_at = now, attempt = calls.attempt + given.attempts,
         history = CASE WHEN entry IS NULL OR length(history) > {most} THEN history
                        ELSE history || '{\"at\":' || now || ',' || entry END
     FROM given, clock
     WHERE calls.platform = given.platform AND calls.session = given.session AND calls.turn = given.turn
       AND calls.call_id = given.call_id AND calls.fence = given.fence
       AND calls.state <> 'settled' AND (given.state <> 'claimed' OR calls.state = 'claimed')
     RETURNING platform, session, turn, call_id, fence",
);

/// Which steps were taken.
pub(super) async fn take(db: &mut SqliteConnection, steps: &[Step]) -> Result<Vec<bool>> {
    let sorted = Sorted::new(steps);
    let claims = CLAIM.run(db, &sorted.claims).await?;
    let completions = COMPLETE.run(db, &sorted.completions).await?;
    let marks = MARK.run(db, &sorted.marks).await?;
    Ok(sorted.answers(&claims, &completions, &marks))
}

impl Item for ClaimRequest {
    fn key(&self) -> &CallKey {
        &self.key
    }

    fn fence(&self) -> i64 {
        1
    }

    fn bind<'q>(&'q self, query: SqliteQuery<'q>) -> SqliteQuery<'q> {
        bind_key(query, &self.key)
            .bind(&self.function)
            .bind(in_millis(self.lease))
            .bind(in_millis(self.deadline))
            .bind(history::claimed(self, &Claim::Run(self.first_lease())))
    }
}

impl Item for Completion {
    fn key(&self) -> &CallKey {
        &self.stored.key
    }

    fn fence(&self) -> i64 {
        self.stored.fence
    }

    fn bind<'q>(&'q self, query: SqliteQuery<'q>) -> SqliteQuery<'q> {
        let stored = &self.stored;
        bind_key(query, &stored.key)
            .bind(stored.fence)
            .bind(stored.success)
            .bind(stored.submission.body.as_slice())
            .bind(&stored.submission.idempotency_key)
            .bind(i64::from(stored.generation))
            .bind(&self.detail)
            .bind(history::completed(self))
    }
}

impl Item for Mark {
    fn key(&self) -> &CallKey {
        &self.key
    }

    fn fence(&self) -> i64 {
        self.fence
    }

    fn bind<'q>(&'q self, query: SqliteQuery<'q>) -> SqliteQuery<'q> {
        let Move { state, until, accepted, attempts } = Move::of(self.transition);
        bind_key(query, &self.key)
            .bind(self.fence)
            .bind(state)
            .bind(until)
            .bind(accepted)
            .bind(&self.detail)
            .bind(attempts)
            .bind(history::marked(self))
    }
}
