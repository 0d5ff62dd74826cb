//! Validation of extended resource names.
//!
//! The agent validates names too, with its own code. So a test finds a defect in either validation.

/// Prefix of a resource's name in resource quotas. The name with this prefix must be valid too.
const QUOTA_PREFIX: &str = "requests.";

/// Longest DNS subdomain in bytes (RFC 1123), including the prefix.
const MAX_SUBDOMAIN: usize = 253;

/// Longest name after the slash, in bytes.
const MAX_NAME_PART: usize = 63;

/// True if the kubelet accepts the name. It has the form `domain/name`, does not contain
/// `kubernetes.io/`, does not begin with [`QUOTA_PREFIX`], and is a valid label key with this prefix.
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

/// True if each label consists of lower-case letters, digits and inner dashes. Unlike in DNS, a label
/// has no limit of 63 characters of its own.
fn is_subdomain(domain: &str) -> bool {
    domain.split('.').all(|label| {
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        has_valid_ends_and_middle(label, |c| c.is_ascii_lowercase() || c.is_ascii_digit(), inner)
    })
}

fn is_name_part(part: &str) -> bool {
    let inner = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    part.len() <= MAX_NAME_PART
        && has_valid_ends_and_middle(part, |c| c.is_ascii_alphanumeric(), inner)
}

/// True if the first and last byte satisfy `outer`, and the bytes between them `inner`.
fn has_valid_ends_and_middle(
    text: &str,
    outer: impl Fn(u8) -> bool,
    inner: impl Fn(u8) -> bool,
) -> bool {
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
    fn qualified_names_of_other_domains_are_valid() {
        for name in ["a.com/x", "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "a/B_c.D-e", "0/0"] {
            check(name, true);
        }
    }

    #[test]
    fn malformed_names_and_names_of_kubernetes_are_invalid() {
        for name in [
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
            check(name, false);
        }
    }

    #[test]
    fn the_limits_are_63_for_the_name_and_244_for_the_domain() {
        check(&format!("{}/x", "a".repeat(244)), true);
        check(&format!("{}/x", "a".repeat(245)), false);
        check(&format!("a.com/{}", "x".repeat(63)), true);
        check(&format!("a.com/{}", "x".repeat(64)), false);
    }
}
