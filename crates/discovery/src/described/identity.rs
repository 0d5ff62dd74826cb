//! Device ids of configured sources: source name and identity.

use windlass_core::{
    device::{DeviceId, SourceName},
    name::digest,
};

/// The id of a device. Invalid characters are replaced and long text is cut; a digest of the whole identity then keeps
/// ids distinct.
pub(super) fn id(source: &SourceName, identity: &str) -> DeviceId {
    let (text, is_lossy) = id_text(identity);
    let full_id = format!("{source}-{text}");
    let id = if is_lossy || full_id.len() > DeviceId::MAX_CHARS {
        let digest = format!("-{:016x}", digest(identity));
        let prefix = &full_id[..full_id.len().min(DeviceId::MAX_CHARS - digest.len())];
        format!("{prefix}{digest}")
    } else {
        full_id
    };
    id.parse().expect("has valid characters and at most MAX_CHARS of them")
}

/// Identity in the characters of an id, and true if the replacement loses information. `:`, `/`, and `.` of PCI
/// addresses become `-`, which loses none: no two identities differ in these characters only.
fn id_text(identity: &str) -> (String, bool) {
    let mut is_lossy = identity.is_empty();
    let valid_letter = |letter: char| match letter {
        ':' | '/' => '-',
        '.' if is_address(identity) => '-',
        letter if letter.is_ascii_alphanumeric() || "-_.".contains(letter) => letter,
        _ => {
            is_lossy = true;
            '-'
        }
    };
    (identity.chars().map(valid_letter).collect(), is_lossy)
}

fn is_address(text: &str) -> bool {
    text.get(..12).is_some_and(|address| address.parse::<windlass_core::pci::PciAddress>().is_ok())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn source() -> SourceName {
        "coral".parse().expect("valid")
    }

    #[test]
    fn ids_contain_the_identity() {
        for (identity, expected) in [
            ("0000:1b:00.0", "coral-0000-1b-00-0"),
            ("FT4X.9", "coral-FT4X.9"),
            ("net/tun", "coral-net-tun"),
            ("0000:00:14.0-0-4.2", "coral-0000-00-14-0-0-4-2"),
            ("board 1", "coral-board-1-655d1ec06534ade0"),
        ] {
            assert_eq!(id(&source(), identity).as_str(), expected);
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_an_id_and_long_ones_remain_distinct(text in ".{0,90}") {
            let any_id = id(&source(), &text);
            let long = format!("{}a", "x".repeat(80));
            prop_assert!(any_id.as_str().len() <= DeviceId::MAX_CHARS);
            prop_assert_ne!(id(&source(), &long), id(&source(), &format!("{long}b")));
        }
    }
}
