//! Labels of gpu-feature-discovery as tables, and validity of every label.

use proptest::prelude::*;

use super::*;
use crate::{
    attribute::{AttributeName, AttributeValue, Quantity},
    device::{Device, DeviceKind, SourceName},
    health::{HealthTracker, Observation, Reason},
};

const A100: &str = "NVIDIA A100-SXM4-40GB";
const T4: &str = "Tesla T4";

const UNSHARED: Offering = Offering { replicas: 1, sharing: Sharing::Exclusive, renamed: false };

/// A node with the offerings of its devices.
#[derive(Default)]
struct Node {
    inventory: Inventory,
    offerings: BTreeMap<DeviceId, Offering>,
    host: HostFacts,
}

fn time_sliced(replicas: u32) -> Offering {
    Offering { replicas, sharing: Sharing::TimeSlicing, renamed: false }
}

fn mps(replicas: u32) -> Offering {
    Offering { replicas, sharing: Sharing::Mps, renamed: false }
}

fn named(name: &'static str) -> AttributeName {
    AttributeName::new("nvidia.com", name)
}

// === impl Node ===

impl Node {
    /// Adds a GPU; without an offering it is withheld.
    fn gpu(mut self, model: &str, compute: &str, offering: Option<Offering>) -> Self {
        let index = self.inventory.of_kind(DeviceKind::Gpu).count();
        self.add(&format!("GPU-{index}"), model, DeviceKind::Gpu, offering);
        self.set("cudaComputeCapability", AttributeValue::version(compute));
        self.set("migCapable", AttributeValue::Bool(compute.starts_with("8.0")));
        self
    }

    /// Partitions the last GPU into instances.
    fn partition(mut self, profiles: &[&str], offering: Option<Offering>) -> Self {
        let gpu = self.last();
        gpu.partitioned = true;
        let (parent, model) = (gpu.id.clone(), gpu.attributes[&named("productName")].to_string());
        for (instance, profile) in profiles.iter().enumerate() {
            self.add(&format!("MIG-{parent}-{instance}"), &model, DeviceKind::Mig, offering);
            self.set("profile", AttributeValue::string(*profile));
            self.last().parent = Some(parent.clone());
            for (amount, name) in [
                "multiprocessors",
                "copyEngines",
                "decoders",
                "encoders",
                "jpegEngines",
                "ofaEngines",
            ]
            .into_iter()
            .enumerate()
            {
                self.last().capacity.insert(named(name), Quantity::Count(amount as u64));
            }
        }
        self
    }

    fn add(&mut self, id: &str, model: &str, kind: DeviceKind, offering: Option<Offering>) {
        let now = Timestamp::UNIX_EPOCH;
        let id: DeviceId = id.parse().expect("valid");
        self.offerings.extend(offering.map(|offering| (id.clone(), offering)));
        self.inventory.devices.push(Device {
            attributes: BTreeMap::from([(named("productName"), AttributeValue::string(model))]),
            capacity: BTreeMap::from([(named("memory"), Quantity::Bytes(40_960 << 20))]),
            ..Device::new(id, kind, SourceName::NVIDIA, now)
        });
    }

    fn set(&mut self, name: &'static str, value: AttributeValue) {
        self.last().attributes.insert(named(name), value);
    }

    fn with(mut self, name: AttributeName, value: AttributeValue) -> Self {
        self.last().attributes.insert(name, value);
        self
    }

    fn last(&mut self) -> &mut Device {
        self.inventory.devices.last_mut().expect("the node has a device")
    }

    fn labels(&self, instances: InstanceNames) -> Labels {
        labels(&LabelInput {
            inventory: &self.inventory,
            offerings: &self.offerings,
            instances,
            host: &self.host,
            enforcement: None,
            timestamp: None,
        })
    }

    /// The labels whose keys have this prefix, as `key=value` lines without the prefix.
    fn with_prefix(&self, instances: InstanceNames, prefix: &str) -> Vec<String> {
        let labels = self.labels(instances);
        let entries =
            labels.iter().filter_map(|(key, value)| Some((key.strip_prefix(prefix)?, value)));
        entries.map(|(key, value)| format!("{key}={value}")).collect()
    }

    fn get(&self, instances: InstanceNames, key: &str) -> Option<String> {
        self.labels(instances).remove(key)
    }
}

