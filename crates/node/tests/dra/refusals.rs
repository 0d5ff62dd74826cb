//! Claims that cannot be prepared.
