//! Names of imported resources, and of the sources that offer them.

use std::collections::BTreeSet;

use windlass_config::document::{Diagnostics, Spanned};
use windlass_core::{device::SourceName, resource::ResourceName};

/// Names of the sources so far, to keep new names unique.
#[derive(Debug, Default)]
pub(super) struct SourceNames {
    used: BTreeSet<SourceName>,
}

/// The resource name `prefix/name`; `None` with a diagnostic if it is invalid.
pub(super) fn resource(
    prefix: &str,
    name: &Spanned<String>,
    diagnostics: &mut Diagnostics,
) -> Option<ResourceName> {
    let parsed = format!("{prefix}/{}", name.value).parse();
    parsed.map_err(|error| diagnostics.error(name.line, format!("{error}"))).ok()
}

/// True for a non-empty name of ASCII letters, digits and the bytes in `extra`.
pub(super) fn is_made_of(name: &str, extra: &[u8]) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || extra.contains(&byte);
    !name.is_empty() && name.bytes().all(allowed)
}

// === impl SourceNames ===

impl SourceNames {
    /// Creates a unique source name from a text, whose invalid characters become hyphens.
    pub(super) fn unique(&mut self, text: &str) -> SourceName {
        let base = sanitised(text);
        let numbered = (2_u32..).map(|number| format!("-{number}"));
        let name = std::iter::once(String::new())
            .chain(numbered)
            .map(|suffix| with_suffix(&base, &suffix))
            .find(|name| !name.is_built_in() && !self.used.contains(name))
            .expect("there are more numbers than names");
        self.used.insert(name.clone());
        name
    }
}

/// Converts a text to the characters of source names.
fn sanitised(text: &str) -> String {
    let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let name: String = text.chars().map(letter).collect();
    let is_first = |c: char| c.is_ascii_lowercase();
    name.trim_start_matches(|c| !is_first(c)).to_owned()
}

fn with_suffix(base: &str, suffix: &str) -> SourceName {
    let max_chars = SourceName::MAX_CHARS - suffix.len();
    let stem: String = base.chars().take(max_chars).collect();
    let stem = Some(stem.trim_end_matches('-')).filter(|stem| !stem.is_empty()).unwrap_or("device");
    format!("{stem}{suffix}").parse().expect("all characters are valid")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn sources_are_named_after_their_resources_and_uniquely() {
        let mut names = SourceNames::default();
        for (text, expected) in [
            ("serial", "serial"),
            ("serial", "serial-2"),
            ("Intel_FPGA", "intel-fpga"),
            ("fpga", "fpga-2"),
            ("3d-printer", "d-printer"),
            ("42", "device"),
            ("a-name-that-is-longer-than-any", "a-name-that-is-longer-th"),
            ("a-name-that-is-longer-than-any", "a-name-that-is-longer-2"),
        ] {
            assert_eq!(names.unique(text).as_str(), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_valid_name(text in "\\PC{0,40}") {
            let mut names = SourceNames::default();
            prop_assert_ne!(names.unique(&text), names.unique(&text));
        }
    }
}
