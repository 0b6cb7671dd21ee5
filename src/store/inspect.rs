//! A look at a database from beside, for an operator: who it is, and whether it has our schema. Changes nothing.

use std::{path::Path, time::Duration};

use secrecy::ExposeSecret;
use sqlx::{
    Connection as _, PgConnection, Row as _, SqliteConnection, migrate::Migrator, sqlite::SqliteConnectOptions,
};
use tokio::time::timeout;

use super::{Config, Database, Error, Result, postgres, sqlite};

/// What an operator finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// Product and version.
    pub server: String,
    pub schema: Schema,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schema {
    /// Nothing has run here yet.
    Absent,
    Current,
    /// Made by an earlier version: what is missing is added by `actiond migrate`, or by the next worker.
    Behind,
    /// Made by a later version, or by hand.
    Foreign,
}

const PATIENCE: Duration = Duration::from_secs(10);

/// `Ok` with an absent schema where a SQLite file is still to be made.
pub async fn inspect(config: &Config) -> Result<Inspection> {
    let look = async {
        match config.url.expose_secret().starts_with("sqlite:") {
            true => sqlite_file(config).await,
            false => postgres_server(config).await,
        }
    };
    timeout(PATIENCE, look).await.unwrap_or_else(|_| Err(Error::new("no answer in time")))
}

async fn postgres_server(config: &Config) -> Result<Inspection> {
    let options: sqlx::postgres::PgConnectOptions =
        config.url.expose_secret().parse().map_err(|_| Error::new("store.url: not a postgres:// URL"))?;
    let mut connection = PgConnection::connect_with(&options).await?;
    let server: String = sqlx::query("SHOW server_version").fetch_one(&mut connection).await?.try_get(0)?;
    let there = sqlx::query("SELECT to_regclass('_sqlx_migrations') IS NOT NULL").fetch_one(&mut connection).await?;
    let applied = match there.try_get(0)? {
        true => {
            let rows = sqlx::query(APPLIED).fetch_all(&mut connection).await?;
            rows.iter()
                .map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
                .collect::<Result<Vec<_>>>()?
        }
        false => Vec::new(),
    };
    let _ = connection.close().await;
    Ok(Inspection { server: format!("PostgreSQL {server}"), schema: compare(&applied, &postgres::migrator()) })
}

async fn sqlite_file(config: &Config) -> Result<Inspection> {
    let options: SqliteConnectOptions =
        config.url.expose_secret().parse().map_err(|_| Error::new("store.url: not a sqlite:// URL"))?;
    if let Some(file) = Database::missing(config) {
        return match file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")) {
            folder if folder.is_dir() => Ok(Inspection { server: "SQLite".to_owned(), schema: Schema::Absent }),
            folder => Err(Error::new(format!("there is no folder {}", folder.display()))),
        };
    }
    let mut connection = SqliteConnection::connect_with(&options.read_only(true)).await?;
    let server: String = sqlx::query("SELECT sqlite_version()").fetch_one(&mut connection).await?.try_get(0)?;
    let table = "SELECT count(*) FROM sqlite_master WHERE name = '_sqlx_migrations'";
    let there: i64 = sqlx::query(table).fetch_one(&mut connection).await?.try_get(0)?;
    let applied = match there {
        0 => Vec::new(),
        _ => {
            let rows = sqlx::query(APPLIED).fetch_all(&mut connection).await?;
            rows.iter()
                .map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)))
                .collect::<Result<Vec<_>>>()?
        }
    };
    let _ = connection.close().await;
    Ok(Inspection { server: format!("SQLite {server}"), schema: compare(&applied, &sqlite::migrator()) })
}

const APPLIED: &str = "SELECT version, success, checksum FROM _sqlx_migrations ORDER BY version";

/// Version, success and checksum of what was applied, against what this program would apply.
fn compare(applied: &[(i64, bool, Vec<u8>)], ours: &Migrator) -> Schema {
    if applied.is_empty() {
        return Schema::Absent;
    }
    let is_ours = |(version, success, checksum): &(i64, bool, Vec<u8>)| {
        *success && ours.iter().any(|m| m.version == *version && m.checksum[..] == checksum[..])
    };
    match (applied.iter().all(is_ours), applied.len() == ours.iter().count()) {
        (true, true) => Schema::Current,
        (true, false) => Schema::Behind,
        (false, _) => Schema::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_compared_by_what_was_applied() {
        let ours = sqlite::migrator();
        let all: Vec<_> = ours.iter().map(|m| (m.version, true, m.checksum.to_vec())).collect();
        assert_eq!(compare(&[], &ours), Schema::Absent);
        assert_eq!(compare(&all, &ours), Schema::Current);
        let later = [all.clone(), vec![(99, true, vec![1])]].concat();
        assert_eq!(compare(&later, &ours), Schema::Foreign);
        let changed: Vec<_> = all.iter().map(|(version, success, _)| (*version, *success, vec![0])).collect();
        assert_eq!(compare(&changed, &ours), Schema::Foreign);
    }
}
