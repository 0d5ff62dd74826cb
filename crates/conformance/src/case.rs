//! Conformance case: expected behaviour of a program, its source in Kubernetes, and its check.

use std::{fmt, pin::Pin, time::Duration};

use serde::Serialize;

use crate::{offers::StartFailure, testbed::Testbed};

/// One expectation of a program.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Case {
    /// Short and stable id, such as `R03`. The letter names the part of the API.
    pub id: &'static str,
    /// Expected behaviour, as a sentence.
    pub sentence: &'static str,
    /// Source in Kubernetes: a file, a page, an issue.
    pub source: &'static str,
    /// Check of the expectation.
    #[serde(skip)]
    pub(crate) check: Check,
}

/// API through which a program offers devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Api {
    /// Resources, through the device plugin API.
    DevicePlugin,
    /// Claims, through Dynamic Resource Allocation.
    Dra,
}

/// Check of a case, on a testbed where the kubelet runs and the program has not been started.
pub(crate) type Check = for<'a> fn(&'a mut Testbed) -> CheckFuture<'a>;

pub(crate) type CheckFuture<'a> = Pin<Box<dyn Future<Output = CheckResult> + Send + 'a>>;

/// Evidence of a pass, or the reason for another verdict.
pub(crate) type CheckResult = Result<String, CheckError>;

/// Reason why a case does not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CheckError {
    /// The program behaves differently.
    Failed(String),
    /// The program offers nothing that the case covers.
    NotApplicable(String),
}

impl fmt::Display for CheckError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Failed(reason) | Self::NotApplicable(reason)) = self;
        f.write_str(reason)
    }
}

/// Result of one case.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// [`Case::id`].
    pub id: &'static str,
    /// [`Case::sentence`].
    pub sentence: &'static str,
    /// [`Case::source`].
    pub source: &'static str,
    /// Outcome.
    pub verdict: Verdict,
    /// Evidence of the outcome.
    pub evidence: String,
    /// Last lines of the program's standard output and error; empty unless the case failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub last_words: Vec<String>,
    /// Duration of the case.
    #[serde(serialize_with = "seconds")]
    pub took: Duration,
}

/// Outcome of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The program behaves as the sentence says.
    Pass,
    /// The program behaves differently.
    Fail,
    /// The program offers nothing that the sentence covers.
    NotApplicable,
}

// === impl Finding ===

impl Finding {
    /// Only finding of a run whose program never serves anything.
    pub(crate) fn start_failure(start_failure: StartFailure, took: Duration) -> Self {
        let StartFailure { reason: evidence, last_output: last_words } = start_failure;
        let (id, sentence) = ("START", "starts, and serves until SIGTERM");
        let source = "docs/conformance.md: each case starts the program";
        Self { id, sentence, source, verdict: Verdict::Fail, evidence, last_words, took }
    }
}

// === impl Case ===

impl Case {
    /// API of the case, from the letter of its id.
    pub(crate) fn api(&self) -> Api {
        if self.id.starts_with('D') { Api::Dra } else { Api::DevicePlugin }
    }
}

pub(crate) fn failed<T>(evidence: impl Into<String>) -> Result<T, CheckError> {
    Err(CheckError::Failed(evidence.into()))
}

/// Ends the case as not applicable.
pub(crate) fn not_applicable<T>(reason: impl Into<String>) -> Result<T, CheckError> {
    Err(CheckError::NotApplicable(reason.into()))
}

fn seconds<S: serde::Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(took.as_secs_f64())
}
