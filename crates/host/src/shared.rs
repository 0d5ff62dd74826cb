//! Shared state that changes in short, exclusive steps.
//!
//! # Guarantees
//!
//! Each step sees the result of the previous one. No task waits while it holds the value: steps are closures,
//! which cannot contain `.await`. This is the only lock of the agent's layers.
//!
//! # Assumptions
//!
//! A panicking step leaves a usable value, and no step starts another on the same value.

use std::sync::{Mutex, PoisonError};

/// A value that changes in exclusive steps.
#[derive(Debug, Default)]
pub struct Shared<T>(Mutex<T>);

// === impl Shared ===

impl<T> Shared<T> {
    /// A shared value.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Runs one step and returns its result.
    pub fn with_lock<R>(&self, step: impl FnOnce(&mut T) -> R) -> R {
        step(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn steps_of_several_threads_follow_each_other() {
        let count = Shared::new(0_u32);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1_000).for_each(|_| count.with_lock(|count| *count += 1)));
            }
        });
        assert_eq!(count.with_lock(|count| *count), 4_000);
    }

    #[test]
    fn later_steps_run_after_a_panicking_one() {
        let shared = Shared::new(1);
        let panicked = thread::scope(|scope| {
            scope.spawn(|| shared.with_lock(|_| panic!("as a test"))).join().is_err()
        });
        assert!(panicked);
        assert_eq!(shared.with_lock(|value| *value), 1);
    }
}
