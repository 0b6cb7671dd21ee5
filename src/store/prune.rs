//! Deleting calls that have ended, a few at a time. The rules are the same in both databases.

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::Result;
use crate::session::{CallKey, SessionKey};

/// What one step of pruning did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    pub deleted: u64,
    /// Where the next step goes on; `None` where nothing older is left.
    pub next: Option<i64>,
}

/// $1 from, $2 first seen before, $3 limit. By the index of what never changes: no step reads more than its limit.
pub(super) const OLD: &str = "
    SELECT platform, session, turn, call_id, created_at, state IN ('settled', 'obsolete', 'refused') AND updated_at < $2 AS ended
    FROM calls WHERE created_at >= $1 AND created_at < $2 ORDER BY created_at LIMIT $3";

/// One old row: its key, when it was first seen, whether it may go.
pub(super) type Old = (CallKey, i64, bool);

pub(super) fn read<R: Row>(row: &R) -> Result<Old>
where
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> bool: Decode<'r, R::Database> + Type<R::Database>,
{
    let text = |column: &str| row.try_get::<String, _>(column);
    let session = SessionKey::new(text("platform")?, text("session")?);
    let key = CallKey::new(session, text("turn")?, text("call_id")?);
    Ok((key, row.try_get("created_at")?, row.try_get("ended")?))
}

/// What to delete of the rows that a step has read, and where the next one goes on.
pub(super) fn plan(old: Vec<Old>, from: i64, limit: usize) -> (Vec<CallKey>, Option<i64>) {
    // Past the last one, however many were first seen in one millisecond.
    let next = old.last().filter(|_| old.len() >= limit).map(|(_, created, _)| (*created).max(from + 1));
    (old.into_iter().filter(|(.., ended)| *ended).map(|(key, ..)| key).collect(), next)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn old(created: i64, ended: bool) -> Old {
        (CallKey::new(SessionKey::new("p", "s"), "t", format!("{created}")), created, ended)
    }

    #[test]
    fn only_what_has_ended_goes_and_a_full_step_is_followed_by_another() {
        let (gone, next) = plan(vec![old(1, true), old(2, false), old(5, true)], 0, 3);
        let gone: Vec<&str> = gone.iter().map(|key| &*key.call_id).collect();
        assert_eq!((gone, next), (vec!["1", "5"], Some(5)));
        assert_eq!(plan(vec![old(5, true)], 5, 3).1, None);
        assert_eq!(plan(vec![old(5, false), old(5, false)], 5, 2).1, Some(6), "no step ends where it began");
        assert_eq!(plan(Vec::new(), 0, 3), (Vec::new(), None));
    }
}
