//! Wildcard patterns of NVIDIA's plugin for products and profiles: `NVIDIA A100*`.

use std::{fmt, str::FromStr};

use crate::{attribute::AttributeName, selector::literal};

/// A name in which `*` matches any text, the empty one included. It must match the whole name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern(String);

/// An empty pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an empty pattern fits no name: write a name, in which * stands for any text")]
pub struct EmptyPattern;

// === impl Pattern ===

impl Pattern {
    /// The pattern as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// True if the whole name matches.
    pub fn matches(&self, name: &str) -> bool {
        let Some((head, rest)) = self.0.split_once('*') else { return self.0 == name };
        let (middle, tail) = rest.rsplit_once('*').unwrap_or(("", rest));
        let inner = name.strip_prefix(head).and_then(|name| name.strip_suffix(tail));
        // The first occurrence of each piece suffices: a later one leaves less text.
        let after = |name: &'_ str, piece: &str| name.find(piece).map(|at| at + piece.len());
        let left = inner.and_then(|inner| {
            middle.split('*').try_fold(inner, |name, piece| Some(&name[after(name, piece)?..]))
        });
        left.is_some()
    }

    /// CEL expression for devices whose attribute matches, for
    /// [`DeviceExpression`](crate::selector::DeviceExpression) and DRA. Devices without the attribute do not
    /// match.
    pub fn to_cel(&self, attribute: &AttributeName) -> String {
        let (domain, name) = (literal(attribute.domain()), attribute.name());
        let value = format!("device.attributes[{domain}].{name}");
        let fits = if self.0.contains('*') {
            format!("{value}.matches({})", literal(&self.to_regex()))
        } else {
            format!("{value} == {}", literal(&self.0))
        };
        format!("has({value}) && {fits}")
    }

    /// `(?s)` makes `.` match line ends.
    fn to_regex(&self) -> String {
        let mut regex = String::from("(?s)^");
        for c in self.0.chars() {
            match c {
                '*' => regex.push_str(".*"),
                _ if r"\.+?()|[]{}^$#&-~".contains(c) => regex.extend(['\\', c]),
                _ => regex.push(c),
            }
        }
        regex.push('$');
        regex
    }
}

impl FromStr for Pattern {
    type Err = EmptyPattern;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() { Err(EmptyPattern) } else { Ok(Self(text.to_owned())) }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;
    use crate::{
        attribute::AttributeValue,
        device::{Device, DeviceKind, Extras, Place, SourceName},
        health::Health,
        selector::DeviceExpression,
    };

    const PRODUCT: AttributeName = AttributeName::new("nvidia.com", "productName");

    fn pattern(text: &str) -> Pattern {
        text.parse().expect("not empty")
    }

    /// A device with the product name, uncut.
    fn device(name: Option<&str>) -> Device {
        let value = |name: &str| (PRODUCT, AttributeValue::String(name.to_owned()));
        Device {
            id: "GPU-0".parse().expect("valid"),
            kind: DeviceKind::Gpu,
            source: SourceName::NVIDIA,
            index: 0,
            health: Health::unknown(Timestamp::UNIX_EPOCH),
            attributes: name.map(value).into_iter().collect(),
            capacity: BTreeMap::new(),
            place: Place::default(),
            nodes: Vec::new(),
            extras: Extras::default(),
            withheld: None,
            not_alone: None,
            not_shared: None,
            origin: None,
            folder: None,
            parent: None,
            part: None,
            partitioned: false,
            partition: None,
            partitions: [].into(),
        }
    }

    fn by_cel(pattern: &Pattern, name: Option<&str>) -> bool {
        let expression: DeviceExpression = pattern.to_cel(&PRODUCT).parse().expect("an expression");
        expression.matches(&device(name)).expect("an answer")
    }

    #[test]
    fn patterns_of_the_peer_fit_whole_names() {
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
            assert_eq!(pattern(text).matches(name), expected, "{text} {name}");
            assert_eq!(by_cel(&pattern(text), Some(name)), expected, "{text} {name}");
        }
    }

    #[test]
    fn the_expression_can_be_read_by_people() {
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
    fn a_device_without_the_attribute_does_not_fit_and_is_no_error() {
        assert!(!by_cel(&pattern("*"), None));
    }

    #[test]
    fn an_empty_pattern_is_refused() {
        assert_eq!("".parse::<Pattern>(), Err(EmptyPattern));
    }

    proptest! {
        #[test]
        fn a_pattern_without_a_star_fits_itself_only(text in "[^*]{1,12}", other in "\\PC{0,12}") {
            prop_assert!(pattern(&text).matches(&text));
            prop_assert_eq!(pattern(&text).matches(&other), text == other);
        }

        #[test]
        fn a_pattern_and_its_expression_agree(
            text in "[a*.\\\\\"\n]{1,6}|(?s).{1,6}", name in "[a.\\\\\"\n]{0,6}|(?s).{0,6}",
        ) {
            let pattern = pattern(&text);
            prop_assert_eq!(by_cel(&pattern, Some(&name)), pattern.matches(&name));
            let filled = text.replace('*', &name);
            prop_assert!(pattern.matches(&filled) && by_cel(&pattern, Some(&filled)));
        }
    }
}
