//! RabbitMq.

/// Placeholder.
pub struct RabbitMq;
