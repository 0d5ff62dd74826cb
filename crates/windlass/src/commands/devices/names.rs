//! Short device names for tables and the command line.

use windlass_core::{attribute::AttributeName, device::Device};

const RDMA_DEVICE: AttributeName = AttributeName::new("windlass.dev", "rdmaDevice");

/// Short name: `GPU0`, `GPU0:3`, `AMD0`, `mlx5_0`, `FPGA1`, `nvme0`, `fuse0`.
pub(crate) fn name(device: &Device) -> String {
    let text = |key: &_| device.attributes.get(key).map(ToString::to_string);
    let (kind, by_position) = (device.kind, by_position(device));
    match text(&RDMA_DEVICE).filter(|_| kind.is_network()) {
        Some(name) => name,
        None if kind.is_mig_instance() && device.part.is_none() => {
            format!("{by_position}:{}", device.mig_profile().unwrap_or_default())
        }
        None => by_position,
    }
}

/// Name by kind and index.
fn by_position(device: &Device) -> String {
    let part = device.part.map(|part| format!(":{part}")).unwrap_or_default();
    format!("{}{}{part}", name_prefix(device), device.index)
}

/// Prefix before the index. GPUs of vendors other than NVIDIA have the vendor's name, because a node may have several.
pub(crate) fn name_prefix(device: &Device) -> String {
    let source = device.source.as_str();
    match device.family().prefix.or(device.kind.facts().prefix) {
        Some(prefix) => prefix.to_owned(),
        None if device.kind.is_gpu() => source.to_uppercase(),
        // A separator keeps a trailing digit apart from the index.
        None if source.ends_with(|last: char| last.is_ascii_digit()) => format!("{source}-"),
        None => source.to_owned(),
    }
}

/// True if `word` is the device's id, short name, or kind and index. A MIG instance also matches its parent's name.
pub(crate) fn is_named(device: &Device, word: &str) -> bool {
    let matches = |name: String| name.eq_ignore_ascii_case(word);
    let without_part = format!("{}{}", name_prefix(device), device.index);
    device.id.as_str() == word || matches(name(device)) || matches(without_part)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use windlass_core::device::{DeviceKind, SourceName};

    use super::*;

    #[test]
    fn every_device_of_a_mixed_node_has_a_unique_name() {
        let coral = "coral".parse::<SourceName>().expect("valid");
        let usb2 = "usb2".parse::<SourceName>().expect("valid");
        let cases = [
            (DeviceKind::Gpu, SourceName::NVIDIA, None, "GPU3"),
            (DeviceKind::Mig, SourceName::NVIDIA, Some(1), "GPU3:1"),
            (DeviceKind::Gpu, SourceName::AMD, None, "AMD3"),
            (DeviceKind::Gpu, SourceName::AMD, Some(7), "AMD3:7"),
            (DeviceKind::Gpu, SourceName::INTEL, None, "INTEL3"),
            (DeviceKind::Nic, SourceName::NICS, None, "NIC3"),
            (DeviceKind::Fpga, SourceName::FPGA, None, "FPGA3"),
            (DeviceKind::Nvme, SourceName::NVME, None, "nvme3"),
            (DeviceKind::Other, coral, None, "coral3"),
            (DeviceKind::Other, usb2, None, "usb2-3"),
        ];
        for (kind, source, part, expected) in cases {
            let id = "the-id".parse().expect("valid");
            let new = Device::new(id, kind, source, Timestamp::UNIX_EPOCH);
            let device = Device { index: 3, part, ..new };
            assert_eq!(name(&device), expected);
            assert!(is_named(&device, &expected.to_lowercase()) && is_named(&device, "the-id"));
        }
    }
}
