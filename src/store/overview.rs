//! What an operator sees of the ledger as a whole.

use sqlx::{ColumnIndex, Decode, Row, Type};

use super::Result;
use crate::session::SessionKey;

/// So many calls of a function are in a state.
#[derive(Clone, Debug, PartialEq)]
pub struct Tally {
    pub function: String,
    /// One of [`super::STATES`].
    pub state: String,
    pub count: u64,
}

/// A session that is to be looked at again. Instants are Unix milliseconds by the database's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct Appointment {
    pub session: SessionKey,
    pub at: i64,
    /// How often it was postponed in a row.
    pub tries: u32,
    pub accepted_at: i64,
}

/// A function that is not started until an operator resumes it.
#[derive(Clone, Debug, PartialEq)]
pub struct Pause {
    pub function: String,
    /// Unix milliseconds by the database's clock.
    pub since: i64,
}

/// Reads an [`Appointment`].
pub(super) fn appointment<R: Row>(row: &R) -> Result<Appointment>
where
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
{
    Ok(Appointment {
        session: SessionKey::new(row.try_get::<String, _>("platform")?, row.try_get::<String, _>("session")?),
        at: row.try_get("at")?,
        tries: u32::try_from(row.try_get::<i64, _>("tries")?).unwrap_or(u32::MAX),
        accepted_at: row.try_get("accepted_at")?,
    })
}

/// Reads a [`Tally`].
pub(super) fn tally<R: Row>(row: &R) -> Result<Tally>
where
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
{
    Ok(Tally {
        function: row.try_get("function")?,
        state: row.try_get("state")?,
        count: u64::try_from(row.try_get::<i64, _>("count")?).unwrap_or(0),
    })
}

/// Reads a [`Pause`].
pub(super) fn pause<R: Row>(row: &R) -> Result<Pause>
where
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
{
    Ok(Pause { function: row.try_get("function")?, since: row.try_get("since")? })
}
