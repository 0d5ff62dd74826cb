//! Kind of a GPU: its product, and the pods to which its node restricts it.
//!
//! `windlass_sched` compares products only. A restricted GPU is a separate product there: its name has a suffix.

use std::fmt;

use windlass_core::annotation::PodKind;

use super::GpuRequest;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GpuKind<'a> {
    pub(super) product: &'a str,
    pub(super) restricted_to: Option<PodKind>,
}

const WHOLE: &str = " (whole only)";
const SHARES: &str = " (shares only)";

// === impl GpuKind ===

impl<'a> GpuKind<'a> {
    /// Parses a product name of the catalog, written by `Display`.
    pub(super) fn parse(name: &'a str) -> Self {
        let restricted = |suffix, pods| Some((name.strip_suffix(suffix)?, Some(pods)));
        let restriction =
            restricted(WHOLE, PodKind::Whole).or_else(|| restricted(SHARES, PodKind::Shares));
        let (product, restricted_to) = restriction.unwrap_or((name, None));
        Self { product, restricted_to }
    }

    /// True if pods with this request may get a GPU of this kind.
    pub(super) fn serves(self, request: &GpuRequest) -> bool {
        match self.restricted_to {
            None => true,
            Some(PodKind::Whole) => !matches!(request, GpuRequest::Share { .. }),
            Some(PodKind::Shares) => !matches!(request, GpuRequest::Whole(_)),
        }
    }
}

impl fmt::Display for GpuKind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.product)?;
        f.write_str(match self.restricted_to {
            None => "",
            Some(PodKind::Whole) => WHOLE,
            Some(PodKind::Shares) => SHARES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_parsed_from_its_name_in_the_catalog() {
        for only_for in [None, Some(PodKind::Whole), Some(PodKind::Shares)] {
            let kind = GpuKind { product: "NVIDIA A10", restricted_to: only_for };
            assert_eq!(GpuKind::parse(&kind.to_string()), kind);
        }
    }
}
