//! Default resources of FPGAs: the names of AMD's and Intel's plugins.

use windlass_core::{device::Device, resource::ResourceName};
use windlass_host::abbreviate::shortened;

use super::{
    alveo::{self, SHELL, SHELL_TIMESTAMP},
    manager::{self, MANAGER},
    regions::{self, FUNCTION, INTERFACE},
};

/// Maximum length of a resource name after the slash.
const MAX_CHARS: usize = 63;

/// Hexadecimal digits of a region or function id.
const DIGITS: usize = 32;

/// Common suffix of manager names.
const MANAGER_SUFFIX: &str = "-fpga-manager";

/// Default resource; `None` for an unknown program.
pub(crate) fn resource(device: &Device) -> Option<ResourceName> {
    let shell = || {
        let name = format!(
            "{}-{}",
            device.text_attribute(&SHELL)?,
            device.text_attribute(&SHELL_TIMESTAMP)?
        );
        Some((alveo::DOMAIN, as_resource_part(&name)))
    };
    let region = || {
        let interface = device.text_attribute(&INTERFACE).filter(|id| is_hexadecimal(id))?;
        let is_function = device.id.as_str().contains("-port-");
        let function =
            device.text_attribute(&FUNCTION).filter(|id| is_function && is_hexadecimal(id));
        let name = match function {
            Some(function) => function_name(interface, function)?,
            None if is_function => return None,
            None => format!("region-{interface}"),
        };
        Some((regions::DOMAIN, name))
    };
    let logic = || {
        let name = device.text_attribute(&MANAGER)?.to_lowercase().replace(' ', "-");
        let name = name.strip_suffix(MANAGER_SUFFIX).unwrap_or(&name);
        Some((manager::DOMAIN, as_resource_part(&format!("fpga-{name}"))))
    };
    let (domain, name) = shell().or_else(region).or_else(logic)?;
    format!("{domain}/{name}").parse().ok()
}

/// Resource of a region's function in Intel's plugin: the first three digits of both ids, then both whole ids in
/// base64.
fn function_name(interface: &str, function: &str) -> Option<String> {
    let digits = format!("{interface}{function}");
    let pairs = (0..digits.len()).step_by(2).map(|index| digits.get(index..index + 2));
    let bytes: Option<Vec<u8>> = pairs.map(|pair| u8::from_str_radix(pair?, 16).ok()).collect();
    Some(format!("af-{}.{}.{}", &interface[..3], &function[..3], base64url(&bytes?)))
}

fn is_hexadecimal(id: &str) -> bool {
    id.len() == DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Base64url without padding (RFC 4648, section 5).
fn base64url(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let letters = bytes.chunks(3).flat_map(|chunk| {
        let group = (0..3).fold(0_u32, |group, index| {
            (group << 8) | u32::from(chunk.get(index).copied().unwrap_or_default())
        });
        let letter = move |index: usize| ALPHABET[(group >> (18 - 6 * index)) as usize & 63];
        (0..=chunk.len()).map(letter)
    });
    letters.map(char::from).collect()
}

/// Text as the last part of a resource name: invalid characters are replaced, and long text is shortened.
fn as_resource_part(text: &str) -> String {
    let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    let allowed: String =
        text.chars().map(|letter| if is_allowed(letter) { letter } else { '_' }).collect();
    let is_trimmed = |letter: char| !letter.is_ascii_alphanumeric();
    shortened(allowed.trim_matches(is_trimmed), MAX_CHARS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_named_as_intels_plugin_names_them() {
        for (interface, function, expected) in [
            (
                "ce48969398f05f33946d560708be108a",
                "d8424dc4a4a3c413f89e433683f9040b",
                "af-ce4.d84.zkiWk5jwXzOUbVYHCL4QithCTcSko8QT-J5DNoP5BAs",
            ),
            (
                "bfac4d851ee856fe8c95865ce1bbaa2d",
                "f7df405cbd7acf7222f144b0b93acd18",
                "af-bfa.f7d.v6xNhR7oVv6MlYZc4buqLfffQFy9es9yIvFEsLk6zRg",
            ),
        ] {
            assert_eq!(function_name(interface, function).as_deref(), Some(expected));
        }
        assert!(!is_hexadecimal("unparsable"));
    }

    #[test]
    fn every_name_is_valid_in_a_resource() {
        for (text, expected) in [
            ("xilinx_u200_xdma_201830_1-1561465320", "xilinx_u200_xdma_201830_1-1561465320"),
            ("xilinx:u200:xdma:201830.1-15", "xilinx_u200_xdma_201830.1-15"),
            ("../a b/", "a_b"),
        ] {
            assert_eq!(as_resource_part(text), expected);
        }
        assert_eq!(as_resource_part(&"x".repeat(80)).len(), MAX_CHARS);
    }
}
