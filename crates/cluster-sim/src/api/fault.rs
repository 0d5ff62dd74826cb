//! Faults that a test injects into requests.

use std::time::Duration;

use super::{refusal::Refusal, request::ApiRequest};

/// A fault, and the requests to which it applies.
#[derive(Clone, Debug)]
pub struct Fault {
    method: Option<&'static str>,
    path: String,
    remaining: Option<usize>,
    effect: Effect,
}

/// Effect of a fault.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// The request is refused without effect.
    Refuse(Refusal),
    /// The request is refused with 403.
    Forbid,
    /// The response is delayed.
    Delay(Duration),
    /// The connection closes without effect.
    CloseConnection,
    /// The request takes effect, but the connection closes before the response.
    DropResponse,
    /// Reads return nothing, as from a server with a stale store: lists are empty, and objects are not found. Watches
    /// and writes are unaffected.
    ReturnEmpty,
}

// === impl Fault ===

impl Fault {
    /// Creates a fault for every request whose path contains `path`.
    pub fn at(path: impl Into<String>, effect: Effect) -> Self {
        Self { method: None, path: path.into(), remaining: None, effect }
    }

    /// Restricts the fault to requests with this method.
    #[must_use]
    pub fn for_method(self, method: &'static str) -> Self {
        Self { method: Some(method), ..self }
    }

    /// Restricts the fault to this number of requests.
    #[must_use]
    pub fn times(self, times: usize) -> Self {
        Self { remaining: Some(times), ..self }
    }

    pub(super) fn effect(&self) -> &Effect {
        &self.effect
    }

    pub(super) fn matches(&self, request: &ApiRequest) -> bool {
        self.remaining != Some(0)
            && self.method.is_none_or(|method| method == request.method)
            && request.path.contains(&self.path)
    }
}

/// Effect of the first fault that matches a request. Decrements the fault's remaining number of requests.
pub(crate) fn next_effect(faults: &mut [Fault], request: &ApiRequest) -> Option<Effect> {
    let fault = faults.iter_mut().find(|fault| fault.matches(request))?;
    fault.remaining = fault.remaining.map(|remaining| remaining - 1);
    Some(fault.effect.clone())
}
