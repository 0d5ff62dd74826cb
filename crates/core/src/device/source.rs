//! Name of a device source.

use std::{borrow::Cow, str::FromStr};

/// Name of a device source: `nvidia`, `amd`, or a configured name. It is also the class of its CDI documents.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceName(Cow<'static, str>);

/// Text that is not a source name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot name a source: use 1 to {max} lower-case letters, digits and '-', a letter first \
     and no '-' at the end",
    max = SourceName::MAX_CHARS
)]
pub struct InvalidSourceName(String);

show_text!(SourceName);
deserialize_from_text!(SourceName);

// === impl SourceName ===

impl SourceName {
    /// Maximum length of a name, which leaves room in the device ids that begin with it.
    pub const MAX_CHARS: usize = 24;

    /// Name of a built-in source, which is not checked.
    pub(super) const fn from_static(name: &'static str) -> Self {
        Self(Cow::Borrowed(name))
    }
}

impl FromStr for SourceName {
    type Err = InvalidSourceName;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_valid = (1..=Self::MAX_CHARS).contains(&text.len())
            && text.bytes().all(is_allowed)
            && text.starts_with(|first: char| first.is_ascii_lowercase())
            && !text.ends_with('-');
        if is_valid {
            Ok(Self(Cow::Owned(text.to_owned())))
        } else {
            Err(InvalidSourceName(text.to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_named_as_a_cdi_class_is() {
        for good in ["kvm", "darwin3", "coral-usb", &"x".repeat(24)] {
            assert_eq!(good.parse::<SourceName>().expect("valid").as_str(), good);
        }
        for bad in ["", "3d", "-a", "a-", "A", "a_b", "a.b", &"x".repeat(25)] {
            assert!(bad.parse::<SourceName>().is_err(), "{bad:?}");
        }
    }
}