/// Product, count, replicas and sharing strategy under `nvidia.com/gpu.`.
fn base(node: &Node, instances: InstanceNames) -> [String; 4] {
    let get = |name| node.get(instances, &format!("nvidia.com/gpu.{name}")).unwrap_or_default();
    ["product", "count", "replicas", "sharing-strategy"].map(get)
}

#[test]
fn whole_gpus_are_described_as_they_are_shared() {
    let shared = |offering| Node::default().gpu(A100, "8.0", offering).gpu(A100, "8.0", offering);
    let renamed = Offering { renamed: true, ..time_sliced(4) };
    for (node, expected) in [
        (shared(Some(UNSHARED)), ["NVIDIA-A100-SXM4-40GB", "2", "1", "none"]),
        (shared(Some(time_sliced(4))), ["NVIDIA-A100-SXM4-40GB-SHARED", "2", "4", "time-slicing"]),
        (shared(Some(mps(4))), ["NVIDIA-A100-SXM4-40GB-SHARED", "2", "4", "mps"]),
        (shared(Some(renamed)), ["NVIDIA-A100-SXM4-40GB", "2", "4", "time-slicing"]),
        (shared(Some(time_sliced(1))), ["NVIDIA-A100-SXM4-40GB", "2", "1", "none"]),
        (shared(None), ["NVIDIA-A100-SXM4-40GB", "2", "0", "none"]),
    ] {
        for strategy in [InstanceNames::None, InstanceNames::Single, InstanceNames::Mixed] {
            assert_eq!(base(&node, strategy), expected);
        }
    }
}

#[test]
fn partitioned_gpus_have_no_replicas_and_are_not_shared() {
    let partitioned = Node::default().gpu(A100, "8.0", Some(time_sliced(2))).partition(&[], None);
    assert_eq!(
        base(&partitioned, InstanceNames::None),
        ["NVIDIA-A100-SXM4-40GB", "1", "0", "none"]
    );
    let with_whole_gpu = partitioned.gpu(A100, "8.0", Some(time_sliced(2)));
    let expected = ["NVIDIA-A100-SXM4-40GB-SHARED", "2", "2", "time-slicing"];
    assert_eq!(
        base(&with_whole_gpu, InstanceNames::None),
        expected,
        "a whole GPU determines the labels of its model"
    );
}

#[test]
fn a_whole_gpu_has_these_labels() {
    let node = Node::default().gpu(A100, "8.0", Some(UNSHARED));
    assert_eq!(
        node.with_prefix(InstanceNames::None, "nvidia.com/gpu."),
        [
            "compute.major=8",
            "compute.minor=0",
            "count=1",
            "family=ampere",
            "machine=unknown",
            "memory=40960",
            "mode=unknown",
            "product=NVIDIA-A100-SXM4-40GB",
            "replicas=1",
            "sharing-strategy=none",
        ]
    );
}

#[test]
fn instances_are_described_by_their_profile() {
    let profiles = ["1g.5gb", "1c.3g.20gb", "1g.5gb", "1g.10gb+me"];
    let node = Node::default().gpu(A100, "8.0", None).partition(&profiles, Some(time_sliced(3)));
    let labels = |profile: &str| {
        node.with_prefix(InstanceNames::Mixed, &format!("nvidia.com/mig-{profile}."))
    };
    assert_eq!(
        labels("1g.5gb"),
        [
            "count=2",
            "engines.copy=1",
            "engines.decoder=2",
            "engines.encoder=3",
            "engines.jpeg=4",
            "engines.ofa=5",
            "memory=40960",
            "multiprocessors=0",
            "product=NVIDIA-A100-SXM4-40GB-MIG-1g.5gb-SHARED",
            "replicas=3",
            "sharing-strategy=time-slicing",
            "slices.ci=1",
            "slices.gi=1",
        ]
    );
    let compute_instance = labels("1c.3g.20gb");
    assert!(
        compute_instance.contains(&"slices.ci=1".into())
            && compute_instance.contains(&"slices.gi=3".into())
    );
    let product = "product=NVIDIA-A100-SXM4-40GB-MIG-1g.10gb.me-SHARED".to_owned();
    assert!(labels("1g.10gb.me").contains(&product), "a label cannot contain +");
}

