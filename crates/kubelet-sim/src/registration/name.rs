//! Valid names of extended resources.
//!
//! The agent checks names too. The kubelet's checks are independent of the agent's, so that a test
//! finds either one wrong.

/// Prefix under which quota counts the resource. The name must leave room for this prefix.
const QUOTA_PREFIX: &str = "requests.";

/// Longest DNS subdomain (RFC 1123), prefix included.
const MAX_SUBDOMAIN: usize = 253;

/// Longest name part and longest DNS label.
const MAX_LABEL: usize = 63;

/// True if the kubelet takes the name: qualified, not Kubernetes' own, a label key even after quota's prefix.
///
/// Source: `IsExtendedResourceName` in `pkg/apis/core/v1/helper`.
pub(super) fn is_extended_resource(name: &str) -> bool {
    let Some((domain, part)) = name.split_once('/') else { return false };
    !name.contains("kubernetes.io/")
        && !name.starts_with(QUOTA_PREFIX)
        && QUOTA_PREFIX.len() + domain.len() <= MAX_SUBDOMAIN
        && is_subdomain(domain)
        && is_name_part(part)
}

/// True for labels of lower-case letters, digits and inner dashes. The whole may have 253
/// characters; unlike in DNS, a single label may too.
fn is_subdomain(domain: &str) -> bool {
    domain.split('.').all(|label| {
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        is_framed(label, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), inner)
    })
}

fn is_name_part(part: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    part.len() <= MAX_LABEL && is_framed(part, |c| c.is_ascii_alphanumeric(), inner)
}

fn is_framed(text: &str, outer: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    match text.as_bytes() {
        [] => false,
        [only] => outer(*only),
        [first, middle @ .., last] => {
            outer(*first) && outer(*last) && middle.iter().all(|c| inner(*c))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, expected: bool) {
        assert_eq!(is_extended_resource(name), expected, "{name}");
    }

    #[test]
    fn qualified_names_of_other_domains_are_taken() {
        for good in ["a.com/x", "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "a/B_c.D-e", "0/0"] {
            check(good, true);
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for bad in [
            "gpu",
            "a.kubernetes.io/x",
            "kubernetes.io/x",
            "requests.a/x",
            "A.com/x",
            "a.com/x/y",
            "a.com/",
            "/x",
            "",
            "a..b/x",
            "-a.com/x",
            "a.com/-x",
            "a.com/x.",
            "a_b.com/x",
            "a.com/ü",
        ] {
            check(bad, false);
        }
    }

    #[test]
    fn the_limits_are_63_for_the_name_and_244_for_the_domain() {
        let exact = |length: usize| "a".repeat(length);
        check(&format!("{}/x", exact(244)), true);
        check(&format!("{}/x", exact(245)), false);
        check(&format!("a.com/{}", "x".repeat(63)), true);
        check(&format!("a.com/{}", "x".repeat(64)), false);
    }
}
