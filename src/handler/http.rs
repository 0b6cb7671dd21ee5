//! Http.

/// Placeholder.
pub struct Http;