#[test]
fn instances_of_one_profile_take_the_name_of_gpus() {
    let partitioned =
        |node: Node| node.gpu(A100, "8.0", None).partition(&["3g.20gb", "3g.20gb"], Some(UNSHARED));
    let node = partitioned(partitioned(Node::default()));
    let expected = ["NVIDIA-A100-SXM4-40GB-MIG-3g.20gb", "4", "1", "none"];
    assert_eq!(base(&node, InstanceNames::Single), expected);
    let gpu = |name| node.get(InstanceNames::Single, &format!("nvidia.com/gpu.{name}"));
    assert_eq!(gpu("family").as_deref(), Some("ampere"), "the GPU's own labels stay");
    assert_eq!(gpu("slices.gi").as_deref(), Some("3"));
}

#[test]
fn instances_that_cannot_take_the_name_of_gpus_are_invalid() {
    let a100 = || Node::default().gpu(A100, "8.0", Some(UNSHARED));
    for (node, case) in [
        (a100().partition(&[], None), "a GPU without instances"),
        (a100().partition(&["3g.20gb", "2g.10gb"], Some(UNSHARED)), "two profiles"),
        (
            a100().gpu(A100, "8.0", None).partition(&["3g.20gb"], Some(UNSHARED)),
            "a GPU outside MIG mode",
        ),
    ] {
        let expected = ["NVIDIA-A100-SXM4-40GB-MIG-INVALID", "0", "0", ""];
        assert_eq!(base(&node, InstanceNames::Single), expected, "{case}");
        let memory = node.get(InstanceNames::Single, "nvidia.com/gpu.memory");
        assert_eq!(memory.as_deref(), Some("0"), "{case}");
    }
}

#[test]
fn the_strategy_is_a_label_unless_there_is_none() {
    let node = Node::default().gpu(T4, "7.5", Some(UNSHARED));
    let label = |instances| node.get(instances, "nvidia.com/mig.strategy");
    assert_eq!(label(InstanceNames::None), None);
    assert_eq!(label(InstanceNames::Single).as_deref(), Some("single"));
    assert_eq!(label(InstanceNames::Mixed).as_deref(), Some("mixed"));
}

#[test]
fn the_most_frequent_model_has_the_plain_labels_and_each_model_its_own() {
    let node = Node::default()
        .gpu(T4, "7.5", Some(time_sliced(4)))
        .gpu(A100, "8.0", Some(UNSHARED))
        .gpu(T4, "7.5", Some(UNSHARED))
        .gpu(T4, "7.5", Some(time_sliced(4)))
        .gpu(A100, "8.0", None)
        .partition(&["1g.5gb", "1g.5gb"], Some(UNSHARED));
    let expected = ["Tesla-T4-SHARED", "3", "4", "time-slicing"];
    assert_eq!(base(&node, InstanceNames::Mixed), expected);
    assert_eq!(
        node.with_prefix(InstanceNames::Mixed, "windlass.dev/"),
        [
            "gpu.NVIDIA-A100-SXM4-40GB.compute.major=8",
            "gpu.NVIDIA-A100-SXM4-40GB.compute.minor=0",
            "gpu.NVIDIA-A100-SXM4-40GB.count=2",
            "gpu.NVIDIA-A100-SXM4-40GB.family=ampere",
            "gpu.NVIDIA-A100-SXM4-40GB.memory=40960",
            "gpu.NVIDIA-A100-SXM4-40GB.replicas=1",
            "gpu.NVIDIA-A100-SXM4-40GB.shares=1",
            "gpu.NVIDIA-A100-SXM4-40GB.sharing=none",
            "gpu.Tesla-T4.compute.major=7",
            "gpu.Tesla-T4.compute.minor=5",
            "gpu.Tesla-T4.count=3",
            "gpu.Tesla-T4.family=turing",
            "gpu.Tesla-T4.memory=40960",
            "gpu.Tesla-T4.replicas=4",
            "gpu.Tesla-T4.shares=9",
            "gpu.Tesla-T4.sharing=time-slicing",
            "mig.NVIDIA-A100-SXM4-40GB.1g.5gb=2",
        ]
    );
}

#[test]
fn the_first_of_equally_frequent_models_has_the_plain_labels() {
    let node = Node::default().gpu(T4, "7.5", Some(UNSHARED)).gpu(A100, "8.0", Some(UNSHARED));
    assert_eq!(base(&node, InstanceNames::None)[0], "Tesla-T4");
    let node =
        Node::default().gpu(T4, "7.5", None).partition(&[], None).gpu(A100, "8.0", Some(UNSHARED));
    assert_eq!(
        base(&node, InstanceNames::None)[0],
        "NVIDIA-A100-SXM4-40GB",
        "GPUs outside MIG mode come first"
    );
}

