//! Command.

/// Placeholder.
pub struct Command;
