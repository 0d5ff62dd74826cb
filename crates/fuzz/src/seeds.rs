//! Seeds: accepted inputs as starting points of mutations, from files and documentation of the repository.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Windlass configurations from the documentation, and configurations of other device plugins.
pub(crate) fn configuration() -> Vec<Vec<u8>> {
    let pages = ["docs", "docs/devices"].iter().flat_map(|folder| files(folder, "md"));
    let pages = pages.map(|page| fs::read_to_string(page).expect("a page"));
    let examples = pages.flat_map(|page| blocks(&page, "```yaml\n"));
    let examples = examples.filter(|text| is_configuration(text));
    let others = [
        "version: v1\nflags: {migStrategy: mixed}\nsharing: {timeSlicing: {resources: \
         [{name: nvidia.com/gpu, replicas: 4}]}}\n",
        "{\"resourceList\": [{\"resourceName\": \"sriov\", \"selectors\": {\"vendors\": \
         [\"8086\"], \"devices\": [\"154c\"], \"pfNames\": [\"eth0#0-3\"]}}]}\n",
        "{\"configList\": [{\"resourceName\": \"hca\", \"rdmaHcaMax\": 10, \"selectors\": \
         {\"ifNames\": [\"ib0\"]}}]}\n",
        "devices:\n- name: serial\n  groups:\n  - paths: [{path: '/dev/ttyUSB*'}]\n",
        "- devicematch: ^video[0-9]*$\n  nummaxdevices: 20\n",
    ];
    examples.chain(others.map(|text| text.as_bytes().to_vec())).collect()
}

/// True if an example is a complete configuration. Fragments are indented. Kubernetes objects, pipelines and boards are
/// recognised by their keywords.
fn is_configuration(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let keywords = ["apiVersion:", "kind: ", "requests:", "stages:", "board: "];
    !text.starts_with(' ') && !keywords.iter().any(|word| text.contains(word))
}

/// udev rules with `==`, `!=`, alternatives and wildcards.
pub(crate) fn udev_rules() -> Vec<Vec<u8>> {
    let rules = [
        "KERNEL==\"ttyUSB[0-9]*\", SUBSYSTEM==\"tty\", ATTRS{idVendor}==\"0403\", \
         ATTRS{idProduct}==\"6001|6010\"\n",
        "# comment\nSUBSYSTEM==\"usb\", ATTR{idVendor}==\"1ab1\", ATTR{version}!=\"1.*\"\n\
         KERNEL==\"video?\"\n",
    ];
    rules.map(|text| text.as_bytes().to_vec()).into()
}

/// Shipped machine profiles.
pub(crate) fn profiles() -> Vec<Vec<u8>> {
    contents("profiles", "yaml")
}

/// CDI specs from snapshots of the agent's tests.
pub(crate) fn cdi() -> Vec<Vec<u8>> {
    let snapshots = files("crates/node/tests/agent/snapshots", "snap").into_iter();
    let texts = snapshots.map(|path| fs::read_to_string(path).expect("a snapshot"));
    let specs = texts.filter_map(|text| Some(text.as_bytes()[text.find("{\n")?..].to_vec()));
    specs.filter(|text| serde_json::from_slice::<serde_json::Value>(text).is_ok()).collect()
}

/// Checkpoint of the device manager of a real kubelet.
pub(crate) fn checkpoint() -> Vec<Vec<u8>> {
    contents("crates/kubelet-api/tests", "json")
}

/// Checkpoint of the kubelet's DRA manager.
pub(crate) fn claims() -> Vec<Vec<u8>> {
    let data = r#"{"kind":"DRACheckpoint","apiVersion":"checkpoint.dra.kubelet.k8s.io/v1","ClaimInfoStateList":[{"ClaimUID":"u1","ClaimName":"c","Namespace":"ns","PodUIDs":{"p":{}},"DriverState":{"windlass.dev":{"Devices":[{"PoolName":"n1/nvidia","DeviceName":"gpu-0","ShareID":null,"RequestNames":["gpu"],"CDIDeviceIDs":["windlass.dev/gpu=GPU-0"]}]}}}]}"#;
    vec![serde_json::json!({"Data": data, "Checksum": 1}).to_string().into_bytes()]
}

