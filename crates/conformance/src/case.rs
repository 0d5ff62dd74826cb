//! A case: a sentence about what a program does, where Kubernetes asks for it, and how to find out.

use std::{fmt, pin::Pin, time::Duration};

use serde::Serialize;

use crate::{offers::Stillborn, stage::Stage};

/// One thing that is expected of a program.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Case {
    /// Short and stable: `R03`. The letter is the part of the API.
    pub id: &'static str,
    /// What the program does, as a sentence.
    pub sentence: &'static str,
    /// Where in Kubernetes it comes from: a file, a page, an issue.
    pub source: &'static str,
    /// Finds out.
    #[serde(skip)]
    pub(crate) check: Check,
}

/// A way in which a program offers devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Api {
    /// As resources, by the device plugin API.
    DevicePlugin,
    /// To claims, by Dynamic Resource Allocation.
    Dra,
}

/// Finds out on a stage of its own, where the kubelet runs and the program has not been started.
pub(crate) type Check = for<'a> fn(&'a mut Stage) -> Checking<'a>;

pub(crate) type Checking<'a> = Pin<Box<dyn Future<Output = Checked> + Send + 'a>>;

/// What was seen, or why the case does not hold.
pub(crate) type Checked = Result<String, Unmet>;

/// A case does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unmet {
    /// The program does otherwise.
    Failed(String),
    /// It offers nothing that the case is about.
    NotApplicable(String),
}

impl fmt::Display for Unmet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Failed(why) | Self::NotApplicable(why)) = self;
        f.write_str(why)
    }
}

/// What a case found.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// [`Case::id`].
    pub id: &'static str,
    /// [`Case::sentence`].
    pub sentence: &'static str,
    /// [`Case::source`].
    pub source: &'static str,
    /// The outcome.
    pub verdict: Verdict,
    /// What was seen.
    pub evidence: String,
    /// The last that the program wrote to its standard output and error, where the case failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub last_words: Vec<String>,
    /// How long it took, in seconds.
    #[serde(serialize_with = "seconds")]
    pub took: Duration,
}

/// The outcome of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The program does what the sentence says.
    Pass,
    /// It does otherwise.
    Fail,
    /// It offers nothing that the sentence is about.
    NotApplicable,
}

// === impl Finding ===

impl Finding {
    /// The only finding about a program that never serves anything.
    pub(crate) fn stillborn(stillborn: Stillborn, took: Duration) -> Self {
        let Stillborn { why: evidence, last_words } = stillborn;
        let (id, sentence) = ("START", "starts, and serves until it is told to end");
        let source = "docs/conformance.md: a program is started with each case";
        Self { id, sentence, source, verdict: Verdict::Fail, evidence, last_words, took }
    }
}

// === impl Case ===

impl Case {
    /// What it is about: the letter of the id says so.
    pub(crate) fn api(&self) -> Api {
        if self.id.starts_with('D') { Api::Dra } else { Api::DevicePlugin }
    }
}

/// Fails the case.
pub(crate) fn failed<T>(evidence: impl Into<String>) -> Result<T, Unmet> {
    Err(Unmet::Failed(evidence.into()))
}

/// Ends the case without a verdict on the program.
pub(crate) fn not_applicable<T>(why: impl Into<String>) -> Result<T, Unmet> {
    Err(Unmet::NotApplicable(why.into()))
}

fn seconds<S: serde::Serializer>(took: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(took.as_secs_f64())
}
