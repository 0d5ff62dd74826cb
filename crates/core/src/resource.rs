//! Extended resource names, validated by the kubelet's rules.

use std::str::FromStr;

use crate::name::{MAX_LABEL, MAX_SUBDOMAIN, is_label_name, is_subdomain};

/// An extended resource name such as `nvidia.com/gpu`.
///
/// Rules of `IsExtendedResourceName` (Kubernetes, `pkg/apis/core/v1/helper`): a qualified name outside
/// Kubernetes' domains. It must be short enough to stay one with the prefix `requests.`, which quotas put before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(String);

/// Text that is not an extended resource name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("resource name {name:?} {problem}; write it like nvidia.com/gpu")]
pub struct InvalidResourceName {
    name: String,
    problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("needs exactly one '/' between a domain and a name")]
    NotQualified,
    #[error("uses the domain kubernetes.io, which is Kubernetes' own")]
    KubernetesDomain,
    #[error("starts with 'requests.', which quotas use")]
    QuotaPrefix,
    #[error("has a domain that is not lower-case DNS of at most {MAX_DOMAIN} characters")]
    Domain,
    #[error(
        "has a last part that is not 1 to {MAX_LABEL} letters, digits, '-', '_' or '.', with a letter or digit at both ends"
    )]
    Name,
}

/// Longest domain: a DNS subdomain less the nine characters of a quota's `requests.` prefix.
const MAX_DOMAIN: usize = MAX_SUBDOMAIN - 9;

show_text!(ResourceName);
deserialize_from_text!(ResourceName);

// === impl ResourceName ===

impl FromStr for ResourceName {
    type Err = InvalidResourceName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        match check(name) {
            Ok(()) => Ok(Self(name.to_owned())),
            Err(problem) => Err(InvalidResourceName { name: name.to_owned(), problem }),
        }
    }
}

fn check(text: &str) -> Result<(), Problem> {
    let (domain, name) = text.split_once('/').ok_or(Problem::NotQualified)?;
    if name.contains('/') {
        return Err(Problem::NotQualified);
    }
    if text.contains("kubernetes.io/") {
        return Err(Problem::KubernetesDomain);
    }
    if text.starts_with("requests.") {
        return Err(Problem::QuotaPrefix);
    }
    if domain.len() > MAX_DOMAIN || !is_subdomain(domain) {
        return Err(Problem::Domain);
    }
    if !is_label_name(name) {
        return Err(Problem::Name);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_that_the_kubelet_accepts_are_accepted() {
        let longest = format!("{}.com/{}", "a".repeat(240), "x".repeat(63));
        for name in ["nvidia.com/gpu", "a/b", "nvidia.com/mig-1g.10gb", "x-1.io/A_b", &longest] {
            assert_eq!(name.parse::<ResourceName>().expect(name).as_str(), name);
        }
    }

    #[test]
    fn names_that_the_kubelet_refuses_are_refused_with_a_reason() {
        let long_name = format!("a.com/{}", "x".repeat(64));
        let long_domain = format!("{}.com/x", "a".repeat(241));
        for (name, expected) in [
            ("gpu", "exactly one '/'"),
            ("a.com/x/y", "exactly one '/'"),
            ("a.kubernetes.io/x", "Kubernetes' own"),
            ("requests.a/x", "quotas"),
            ("A.com/x", "lower-case DNS"),
            ("-a.com/x", "lower-case DNS"),
            (long_domain.as_str(), "lower-case DNS"),
            ("a.com/", "1 to 63"),
            ("a.com/-x", "1 to 63"),
            (long_name.as_str(), "1 to 63"),
        ] {
            let error = name.parse::<ResourceName>().expect_err(name).to_string();
            assert!(error.contains(expected), "{name}: {error}");
        }
    }

    proptest! {
        /// Accepted names stay as they are, fit a quota key, and can name a socket.
        #[test]
        fn an_accepted_name_is_unchanged_and_fits_a_quota(text in "[a-zA-Z0-9./_-]{0,80}|\\PC{0,40}") {
            if let Ok(name) = text.parse::<ResourceName>() {
                prop_assert_eq!(name.as_str(), &text);
                let (domain, last) = text.split_once('/').expect("qualified");
                prop_assert!(domain.len() <= 244 && last.len() <= 63 && !last.contains('/'));
                prop_assert!(text.is_ascii() && !domain.is_empty() && !last.is_empty());
            }
        }
    }
}
