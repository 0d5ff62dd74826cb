//! Findings of a diagnosis: each with its severity and its remedy.

use serde::Serialize;

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Part of the system: `host`, `kubelet`, `cluster`, …
    pub area: &'static str,
    /// Subject of the check.
    pub subject: String,
    /// Severity of the observation.
    pub severity: Severity,
    /// The observation.
    pub detail: String,
    /// Change that fixes the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

/// Severity of a finding, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// No problem.
    Ok,
    /// Not checked: a prerequisite of the check is absent.
    Skipped,
    /// Works with a limitation.
    Warning,
    /// Does not work.
    Problem,
}

// === impl Finding ===

impl Finding {
    /// A passed check.
    pub fn ok(area: &'static str, subject: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(Severity::Ok, area, subject, detail)
    }

    /// A check that could not run, with the reason.
    pub fn skipped(
        area: &'static str,
        subject: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(Severity::Skipped, area, subject, detail)
    }

    /// A limitation.
    pub fn warning(
        area: &'static str,
        subject: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(Severity::Warning, area, subject, detail)
    }

    /// A failure.
    pub fn problem(
        area: &'static str,
        subject: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(Severity::Problem, area, subject, detail)
    }

    /// Adds the change that fixes the problem.
    #[must_use]
    pub fn with_remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    fn new(
        severity: Severity,
        area: &'static str,
        subject: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        Self { area, subject: subject.into(), severity, detail: detail.into(), remedy: None }
    }
}
