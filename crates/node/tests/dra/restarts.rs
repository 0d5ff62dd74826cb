//! What an agent leaves to the next.