/// Files of the agent's state folder. They lack the optional checksum, so that mutations are parsed too.
pub(crate) fn state_files() -> Vec<Vec<u8>> {
    contents("crates/fuzz/seeds/kept", "json")
}

/// Allocated resource claims: one with devices of several drivers and with parameters from class and claim, and a
/// minimal one.
pub(crate) fn allocated_claims() -> Vec<Vec<u8>> {
    [
        r#"{"apiVersion":"resource.k8s.io/v1","kind":"ResourceClaim","metadata":{"name":"c","namespace":"ns","uid":"u","annotations":{"resource.kubernetes.io/pod-claim-name":"gpus"}},"spec":{"devices":{"requests":[{"name":"gpu","exactly":{"deviceClassName":"windlass-gpu"}}]}},"status":{"allocation":{"devices":{"results":[{"request":"gpu","driver":"windlass.dev","pool":"n1/nvidia","device":"gpu-0"},{"request":"gpu/large","driver":"windlass.dev","pool":"n1/nvidia","device":"gpu-1","adminAccess":true,"shareID":"8a2f","consumedCapacity":{"gpu.nvidia.com/memory":"10Gi","windlass.dev/compute":"25"}},{"request":"nic","driver":"other.dev","pool":"p","device":"d"}],"config":[{"source":"FromClass","requests":[],"opaque":{"driver":"windlass.dev","parameters":{"apiVersion":"windlass.dev/v1alpha1","kind":"DeviceConfig","sharing":{"strategy":"MPS","mps":{"activeThreadPercentage":50,"pinnedMemoryLimit":"10Gi"}}}}},{"source":"FromClaim","requests":["gpu"],"opaque":{"driver":"windlass.dev","parameters":{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}}}]}}}}"#,
        r#"{"metadata":{"uid":"u"},"spec":{},"status":{"allocation":{}}}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// Parameters of a driver, in Windlass's format and in NVIDIA's.
pub(crate) fn parameters() -> Vec<Vec<u8>> {
    [
        r#"{"apiVersion":"windlass.dev/v1alpha1","kind":"DeviceConfig","sharing":{"strategy":"MPS","mps":{"activeThreadPercentage":50,"pinnedMemoryLimit":"10Gi"}}}"#,
        r#"{"apiVersion":"resource.nvidia.com/v1beta1","kind":"GpuConfig","sharing":{"strategy":"TimeSlicing","timeSlicingConfig":{"interval":"Long"}}}"#,
        r#"{"apiVersion":"resource.nvidia.com/v1beta1","kind":"MigDeviceConfig","sharing":{"strategy":"MPS","mpsConfig":{"defaultPinnedDeviceMemoryLimit":"1Gi"}}}"#,
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// Expressions of every kind, addresses, names and amounts.
pub(crate) fn expressions() -> Vec<Vec<u8>> {
    [
        r#"device.attributes["nvidia.com"].productName.matches("^NVIDIA A100")"#,
        r#"device.capacity["nvidia.com"].memory.compareTo(quantity("40Gi")) >= 0"#,
        r#"device.attributes["nvidia.com"].cudaComputeCapability.isGreaterThan(semver("8.9.0"))"#,
        r#"device.attributes["windlass.dev"].?type.orValue("") == "gpu" && has(device.driver)"#,
        r#"["a", "b"].exists(it, it == device.driver) ? device.attributes["nvidia.com"].index > 0 : !(1.5e3 < 2.0)"#,
        "0000:3b:00.0",
        "nvidia.com/gpu.shared",
        "GPU-8a2f::12",
        "12345Pi",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

/// Contents of the files of a repository folder.
fn contents(folder: &str, extension: &str) -> Vec<Vec<u8>> {
    files(folder, extension).iter().map(|path| fs::read(path).expect("a file")).collect()
}

/// Files of a repository folder, sorted by name.
fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let entries = fs::read_dir(root.join(folder)).expect("a folder of the repository");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|it| it == extension)).collect();
    files.sort();
    files
}

/// Contents of the code blocks of a page that begin with the given fence.
fn blocks(page: &str, fence: &str) -> Vec<Vec<u8>> {
    let blocks = page.split(fence).skip(1);
    blocks.filter_map(|text| Some(text.split_once("```")?.0.as_bytes().to_vec())).collect()
}
