//! Kind of a GPU: its product, and the pods to which its node restricts it.
//!
//! `windlass_sched` knows products only, so a restricted GPU is another product there: its name has a suffix.

use std::fmt;

use windlass_core::annotation::OnlyFor;

use super::GpuWish;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GpuKind<'a> {
    pub(super) product: &'a str,
    pub(super) only_for: Option<OnlyFor>,
}

const WHOLE: &str = " (whole only)";
const SHARES: &str = " (shares only)";

// === impl GpuKind ===

impl<'a> GpuKind<'a> {
    /// Parses a product name of the catalog, written by `Display`.
    pub(super) fn named(name: &'a str) -> Self {
        let is = |suffix, only| Some((name.strip_suffix(suffix)?, Some(only)));
        let special = is(WHOLE, OnlyFor::Whole).or_else(|| is(SHARES, OnlyFor::Shares));
        let (product, only_for) = special.unwrap_or((name, None));
        Self { product, only_for }
    }

    /// True if pods with this request get such a GPU.
    pub(super) fn serves(self, wish: &GpuWish) -> bool {
        match self.only_for {
            None => true,
            Some(OnlyFor::Whole) => !matches!(wish, GpuWish::Share { .. }),
            Some(OnlyFor::Shares) => !matches!(wish, GpuWish::Whole(_)),
        }
    }
}

impl fmt::Display for GpuKind<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.product)?;
        f.write_str(match self.only_for {
            None => "",
            Some(OnlyFor::Whole) => WHOLE,
            Some(OnlyFor::Shares) => SHARES,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_survives_its_name_in_the_catalog() {
        for only_for in [None, Some(OnlyFor::Whole), Some(OnlyFor::Shares)] {
            let kind = GpuKind { product: "NVIDIA A10", only_for };
            assert_eq!(GpuKind::named(&kind.to_string()), kind);
        }
    }
}