#[test]
fn driver_versions_have_current_and_former_label_names() {
    let mut node = Node::default()
        .gpu(T4, "7.5", Some(UNSHARED))
        .with(named("driverVersion"), AttributeValue::version("580.95.05"))
        .with(named("cudaDriverVersion"), AttributeValue::version("13.0"));
    let driver = |full: &str, revision: &str, minor: &str| {
        vec![
            "driver-version.full=".to_owned() + full,
            "driver-version.major=580".to_owned(),
            format!("driver-version.minor={minor}"),
            format!("driver-version.revision={revision}"),
            "driver.major=580".to_owned(),
            format!("driver.minor={minor}"),
            format!("driver.rev={revision}"),
            "runtime-version.full=13.0".to_owned(),
            "runtime-version.major=13".to_owned(),
            "runtime-version.minor=0".to_owned(),
            "runtime.major=13".to_owned(),
            "runtime.minor=0".to_owned(),
        ]
    };
    let cuda = |node: &Node| node.with_prefix(InstanceNames::None, "nvidia.com/cuda.");
    assert_eq!(cuda(&node), driver("580.95.05", "05", "95"), "in NVIDIA's spelling");
    node.host.driver_version = Some("580.7".into());
    assert_eq!(cuda(&node), driver("580.7", "", "7"), "the host's spelling takes precedence");
}

#[test]
fn the_mode_is_the_pci_class_of_all_gpus() {
    let class = |class: &str| AttributeValue::string(class);
    let name = AttributeName::new("windlass.dev", "pciClass");
    let gpu = |node: Node, pci_class: &str| {
        node.gpu(T4, "7.5", Some(UNSHARED)).with(name.clone(), class(pci_class))
    };
    for (first, second, expected) in [
        ("0x030200", "0x030200", "compute"),
        ("0x030000", "0x030000", "graphics"),
        ("0x030000", "0x030200", "unknown"),
        ("0x120000", "0x120000", "unknown"),
    ] {
        let node = gpu(gpu(Node::default(), first), second);
        let mode = node.get(InstanceNames::None, "nvidia.com/gpu.mode");
        assert_eq!(mode.as_deref(), Some(expected), "{first} {second}");
    }
}

#[test]
fn the_clique_is_that_of_all_gpus_in_a_fabric() {
    let gpu = |node: Node, cluster: &str, clique: i64| {
        node.gpu(T4, "7.5", Some(UNSHARED))
            .with(named("fabricClusterUUID"), AttributeValue::string(cluster))
            .with(named("fabricCliqueID"), AttributeValue::Int(clique))
    };
    let outside = Node::default().gpu(T4, "7.5", Some(UNSHARED));
    let label = |node: &Node| node.get(InstanceNames::None, "nvidia.com/gpu.clique");
    assert_eq!(label(&outside), None);
    let inside = gpu(gpu(outside, "a-b", 7), "a-b", 7);
    assert_eq!(label(&inside).as_deref(), Some("a-b.7"));
    assert_eq!(label(&gpu(inside, "a-b", 8)), None, "two cliques give no label");
}

#[test]
fn capabilities_are_those_of_any_gpu() {
    let node = Node::default().gpu(T4, "7.5", Some(time_sliced(2)));
    let capable = |node: &Node| {
        ["mig", "mps"]
            .map(|feature| node.get(InstanceNames::None, &format!("nvidia.com/{feature}.capable")))
    };
    assert_eq!(capable(&node), [Some("false".to_owned()), Some("false".to_owned())]);
    let node = node.gpu(A100, "8.0", Some(mps(2)));
    assert_eq!(capable(&node), [Some("true".to_owned()), Some("true".to_owned())]);
}

#[test]
fn a_node_without_gpus_has_only_labels_of_the_host() {
    let mut node = Node::default();
    assert_eq!(node.labels(InstanceNames::Mixed), Labels::new());
    node.host.vgpu = Vgpu::Absent;
    assert_eq!(node.with_prefix(InstanceNames::Mixed, "nvidia.com/"), ["vgpu.present=false"]);
}

