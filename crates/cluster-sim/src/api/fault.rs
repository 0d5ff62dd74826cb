//! Faults: what a test has the server do to requests.

use std::time::Duration;

use super::{refusal::Refusal, request::Asked};

/// What happens to requests of one kind.
#[derive(Clone, Debug)]
pub struct Fault {
    method: Option<&'static str>,
    path: String,
    left: Option<usize>,
    effect: Effect,
}

/// What happens.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The request is refused and nothing is done.
    Refuse(Refusal),
    /// The request is refused as one without the right to do it.
    Forbid,
    /// The answer comes late.
    Delay(Duration),
    /// The connection ends and nothing is done.
    Drop,
    /// What is asked is done, and the connection ends before the answer.
    LoseAnswer,
    /// Nothing is there, says the answer, as of a server whose store lags behind: a list is empty and an object
    /// not found. Watches and writes are not affected.
    Hide,
}

// === impl Fault ===

impl Fault {
    /// Something that happens to every request whose path contains a text.
    pub fn at(path: impl Into<String>, effect: Effect) -> Self {
        Self { method: None, path: path.into(), left: None, effect }
    }

    /// Only to requests with this method.
    #[must_use]
    pub fn only(self, method: &'static str) -> Self {
        Self { method: Some(method), ..self }
    }

    /// No more often than this.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { left: Some(times), ..self }
    }

    fn fits(&self, asked: &Asked) -> bool {
        self.left != Some(0)
            && self.method.is_none_or(|method| method == asked.method)
            && asked.path.contains(&self.path)
    }
}

/// What happens to a request: the first fault that fits.
pub(crate) fn strike(faults: &mut [Fault], asked: &Asked) -> Option<Effect> {
    let fault = faults.iter_mut().find(|fault| fault.fits(asked))?;
    fault.left = fault.left.map(|left| left - 1);
    Some(fault.effect.clone())
}
