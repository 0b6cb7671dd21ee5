//! The outgoing HTTP client and what every use of it shares: capped bodies, `Retry-After`.
