//! Container edits by strategy, as a table, with the semantics of NVIDIA's plugin.

use windlass_config::{DeviceIdStrategy, Imex, NicPolicy};
use windlass_core::device::{DeviceKind, SourceName};

use super::*;

const GPU: &str = "nvidia.com/gpu";

fn device(kind: DeviceKind, id: &str, index: u32, part: Option<u32>) -> Device {
    let id = id.parse().expect("valid");
    Device {
        index,
        nodes: vec![DeviceNode::new(format!("/dev/nvidia{index}"))],
        part,
        ..Device::new(id, kind, SourceName::NVIDIA, jiff::Timestamp::UNIX_EPOCH)
    }
}

fn delivery(strategies: &[DeviceListStrategy]) -> Delivery {
    let strategies = strategies.iter().copied().collect();
    let imex = Imex { channels: [0].into(), ..Imex::default() };
    Delivery { strategies, imex, pass_device_specs: true, ..Delivery::default() }
}

fn edits_for(delivery: &Delivery) -> AllocationEdits {
    let gpu = device(DeviceKind::Gpu, "GPU-a", 0, None);
    let instance = device(DeviceKind::Mig, "MIG-b", 1, Some(2));
    let node_extras = NodeExtras {
        control_nodes: vec!["/dev/nvidiactl".into()],
        imex_channels: [0].into(),
        cdi_extras: vec!["windlass.dev/gds=all".to_owned()],
    };
    allocation_edits(AllocationRequest {
        resource: &GPU.parse().expect("valid"),
        devices: &[&gpu, &instance],
        delivery,
        nics: &NicPolicy::default(),
        node_extras: &node_extras,
        mps: None,
        limits: &[],
        simulated: None,
    })
}

fn env<'a>(edits: &'a AllocationEdits, name: &str) -> Option<&'a str> {
    edits.envs.get(name).map(String::as_str)
}

#[test]
fn every_resource_has_a_variable_of_its_own() {
    for (resource, expected) in [
        ("nvidia.com/gpu", "WINDLASS_NVIDIA_COM_GPU"),
        ("nvidia.com/mig-1g.10gb", "WINDLASS_NVIDIA_COM_MIG_1G_10GB"),
    ] {
        assert_eq!(resource_variable(&resource.parse().expect("valid")), expected);
    }
}

#[test]
fn names_are_uuids_or_positions() {
    for (ids, expected) in
        [(DeviceIdStrategy::Uuid, "GPU-a,MIG-b"), (DeviceIdStrategy::Index, "0,1:2")]
    {
        let delivery = Delivery { ids, ..delivery(&[DeviceListStrategy::Envvar]) };
        assert_eq!(env(&edits_for(&delivery), VISIBLE_DEVICES), Some(expected));
    }
}

#[test]
fn each_strategy_gives_what_its_runtime_reads() {
    let names = "windlass.dev/gpu=GPU-a,windlass.dev/gpu=MIG-b,windlass.dev/gds=all";
    for (strategies, visible, mounts, nodes, cri, annotation) in [
        (&[DeviceListStrategy::Envvar][..], Some("GPU-a,MIG-b"), 0, 4, 0, None),
        (&[DeviceListStrategy::VolumeMounts], Some(MOUNTED_DEVICES), 3, 4, 0, None),
        (&[DeviceListStrategy::CdiCri], None, 0, 0, 3, None),
        (&[DeviceListStrategy::CdiAnnotations], None, 0, 0, 0, Some(names)),
        (
            &[DeviceListStrategy::CdiCri, DeviceListStrategy::CdiAnnotations],
            None,
            0,
            0,
            3,
            Some(names),
        ),
        (
            &[DeviceListStrategy::CdiCri, DeviceListStrategy::Envvar],
            Some("GPU-a,MIG-b"),
            0,
            4,
            3,
            None,
        ),
        // The last writer of the variable, as in NVIDIA's plugin.
        (
            &[DeviceListStrategy::Envvar, DeviceListStrategy::VolumeMounts],
            Some(MOUNTED_DEVICES),
            3,
            4,
            0,
            None,
        ),
    ] {
        let edits = edits_for(&delivery(strategies));
        assert_eq!(env(&edits, VISIBLE_DEVICES), visible, "{strategies:?}");
        let counts = (edits.mounts.len(), edits.nodes.len(), edits.cdi_devices.len());
        assert_eq!(counts, (mounts, nodes, cri), "{strategies:?}");
        let actual_annotation = edits.annotations.get("cdi.k8s.io/windlass_nvidia.com_gpu");
        assert_eq!(actual_annotation.map(String::as_str), annotation, "{strategies:?}");
    }
}

#[test]
fn mounts_name_devices_and_channels() {
    let edits = edits_for(&delivery(&[DeviceListStrategy::VolumeMounts]));
    let paths: Vec<_> =
        edits.mounts.iter().map(|m| m.container_path.display().to_string()).collect();
    let folder = "/var/run/nvidia-container-devices";
    let expected = ["GPU-a", "MIG-b", "imex/0"].map(|name| format!("{folder}/{name}"));
    assert_eq!(paths, expected);
    assert!(edits.mounts.iter().all(|mount| mount.host_path == Path::new("/dev/null")));
}

#[test]
fn no_feature_depends_on_the_devices() {
    let mut delivery = delivery(&[DeviceListStrategy::Envvar]);
    delivery.features = Feature::ALL.iter().copied().collect();
    let edits = edits_for(&delivery);
    let enabled: Vec<_> = edits.envs.iter().filter(|(_, value)| *value == "enabled").collect();
    assert_eq!(enabled.len(), Feature::ALL.len());
    assert!(enabled.iter().all(|(name, _)| !depends_on_devices(name)), "{enabled:?}");
}

#[test]
fn imex_channels_and_features_are_variables_for_nvidias_runtime() {
    let mut delivery = delivery(&[DeviceListStrategy::Envvar]);
    delivery.features = [Feature::Gds, Feature::Gdrcopy].into();
    let edits = edits_for(&delivery);
    assert_eq!(env(&edits, "NVIDIA_IMEX_CHANNELS"), Some("0"));
    assert_eq!(env(&edits, "NVIDIA_GDS"), Some("enabled"));
    assert_eq!(env(&edits, "NVIDIA_GDRCOPY"), Some("enabled"));
    assert_eq!(env(&edits, "NVIDIA_MOFED"), None);
    let channel = Path::new("/dev/nvidia-caps-imex-channels/channel0");
    assert!(edits.nodes.contains(&DeviceNode::shared(channel)));
}