#[test]
fn a_virtual_gpu_has_labels_of_its_host_driver() {
    let mut node = Node::default().gpu(T4, "7.5", Some(UNSHARED));
    node.host.vgpu = Vgpu::Present(VgpuHost {
        driver_version: Some("460.16".into()),
        driver_branch: Some("r460_00".into()),
    });
    assert_eq!(
        node.with_prefix(InstanceNames::None, "nvidia.com/vgpu."),
        ["host-driver-branch=r460_00", "host-driver-version=460.16", "present=true"]
    );
}

#[test]
fn a_failed_gpu_keeps_its_labels_and_a_vanished_one_has_none() {
    let now = Timestamp::UNIX_EPOCH;
    for (reason, count) in [(Reason::Lost, "2"), (Reason::Vanished, "1")] {
        let mut node =
            Node::default().gpu(T4, "7.5", Some(UNSHARED)).gpu(T4, "7.5", Some(UNSHARED));
        let mut tracker = HealthTracker::new(std::time::Duration::from_secs(1), now);
        tracker.observe(&Observation::Failed(reason, String::new()), now);
        node.last().health = tracker.health().clone();
        assert_eq!(base(&node, InstanceNames::None)[1], count, "{reason:?}");
    }
}

#[test]
fn a_time_a_simulation_and_the_enforcement_of_shares_are_labels() {
    let mut node = Node::default();
    node.inventory.simulated = Some("dgx h100".into());
    let time = Timestamp::from_second(1_700_000_000).expect("valid");
    let all_labels = labels(&LabelInput {
        inventory: &node.inventory,
        offerings: &node.offerings,
        instances: InstanceNames::None,
        host: &node.host,
        enforcement: Some(Enforcement::Driver),
        timestamp: Some(time),
    });
    assert_eq!(
        feature_file(&all_labels),
        "nvidia.com/gfd.timestamp=1700000000\nwindlass.dev/enforcement=driver\n\
         windlass.dev/simulated=dgx-h100\n"
    );
}

/// Validity of key and value by Kubernetes' `IsQualifiedName` and `IsValidLabelValue`; values are not empty.
fn is_name(text: &str) -> bool {
    let is_alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    (1..=63).contains(&bytes.len())
        && is_alphanumeric(bytes.first())
        && is_alphanumeric(bytes.last())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

fn is_label((key, value): (&String, &String)) -> bool {
    let (domain, name) = key.split_once('/').unwrap_or_default();
    ["nvidia.com", "windlass.dev"].contains(&domain)
        && is_name(name)
        && (value.is_empty() || is_name(value))
}

prop_compose! {
    fn any_text()(text in prop_oneof!["\\PC{0,70}", "[ -~]{0,70}", "[A-Za-z0-9._+-]{0,70}"]) -> String {
        text
    }
}

proptest! {
    #[test]
    fn kubernetes_accepts_every_label(
        texts in proptest::collection::vec(any_text(), 10),
        replicas in any::<u32>(),
        instances in prop_oneof![
            Just(InstanceNames::None), Just(InstanceNames::Single), Just(InstanceNames::Mixed)
        ],
    ) {
        let offering = Some(time_sliced(replicas));
        let mut node = Node::default()
            .gpu(&texts[0], "9.0", offering)
            .with(named("driverVersion"), AttributeValue::version(&texts[1]))
            .with(named("cudaDriverVersion"), AttributeValue::string(&texts[2]))
            .with(named("cudaComputeCapability"), AttributeValue::string(&texts[3]))
            .with(named("fabricClusterUUID"), AttributeValue::string(&texts[4]))
            .with(named("fabricCliqueID"), AttributeValue::string(&texts[5]))
            .gpu(&texts[6], "8.0", None)
            .partition(&[&texts[7], "1g.5gb"], offering);
        node.inventory.simulated = Some(texts[8].clone());
        node.host.machine = Some(texts[9].clone());
        node.host.vgpu = Vgpu::Present(VgpuHost {
            driver_version: Some(texts[4].clone()),
            driver_branch: Some(texts[5].clone()),
        });
        for label in &node.labels(instances) {
            prop_assert!(is_label(label), "{label:?}");
        }
        prop_assert_eq!(node.labels(instances), node.labels(instances));
        node.host.driver_version = Some(texts[2].clone());
        prop_assert!(node.labels(instances).iter().all(is_label));
    }
}
