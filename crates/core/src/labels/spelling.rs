//! Spelling of label keys and values: everything returned is valid in Kubernetes.

use std::fmt::Display;

use super::Label;
use crate::name::{MAX_LABEL, checksum};

/// Longest model name in a key: `gpu.<model>.compute.minor` and `mig.<model>.<profile>` must fit.
const MAX_MODEL_CHARS: usize = 45;

/// Label of gpu-feature-discovery.
pub(super) fn nvidia(name: impl Display, text: impl Display) -> Label {
    (key("nvidia.com", name), value(&text.to_string()))
}

/// Label under any domain.
pub(super) fn in_domain(domain: &str, name: impl Display, text: impl Display) -> Label {
    (key(domain, name), value(&text.to_string()))
}

/// Label of Windlass.
pub(super) fn windlass(name: impl Display, text: impl Display) -> Label {
    (key("windlass.dev", name), value(&text.to_string()))
}

/// Product name as gpu-feature-discovery spells it: `NVIDIA A100-SXM4-40GB` becomes `NVIDIA-A100-SXM4-40GB`.
/// Invalid characters are dropped; blanks become one `-`.
pub(super) fn sanitised(text: &str) -> String {
    let allowed: String = text.chars().filter(|c| is_allowed(*c) || *c == ' ').collect();
    allowed.split(' ').filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

/// A product name with a suffix. A long name is cut before the suffix.
pub(super) fn product(model: &str, suffix: &str) -> String {
    let max = MAX_LABEL.saturating_sub(suffix.len());
    format!("{}{suffix}", model.get(..max).unwrap_or(model))
}

/// A model name for use in keys, the same on every node.
pub(super) fn model_in_key(model: &str) -> String {
    match truncated(model, MAX_MODEL_CHARS) {
        name if name.is_empty() => "unknown".to_owned(),
        name => name,
    }
}

fn key(domain: &str, name: impl Display) -> String {
    format!("{domain}/{}", truncated(&name.to_string(), MAX_LABEL))
}

fn value(text: &str) -> String {
    let allowed: String = text.chars().filter(|c| is_allowed(*c)).take(MAX_LABEL).collect();
    trimmed(&allowed).to_owned()
}

/// The text, cut to fit. A checksum keeps cut texts distinct.
fn truncated(text: &str, max: usize) -> String {
    let allowed: String = text.chars().filter(|c| is_allowed(*c)).collect();
    let allowed = trimmed(&allowed);
    match allowed.get(..max) {
        Some(prefix) if prefix.len() < allowed.len() => {
            let hash = checksum(allowed);
            let suffix = format!("-{:04x}", (hash >> 16) ^ (hash & 0xffff));
            format!("{}{suffix}", trimmed(&prefix[..max - suffix.len()]))
        }
        _ => allowed.to_owned(),
    }
}

fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || "-_.".contains(c)
}

fn trimmed(text: &str) -> &str {
    text.trim_matches(|c: char| !c.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_spelt_as_gpu_feature_discovery_spells_them() {
        for (text, expected) in [
            ("NVIDIA A100-SXM4-40GB", "NVIDIA-A100-SXM4-40GB"),
            ("  Tesla   T4 ", "Tesla-T4"),
            ("NVIDIA H100 80GB HBM3", "NVIDIA-H100-80GB-HBM3"),
            ("Product (rev. 2)/x_y", "Product-rev.-2x_y"),
            ("a\tb", "ab"),
            ("ü", ""),
        ] {
            assert_eq!(sanitised(text), expected, "{text:?}");
        }
    }

    #[test]
    fn a_long_model_is_cut_before_its_suffix() {
        let long = "x".repeat(80);
        let label_value = value(&product(&long, "-MIG-1g.5gb-SHARED"));
        assert_eq!(label_value.len(), 63);
        assert!(label_value.ends_with("x-MIG-1g.5gb-SHARED"), "{label_value}");
    }

    #[test]
    fn long_models_with_a_common_prefix_stay_distinct() {
        let prefix = "NVIDIA-RTX-PRO-6000-Blackwell-Max-Q-Workstation";
        let (one, other) = (model_in_key(prefix), model_in_key(&format!("{prefix}-2")));
        assert_ne!(one, other);
        assert_eq!((one.len(), other.len()), (45, 45));
        assert_eq!(
            model_in_key("NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"),
            "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition",
            "the longest common name fits"
        );
    }
}
