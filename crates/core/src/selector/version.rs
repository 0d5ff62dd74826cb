//! Semantic versions (<https://semver.org>), for `semver("9.0.0")` in expressions.

use std::{any::Any, cmp::Ordering};

use cel::common::{
    types::Type,
    value::{StaticVal, Val},
};

static TYPE: Type = Type::new_unspecified_type("kubernetes.Semver");

/// A semantic version without build metadata, which comparisons ignore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    /// Major, minor, patch.
    pub(super) numbers: [u64; 3],
    /// Pre-release identifiers after `-`; empty for a release.
    pre_release: Vec<PreRelease>,
}

/// Pre-release identifier. Numbers sort before words.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum PreRelease {
    Number(u64),
    Word(String),
}

/// True for a full version (Semantic Versioning 2.0.0).
pub fn is_semver(text: &str) -> bool {
    Version::parse(text).is_some()
}

// === impl Version ===

impl Version {
    /// Parses a full version, as strictly as DRA parses attributes.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (text, build) = split(text, '+');
        let (numbers, pre_release) = split(text, '-');
        let parts = |text: Option<&str>| -> Option<Vec<PreRelease>> {
            text.map_or(Some(Vec::new()), |text| text.split('.').map(PreRelease::parse).collect())
        };
        build.is_none_or(|build| build.split('.').all(is_identifier)).then_some(())?;
        let numbers: Vec<u64> = numbers.split('.').map(number).collect::<Option<_>>()?;
        Some(Self { numbers: numbers.try_into().ok()?, pre_release: parts(pre_release)? })
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Version {
    /// A release sorts after its pre-releases.
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |version: &Self| (version.numbers, version.pre_release.is_empty());
        key(self).cmp(&key(other)).then_with(|| self.pre_release.cmp(&other.pre_release))
    }
}

impl Val for Version {
    fn get_type(&self) -> &Type {
        &TYPE
    }

    fn cel_type() -> &'static Type {
        &TYPE
    }

    fn equals(&self, other: &dyn Val) -> bool {
        other.downcast_ref::<Self>() == Some(self)
    }

    fn clone_as_boxed<'v>(&self) -> Box<dyn Val + 'v> {
        Box::new(self.clone())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

impl StaticVal for Version {}

// === impl PreRelease ===

impl PreRelease {
    fn parse(text: &str) -> Option<Self> {
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return number(text).map(Self::Number);
        }
        is_identifier(text).then(|| Self::Word(text.to_owned()))
    }
}

fn split(text: &str, at: char) -> (&str, Option<&str>) {
    text.split_once(at).map_or((text, None), |(head, tail)| (head, Some(tail)))
}

/// Digits without leading zero.
fn number(text: &str) -> Option<u64> {
    let canonical = text == "0" || !text.starts_with(['0', '+']);
    text.parse().ok().filter(|_| canonical)
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
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
    fn what_is_no_semantic_version_is_refused() {
        for bad in [
            "", "1", "1.2", "1.2.3.4", "v1.2.3", "1.02.3", "1.2.3-", "1.2.3-01", "1.2.3+", "+1.2.3",
        ] {
            assert_eq!(Version::parse(bad), None, "{bad:?}");
        }
    }
}
