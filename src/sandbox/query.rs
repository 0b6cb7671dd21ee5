//! Query strings of lists: `after`, `limit`, `order` and filters.

use axum::http::Uri;
use reqwest::Url;

use super::{
    error::ApiError,
    wire::{self, Page},
};

/// The decoded pairs of a query string.
pub(super) struct Query {
    pub(super) pairs: Vec<(String, String)>,
}

impl Query {
    pub(super) fn parse(uri: &Uri) -> Self {
        let url = Url::parse(&format!("http://sandbox/?{}", uri.query().unwrap_or_default()));
        Self { pairs: url.map(|url| url.query_pairs().into_owned().collect()).unwrap_or_default() }
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The asked page of `all`, which comes oldest first.
    pub(super) fn page<'a, T: 'a>(
        &self,
        all: impl DoubleEndedIterator<Item = &'a T>,
        id: impl Fn(&T) -> String,
        json: impl Fn(&T) -> String,
    ) -> Result<String, ApiError> {
        let limit = match self.get("limit").map(str::parse) {
            None => 20,
            Some(Ok(limit @ 1..=100)) => limit,
            Some(_) => return Err(ApiError::invalid("limit: must be 1 to 100")),
        };
        let mut all: Box<dyn Iterator<Item = &T> + '_> = match self.get("order") {
            None | Some("desc") => Box::new(all.rev()),
            Some("asc") => Box::new(all),
            Some(_) => return Err(ApiError::invalid("order: must be asc or desc")),
        };
        if let Some(after) = self.get("after")
            && !all.any(|one| id(one) == after)
        {
            return Err(ApiError::invalid(format!("after: no such id {after:?}")));
        }
        let mut page: Vec<&T> = all.take(limit + 1).collect();
        let has_more = page.len() > limit;
        page.truncate(limit);
        Ok(wire::page(Page {
            first_id: page.first().map(|one| id(one)),
            last_id: page.last().map(|one| id(one)),
            data: page.into_iter().map(json).collect(),
            has_more,
        }))
    }
}
