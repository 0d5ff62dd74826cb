//! Templates with placeholders, `/dev/vfio/{attr:iommuGroup}`.
//!
//! Braces stay literal if their content has other characters than letters, digits and `-_./:`, so that variables may
//! contain JSON. `{{id}}` gives a literal `{id}`.

use std::path::Path;

use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    device::Device,
};

/// Error of an unknown placeholder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{{{0}}} is not a placeholder: there are {known}", known = known())]
pub struct UnknownPlaceholder(String);

/// Error of a placeholder without a value on this device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it has no {{{0}}}")]
pub struct MissingValue(String);

#[derive(Debug, PartialEq, Eq)]
enum Piece<'a> {
    Text(&'a str),
    /// Content of single braces.
    Placeholder(&'a str),
    /// Content of double braces, which stand for literal single braces.
    Literal(&'a str),
}

const PLACEHOLDERS: &[&str] = &[
    "id", "index", "name", "pci", "numa", "serial", "path", "node", "endpoint", "host", "driver",
    POSITION,
];

/// Placeholder that stays in the text: container edits fill it in, since they know the container's other devices.
const POSITION: &str = "position";

/// Prefix of attribute placeholders.
const ATTRIBUTE: &str = "attr:";

const DOMAIN: &str = "windlass.dev";

/// Checks that every placeholder is known.
pub fn check(text: &str) -> Result<(), UnknownPlaceholder> {
    pieces(text).into_iter().try_for_each(|piece| match piece {
        Piece::Placeholder(word) if !is_known(word) => Err(UnknownPlaceholder(word.to_owned())),
        Piece::Text(_) | Piece::Placeholder(_) | Piece::Literal(_) => Ok(()),
    })
}

/// The text with the device's values in place of placeholders.
pub fn fill(text: &str, device: &Device) -> Result<String, MissingValue> {
    fill_with(text, device, str::to_owned)
}

/// Like [`fill`], with each value passed through `quote`.
pub fn fill_with(
    text: &str,
    device: &Device,
    quote: impl Fn(&str) -> String,
) -> Result<String, MissingValue> {
    let piece = |piece| match piece {
        Piece::Text(text) => Ok(text.to_owned()),
        Piece::Literal(word) | Piece::Placeholder(word @ POSITION) => Ok(format!("{{{word}}}")),
        Piece::Placeholder(word) => {
            let value = value(word, device).ok_or_else(|| MissingValue(word.to_owned()))?;
            Ok(quote(&value))
        }
    };
    pieces(text).into_iter().map(piece).collect()
}

/// Placeholder of an attribute.
pub fn placeholder(attribute: &str) -> String {
    format!("{{{ATTRIBUTE}{attribute}}}")
}

/// The text with `value` in place of every placeholder.
pub fn fill_all(text: &str, value: &str) -> String {
    let piece = |piece| match piece {
        Piece::Text(text) => text.to_owned(),
        Piece::Literal(word) => format!("{{{word}}}"),
        Piece::Placeholder(_) => value.to_owned(),
    };
    pieces(text).into_iter().map(piece).collect()
}

fn pieces(text: &str) -> Vec<Piece<'_>> {
    let (mut pieces, mut text_start, mut index) = (Vec::new(), 0, 0);
    while let Some(brace) = text[index..].find('{').map(|brace| index + brace) {
        let is_double = text[brace..].starts_with("{{");
        let (word_start, closing) = if is_double { (brace + 2, "}}") } else { (brace + 1, "}") };
        let word =
            text[word_start..].find(closing).map(|length| &text[word_start..word_start + length]);
        let Some(word) = word.filter(|word| is_word(word)) else {
            index = brace + 1;
            continue;
        };
        pieces.push(Piece::Text(&text[text_start..brace]));
        pieces.push(if is_double { Piece::Literal(word) } else { Piece::Placeholder(word) });
        index = word_start + word.len() + closing.len();
        text_start = index;
    }
    pieces.push(Piece::Text(&text[text_start..]));
    pieces
}

fn is_word(text: &str) -> bool {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_./:".contains(letter);
    !text.is_empty() && text.chars().all(is_allowed)
}

fn known() -> String {
    let words = PLACEHOLDERS.iter().map(|word| format!("{{{word}}}"));
    words.chain(["{attr:NAME}".to_owned()]).collect::<Vec<_>>().join(", ")
}

fn is_known(word: &str) -> bool {
    let attribute = word.strip_prefix(ATTRIBUTE);
    attribute.map_or_else(|| PLACEHOLDERS.contains(&word), |name| !name.is_empty())
}

fn value(word: &str, device: &Device) -> Option<String> {
    let windlass_attribute = |name| attribute(device, DOMAIN, name);
    if let Some(name) = word.strip_prefix(ATTRIBUTE) {
        let qualified = name.rsplit_once('/');
        return qualified.map_or_else(
            || windlass_attribute(name),
            |(domain, name)| attribute(device, domain, name),
        );
    }
    match word {
        "id" => Some(device.id.to_string()),
        "index" => Some(device.index.to_string()),
        "pci" => device.place.pci.map(|address| address.to_string()),
        "numa" => device.place.numa_node.map(|node| node.to_string()),
        "serial" => windlass_attribute("serial").or_else(|| windlass_attribute("usbSerial")),
        "path" => device.origin.clone().filter(|origin| origin.starts_with('/')),
        "node" => device.own_nodes().next().map(|node| node.path.display().to_string()),
        // The origin comes first, since long attributes are truncated.
        "endpoint" => {
            let origin = device.origin.clone().filter(|origin| !Path::new(origin).is_absolute());
            origin.or_else(|| windlass_attribute("endpoint"))
        }
        "name" | "host" | "driver" => windlass_attribute(word),
        _ => None,
    }
}

fn attribute(device: &Device, domain: &str, name: &str) -> Option<String> {
    let is_named = |key: &&AttributeName| key.domain() == domain && key.name() == name;
    let key = device.attributes.keys().find(is_named)?;
    device.attributes.get(key).map(AttributeValue::to_string)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;
    use windlass_core::device::{DeviceKind, DeviceNode, Location};

    use super::*;

    fn device() -> Device {
        let (id, source) = ("video-1".parse(), "video".parse());
        let (id, source) = (id.expect("valid"), source.expect("valid"));
        let device = Device::new(id, DeviceKind::Other, source, Timestamp::UNIX_EPOCH);
        let attribute_name = |name| AttributeName::new(DOMAIN, name);
        let attributes = [("name", "video0"), ("usbSerial", "A1"), ("driver", "uvcvideo")];
        Device {
            origin: Some("/sys/devices/video0".to_owned()),
            attributes: attributes
                .map(|(name, text)| (attribute_name(name), AttributeValue::string(text)))
                .into(),
            place: Location { numa_node: Some(1), ..Location::default() },
            nodes: vec![DeviceNode::shared("/dev/all"), DeviceNode::new("/dev/video0")],
            index: 3,
            ..device
        }
    }

    #[test]
    fn placeholders_get_the_devices_values() {
        for (text, expected) in [
            ("{id} {index} {name} {numa} {serial}", "video-1 3 video0 1 A1"),
            ("{node} {path} {driver}", "/dev/video0 /sys/devices/video0 uvcvideo"),
            ("{attr:windlass.dev/usbSerial}{attr:name}", "A1video0"),
            ("CAMERA_{position}", "CAMERA_{position}"),
            ("{{id}} {{{id}}}", "{id} {{id}}"),
            (r#"{"a":{"b":"{id}"}}"#, r#"{"a":{"b":"video-1"}}"#),
            ("{ id } {} }{", "{ id } {} }{"),
        ] {
            assert_eq!(fill(text, &device()).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn the_error_names_the_missing_value() {
        let missing =
            |text| fill(text, &device()).expect_err("the device has no value").to_string();
        assert_eq!(missing("{pci}"), "it has no {pci}");
        assert_eq!(missing("{endpoint}"), "it has no {endpoint}", "a path is not an address");
        assert_eq!(missing("{attr:iommuGroup}"), "it has no {attr:iommuGroup}");
    }

    #[test]
    fn the_error_of_an_unknown_placeholder_lists_the_known_ones() {
        let unknown = check("/dev/{serail}").expect_err("unknown").to_string();
        assert!(
            unknown.starts_with("{serail} is not a placeholder: there are {id}, {index}"),
            "{unknown}"
        );
        assert!(unknown.ends_with("{attr:NAME}"), "{unknown}");
        assert_eq!(check(r#"{"json": 1} {{any}} {position} {attr:x}"#), Ok(()));
    }

    proptest! {
        #[test]
        fn any_text_is_filled_in_or_an_error(text in "[a-z{}:/ é]{0,30}") {
            let filled = fill(&text, &device());
            if check(&text).is_err() {
                prop_assert!(filled.is_err());
            }
            if !text.contains('{') {
                prop_assert_eq!(filled, Ok(text));
            }
        }

        #[test]
        fn double_braces_are_literal_single_ones(word in "[a-z]{1,8}") {
            let text = format!("{{{{{word}}}}}");
            prop_assert_eq!(fill(&text, &device()), Ok(format!("{{{word}}}")));
        }
    }
}
