//! Wildcard patterns for products and profiles: `NVIDIA A100*`.

use serde::{Deserialize, Deserializer, de::Error as _};
use windlass_config::{Selector, mig_profile};
use windlass_core::{
    attribute::AttributeName,
    device::DeviceKind,
    selector::{DeviceExpression, InvalidExpression, literal},
};

/// A name in which `*` matches any text, including none. The pattern must match a whole name. Deserialization validates
/// it, and `into_selector` converts it to a CEL expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(String);

// === impl Pattern ===

impl Pattern {
    pub(super) fn into_selector(self, kind: DeviceKind) -> Selector {
        let all = Selector::all(kind);
        match kind {
            _ if self.0 == "*" => all,
            DeviceKind::Mig if mig_profile::is_possible(&self.0) => {
                Selector { mig_profiles: [self.0].into(), ..all }
            }
            DeviceKind::Mig => Selector { expression: self.expression("profile").ok(), ..all },
            _ => Selector { expression: self.expression("productName").ok(), ..all },
        }
    }

    fn expression(&self, attribute: &'static str) -> Result<DeviceExpression, InvalidExpression> {
        self.to_cel(&AttributeName::new("nvidia.com", attribute)).parse()
    }

    /// CEL expression for devices whose attribute matches. Devices without the attribute do not match.
    fn to_cel(&self, attribute: &AttributeName) -> String {
        let (domain, name) = (literal(attribute.domain()), attribute.name());
        let value = format!("device.attributes[{domain}].{name}");
        let condition = if self.0.contains('*') {
            format!("{value}.matches({})", literal(&self.to_regex()))
        } else {
            format!("{value} == {}", literal(&self.0))
        };
        format!("has({value}) && {condition}")
    }

    /// Regular expression of the pattern. `(?s)` makes `.` match line ends.
    fn to_regex(&self) -> String {
        let pieces: Vec<_> = self.0.split('*').map(regex_syntax::escape).collect();
        format!("(?s)^{}$", pieces.join(".*"))
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pattern = Self(String::deserialize(deserializer)?);
        if pattern.0.is_empty() {
            return Err(D::Error::custom("an empty pattern fits nothing: write a name, or *"));
        }
        // `into_selector` relies on this check.
        pattern.expression("productName").map_err(D::Error::custom)?;
        Ok(pattern)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;
    use windlass_core::{
        attribute::AttributeValue,
        device::{Device, DeviceKind, SourceName},
        selector::DeviceExpression,
    };

    use super::*;

    const PRODUCT: AttributeName = AttributeName::new("nvidia.com", "productName");

    fn pattern(text: &str) -> Pattern {
        Pattern(text.to_owned())
    }

    /// True if the pattern matches the whole name. A second implementation, to compare the expression with.
    fn matches_name(pattern: &str, name: &str) -> bool {
        let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
        let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
        let inner = name.strip_prefix(head).and_then(|name| name.strip_suffix(tail));
        // The first occurrence of each piece suffices: a later one leaves less text.
        let end_of = |name: &'_ str, piece: &str| name.find(piece).map(|at| at + piece.len());
        let remainder = inner.and_then(|inner| {
            middle.split('*').try_fold(inner, |name, piece| Some(&name[end_of(name, piece)?..]))
        });
        remainder.is_some()
    }

    /// A device with the product name, which is not shortened.
    fn device(name: Option<&str>) -> Device {
        let value = |name: &str| (PRODUCT, AttributeValue::String(name.to_owned()));
        let id = "GPU-0".parse().expect("valid");
        Device {
            attributes: name.map(value).into_iter().collect(),
            ..Device::new(id, DeviceKind::Gpu, SourceName::NVIDIA, Timestamp::UNIX_EPOCH)
        }
    }

    fn by_cel(pattern: &Pattern, name: Option<&str>) -> bool {
        let expression: DeviceExpression = pattern.to_cel(&PRODUCT).parse().expect("an expression");
        expression.matches(&device(name)).expect("an answer")
    }

    #[test]
    fn patterns_match_whole_names() {
        for (text, name, expected) in [
            ("*", "NVIDIA L4", true),
            ("*", "", true),
            ("NVIDIA A100*", "NVIDIA A100-SXM4-40GB", true),
            ("NVIDIA A100*", "NVIDIA A100", true),
            ("A100*", "NVIDIA A100", false),
            ("*A100", "NVIDIA A100-PCIE", false),
            ("1g.5gb", "1gx5gb", false),
            ("1g.*gb*", "1g.10gb+me", true),
            ("a*a", "a", false),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "ab-a", false),
        ] {
            assert_eq!(matches_name(text, name), expected, "{text} {name}");
            assert_eq!(by_cel(&pattern(text), Some(name)), expected, "{text} {name}");
        }
    }

    #[test]
    fn the_expression_is_readable() {
        assert_eq!(
            pattern("NVIDIA A100-SXM*").to_cel(&PRODUCT),
            r#"has(device.attributes["nvidia.com"].productName) && device.attributes["nvidia.com"].productName.matches("(?s)^NVIDIA A100\\-SXM.*$")"#
        );
        assert_eq!(
            pattern("1g.5gb").to_cel(&PRODUCT),
            r#"has(device.attributes["nvidia.com"].productName) && device.attributes["nvidia.com"].productName == "1g.5gb""#
        );
    }

    #[test]
    fn a_device_without_the_attribute_does_not_match() {
        assert!(!by_cel(&pattern("*"), None));
    }

    #[test]
    fn an_empty_pattern_is_refused() {
        assert!(serde_json::from_str::<Pattern>("\"\"").is_err());
    }

    proptest! {
        #[test]
        fn a_pattern_without_a_star_fits_itself_only(text in "[^*]{1,12}", other in "\\PC{0,12}") {
            prop_assert!(matches_name(&text, &text) && by_cel(&pattern(&text), Some(&text)));
            prop_assert_eq!(by_cel(&pattern(&text), Some(&other)), text == other);
        }

        #[test]
        fn a_pattern_and_its_expression_agree(
            text in "[a*.\\\\\"\n]{1,6}|(?s).{1,6}", name in "[a.\\\\\"\n]{0,6}|(?s).{0,6}",
        ) {
            let pattern = pattern(&text);
            prop_assert_eq!(by_cel(&pattern, Some(&name)), matches_name(&text, &name));
            let filled = text.replace('*', &name);
            prop_assert!(matches_name(&text, &filled) && by_cel(&pattern, Some(&filled)));
        }
    }
}
