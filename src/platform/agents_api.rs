//! AgentsApi.

/// Placeholder.
pub struct AgentsApi;
