//! A value that several tasks or threads change, each in steps that are short and alone.
//!
//! # Guarantees
//!
//! A step sees the value as the step before left it. No task waits while it has the value: a step is a closure, and
//! cannot contain an `.await`. This is the only lock in the layers of the agent.
//!
//! # Assumptions
//!
//! A step that panics leaves a usable value behind, and no step begins another one on the same value.

use std::sync::{Mutex, PoisonError};

/// A value that is changed step by step.
#[derive(Debug, Default)]
pub struct Shared<T>(Mutex<T>);

// === impl Shared ===

impl<T> Shared<T> {
    /// A value to be shared.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Makes one step, and gives what came of it.
    pub fn step<R>(&self, step: impl FnOnce(&mut T) -> R) -> R {
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
                scope.spawn(|| (0..1_000).for_each(|_| count.step(|count| *count += 1)));
            }
        });
        assert_eq!(count.step(|count| *count), 4_000);
    }

    #[test]
    fn a_step_that_panics_holds_up_no_later_one() {
        let shared = Shared::new(1);
        let panicked = thread::scope(|scope| {
            scope.spawn(|| shared.step(|_| panic!("as a test"))).join().is_err()
        });
        assert!(panicked);
        assert_eq!(shared.step(|value| *value), 1);
    }
}
