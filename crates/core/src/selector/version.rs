//! Semantic versions (<https://semver.org>), for `semver("9.0.0")` in expressions.

use semver::BuildMetadata;

/// A semantic version without build metadata, which comparisons ignore.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version(pub(super) semver::Version);

value_of_expressions!(Version, "kubernetes.Semver");

/// True for a full version (Semantic Versioning 2.0.0).
pub fn is_semver(text: &str) -> bool {
    Version::parse(text).is_some()
}

// === impl Version ===

impl Version {
    /// Parses a full version, as strictly as DRA parses attributes: numbers in a pre-release must fit 64 bits, too.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let version = semver::Version::parse(text).ok()?;
        let is_digit = |byte: u8| byte.is_ascii_digit();
        let is_valid_part = |part: &str| !part.bytes().all(is_digit) || part.parse::<u64>().is_ok();
        let are_parts_valid = version.pre.is_empty() || version.pre.split('.').all(is_valid_part);
        are_parts_valid.then_some(Self(semver::Version { build: BuildMetadata::EMPTY, ..version }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_the_order_of_the_specification() {
        // The example of semver.org, section 11, between two releases.
        let ordered = [
            "0.9.9",
            "1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1.0.0",
            "10.0.0",
        ];
        let parse = |text: &str| Version::parse(text).expect("a version");
        for pair in ordered.windows(2) {
            assert!(parse(pair[0]) < parse(pair[1]), "{pair:?}");
        }
        assert_eq!(parse("1.0.0+a"), parse("1.0.0+b.1"));
    }

    #[test]
    fn text_that_is_not_a_semantic_version_is_refused() {
        for bad in [
            "", "1", "1.2", "1.2.3.4", "v1.2.3", "1.02.3", "1.2.3-", "1.2.3-01", "1.2.3+", "+1.2.3",
        ] {
            assert_eq!(Version::parse(bad), None, "{bad:?}");
        }
    }
}
