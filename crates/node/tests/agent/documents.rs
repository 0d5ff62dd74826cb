//! CDI documents: complete for the installed driver, and valid by the CDI specification.

use std::{collections::BTreeSet, fs, path::Path};

use serde_json::Value;
use windlass_cdi::{CdiFiles, GeneratedDocuments, to_json};
use windlass_config::{DeviceIdStrategy, Feature};
use windlass_core::cdi::{Spec, check};
use windlass_machine::{MachineProfile, Model};
use windlass_testkit::{Node, until, until_allocatable};

use crate::agent::world::gpu_node;

const GPU_DOCUMENT: &str = "windlass.dev-gpu.json";

/// Folder in which the GPU operator's driver container shows its files.
const DRIVER_CONTAINER: &str = "/run/nvidia/driver";

const SCHEMA: &str = include_str!("cdi.schema.json");

/// The documents of a machine as an agent would write them.
async fn generate(world: &Node) -> GeneratedDocuments {
    let inventory = world.scan_host().await.inventory;
    CdiFiles::new(&world.config.places, world.config.policy.delivery.clone()).generate(&inventory)
}

fn gpus(generated: &GeneratedDocuments) -> &Spec {
    &generated.documents[GPU_DOCUMENT]
}

/// A machine whose documents have the paths of a real one.
fn world(profile: &str) -> Node {
    let mut world = gpu_node(profile);
    world.config.places.host_root_on_node = "/".into();
    world
}

fn create_file(world: &Node, path: &str) {
    let path = world.machine.host_root().join(path);
    fs::create_dir_all(path.parent().expect("a folder")).expect("created");
    fs::write(path, "").expect("written");
}

fn install_toolkit(world: &Node) {
    create_file(world, "usr/bin/nvidia-cdi-hook");
}

/// Moves the driver's files to the folder of a driver container.
fn move_driver(world: &mut Node) {
    let host = world.machine.host_root();
    let driver = host.join(DRIVER_CONTAINER.trim_start_matches('/'));
    fs::create_dir_all(&driver).expect("created");
    for folder in ["usr", "lib", "etc"] {
        fs::rename(host.join(folder), driver.join(folder)).expect("moved");
    }
    world.config.places.driver.root = DRIVER_CONTAINER.into();
}

/// Text of all documents for the snapshot, with short objects on one line.
fn snapshot_text(generated: &GeneratedDocuments) -> String {
    let mut lines = Vec::new();
    for (name, document) in &generated.documents {
        let value: Value = serde_json::from_str(&to_json(document)).expect("JSON");
        lines.push(format!("{name}\n{}", compact(&value, 0)));
    }
    lines
        .extend(generated.missing_parts.problems.iter().map(|problem| format!("lacks: {problem}")));
    lines.join("\n")
}

fn compact(value: &Value, depth: usize) -> String {
    let is_flat = |value: &Value| match value {
        Value::Object(fields) => fields.values().all(|field| !field.is_object()),
        Value::Array(items) => items.iter().all(|item| !item.is_object()),
        _ => true,
    };
    let indent = "  ".repeat(depth + 1);
    let (open, close, items): (_, _, Vec<_>) = match value {
        Value::Object(fields) if depth < 1 || !is_flat(value) || has_lists(value) => {
            let item = |(name, field): (&String, &Value)| {
                format!("{indent}{name:?}: {}", compact(field, depth + 1))
            };
            ('{', '}', fields.iter().map(item).collect())
        }
        Value::Array(items) if !is_flat(value) => {
            let item = |item: &Value| format!("{indent}{}", compact(item, depth + 1));
            ('[', ']', items.iter().map(item).collect())
        }
        _ => return value.to_string(),
    };
    format!("{open}\n{}\n{}{close}", items.join(",\n"), "  ".repeat(depth))
}

/// True if an object contains a list of objects.
fn has_lists(value: &Value) -> bool {
    let is_list = |field: &Value| field.as_array().is_some_and(|items| items[0].is_object());
    value.as_object().is_some_and(|fields| fields.values().any(is_list))
}

#[tokio::test]
async fn the_documents_of_every_machine_match_their_snapshots() {
    for profile in MachineProfile::names_with_nvidia() {
        let world = world(profile);
        install_toolkit(&world);
        insta::assert_snapshot!(
            format!("machine-{profile}"),
            snapshot_text(&generate(&world).await)
        );
    }
}

#[tokio::test]
async fn without_the_toolkit_libraries_are_in_the_default_folders_of_loaders() {
    let world = world("t4-edge");
    let generated = generate(&world).await;
    insta::assert_snapshot!("without-toolkit", snapshot_text(&generated));
    let edits = &gpus(&generated).container_edits;
    assert!(edits.hooks.is_empty());
    let names: BTreeSet<_> = edits.mounts.iter().map(|mount| &*mount.container_path).collect();
    for folder in ["/usr/lib64", "/usr/lib/x86_64-linux-gnu"] {
        for name in
            ["libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1", "vdpau/libvdpau_nvidia.so.1"]
        {
            assert!(names.contains(&*Path::new(folder).join(name)), "{folder}/{name}");
        }
    }
    assert_eq!(names.len(), edits.mounts.len(), "no path is mounted twice");
}

#[tokio::test]
async fn a_driver_in_a_container_is_mounted_at_its_usual_paths() {
    let mut world = world("t4-edge");
    move_driver(&mut world);
    install_toolkit(&world);
    let generated = generate(&world).await;
    insta::assert_snapshot!("driver-container", snapshot_text(&generated));
    let mounts = &gpus(&generated).container_edits.mounts;
    let smi = mounts.iter().find(|mount| mount.container_path == Path::new("/usr/bin/nvidia-smi"));
    let expected = format!("{DRIVER_CONTAINER}/usr/bin/nvidia-smi");
    assert_eq!(smi.expect("there").host_path, Path::new(&expected));
}

/// Moves the driver's files to the folder of GKE's installer.
fn install_as_gke(world: &Node) {
    let host = world.machine.host_root();
    let driver = host.join("home/kubernetes/bin/nvidia");
    fs::create_dir_all(&driver).expect("created");
    for (from, to) in
        [("usr/lib/x86_64-linux-gnu", "lib64"), ("usr/bin", "bin"), ("usr/share/vulkan", "vulkan")]
    {
        fs::rename(host.join(from), driver.join(to)).expect("moved");
    }
}

#[tokio::test]
async fn a_driver_as_gke_installs_it_is_found_without_configuration() {
    let world = world("t4-edge");
    install_as_gke(&world);
    let generated = generate(&world).await;
    assert_eq!(generated.missing_parts.problems, [] as [String; 0]);
    let mounts = &gpus(&generated).container_edits.mounts;
    for (inside, on_node) in [
        ("/usr/bin/nvidia-smi", "bin/nvidia-smi"),
        ("/etc/vulkan/icd.d/nvidia_icd.json", "vulkan/icd.d/nvidia_icd.json"),
        (
            "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
            &format!("lib64/libcuda.so.{}", driver_version(&world)),
        ),
    ] {
        let mount = mounts.iter().find(|mount| mount.container_path == Path::new(inside));
        let on_node = Path::new("/home/kubernetes/bin/nvidia").join(on_node);
        assert_eq!(mount.map(|mount| &mount.host_path), Some(&on_node), "{inside}");
    }
}

#[tokio::test]
async fn a_driver_root_without_a_driver_still_gives_device_nodes_and_names_the_missing_library() {
    let mut world = world("t4-edge");
    world.config.places.driver.root = "/nowhere".into();
    let generated = generate(&world).await;
    let document = gpus(&generated);
    assert!(!document.devices[0].container_edits.device_nodes.is_empty());
    assert!(
        document
            .container_edits
            .mounts
            .iter()
            .all(|mount| { !mount.container_path.to_string_lossy().contains(".so") })
    );
    let version = driver_version(&world);
    let expected =
        format!("no libcuda.so.{version} under /nowhere: containers get device nodes only");
    assert_eq!(generated.missing_parts.problems, std::slice::from_ref(&expected));

    let agent = world.start_agent();
    let state = agent.until(|state| !state.inventory.devices.is_empty()).await;
    assert_eq!(state.missing_parts.problems, [expected]);
    agent.stop().await;
}

#[tokio::test]
async fn a_driver_whose_files_have_another_version_is_recognised() {
    let world = world("t4-edge");
    let module = world.config.places.host_root.join("sys/module/nvidia/version");
    fs::remove_file(&module).expect("removed");
    assert!(generate(&world).await.missing_parts.problems.is_empty(), "procfs has the version too");
    fs::write(module, "999.1").expect("written");
    let missing_parts = generate(&world).await.missing_parts;
    assert!(
        missing_parts.problems[0]
            .starts_with("the loaded driver is 999.1, and the libraries under / are")
    );
}

#[tokio::test]
async fn every_document_is_valid_by_the_schema_and_by_the_check() {
    let schema: Value = serde_json::from_str(SCHEMA).expect("JSON");
    let schema = jsonschema::validator_for(&schema).expect("a schema");
    for profile in MachineProfile::names_with_nvidia() {
        let mut world = gpu_node(profile);
        for (toolkit, ids) in [(false, DeviceIdStrategy::Uuid), (true, DeviceIdStrategy::Index)] {
            if toolkit {
                install_toolkit(&world);
            }
            world.config.policy.delivery.ids = ids;
            let generated = generate(&world).await;
            assert!(generated.missing_parts.problems.is_empty(), "{:?}", generated.missing_parts);
            for document in generated.documents.values() {
                let value = serde_json::to_value(document).expect("JSON");
                let errors: Vec<_> = schema.iter_errors(&value).map(|e| e.to_string()).collect();
                assert_eq!(errors, Vec::<String>::new(), "{profile}");
                assert_eq!(check(document), [], "{profile}");
                let again: Spec = serde_json::from_str(&to_json(document)).expect("reads");
                assert_eq!(&again, document);
            }
        }
    }
    for invalid in
        [r#"{"kind": "a.b/c"}"#, r#"{"cdiVersion": "0.5.0", "kind": "c", "devices": []}"#]
    {
        let value = serde_json::from_str(invalid).expect("JSON");
        assert!(!schema.is_valid(&value), "the schema refuses {invalid}");
    }
}

#[tokio::test]
async fn every_host_path_in_a_document_exists() {
    let mut world = gpu_node("mig-a100");
    install_toolkit(&world);
    move_driver(&mut world);
    create_file(&world, "usr/bin/nvidia-cdi-hook");
    for document in generate(&world).await.documents.values() {
        let devices = document.devices.iter().map(|device| &device.container_edits);
        for edits in devices.chain([&document.container_edits]) {
            let nodes = edits.device_nodes.iter().filter_map(|node| node.host_path.as_ref());
            let mounts = edits.mounts.iter().map(|mount| &mount.host_path);
            for path in nodes.chain(mounts).chain(edits.hooks.iter().map(|hook| &hook.path)) {
                assert!(path.starts_with(&world.config.places.host_root), "{}", path.display());
                assert!(path.exists(), "{}", path.display());
            }
        }
    }
}

#[tokio::test]
async fn hooks_are_disabled_one_by_one_and_all_together() {
    let mut world = world("t4-edge");
    create_file(&world, "opt/nvidia-ctk");
    world.config.policy.delivery.hooks.program = Some("/opt/nvidia-ctk".into());
    let tasks = async |world: &Node| -> Vec<String> {
        let generated = generate(world).await;
        let hooks = &gpus(&generated).container_edits.hooks;
        assert!(hooks.iter().all(|hook| hook.args[..2] == ["nvidia-ctk", "hook"]));
        hooks.iter().map(|hook| hook.args[2].clone()).collect()
    };
    let all = [
        "create-symlinks",
        "enable-cuda-compat",
        "update-ldcache",
        "disable-device-node-modification",
    ];
    assert_eq!(tasks(&world).await, all);
    world.config.policy.delivery.hooks.disabled = ["enable-cuda-compat".to_owned()].into();
    assert_eq!(tasks(&world).await, [all[0], all[2], all[3]]);
    // Without an update of the loader's cache, libraries have to be in its default folders.
    world.config.policy.delivery.hooks.disabled = ["update-ldcache".to_owned()].into();
    assert_eq!(tasks(&world).await, [all[1], all[3]]);
    world.config.policy.delivery.hooks.disabled = ["all".to_owned()].into();
    assert_eq!(tasks(&world).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_missing_hook_program_is_named_and_containers_start_without_it() {
    let mut world = world("t4-edge");
    world.config.policy.delivery.hooks.program = Some("/opt/nvidia-cdi-hook".into());
    let generated = generate(&world).await;
    let expected =
        "the hook program /opt/nvidia-cdi-hook is not on the host: containers start without hooks";
    assert_eq!(generated.missing_parts.problems, [expected]);
    assert!(gpus(&generated).container_edits.hooks.is_empty());
}

#[tokio::test]
async fn existing_features_and_channels_have_separate_documents() {
    let mut world = world("dgx-h100");
    let delivery = &mut world.config.policy.delivery;
    delivery.features = Feature::ALL.iter().copied().collect();
    delivery.imex.channels = [0, 7].into();
    for path in ["dev/nvidia-fs0", "etc/cufile.json", "dev/nvidia-caps-imex-channels/channel0"] {
        create_file(&world, path);
    }
    let generated = generate(&world).await;
    let names = ["windlass.dev/gds=all", "windlass.dev/mofed=all", "windlass.dev/imex-channel=0"];
    assert_eq!(generated.extra_names, names);
    assert_eq!(generated.missing_parts.channels, [7]);
    assert_eq!(
        generated.missing_parts.problems,
        [
            "windlass.dev/gdrcopy: the host has no /dev/gdrdrv",
            "IMEX channel 7: no /dev/nvidia-caps-imex-channels/channel7",
        ]
    );
    let storage = &generated.documents["windlass.dev-gds.json"].devices[0].container_edits;
    assert_eq!(storage.device_nodes[0].path, Path::new("/dev/nvidia-fs0"));
    assert_eq!(storage.mounts[0].container_path, Path::new("/etc/cufile.json"));
    let rdma = &generated.documents["windlass.dev-mofed.json"].devices[0].container_edits;
    assert!(rdma.device_nodes.iter().any(|node| node.path.ends_with("uverbs0")));
    assert!(!generated.documents.contains_key("windlass.dev-gdrcopy.json"));
    assert!(generated.documents.values().all(|document| check(document).is_empty()));
}

#[tokio::test]
async fn devices_are_named_by_index_if_configured() {
    let mut world = world("mig-a100");
    world.config.policy.delivery.ids = DeviceIdStrategy::Index;
    let generated = generate(&world).await;
    let names: Vec<_> = gpus(&generated).devices.iter().map(|device| &*device.name).collect();
    assert!(names.contains(&"2") && names.contains(&"1:2"), "{names:?}");
    assert_eq!(gpus(&generated).cdi_version, "0.5.0", "a name begins with a digit");
}

fn driver_version(world: &Node) -> String {
    let model = world.machine.model().expect("a model");
    model.driver.expect("it has one").version
}

#[tokio::test]
async fn a_new_driver_version_replaces_every_library() {
    let world = world("t4-edge");
    let inventory = world.scan_host().await.inventory;
    let mut files = CdiFiles::new(&world.config.places, world.config.policy.delivery.clone());
    let old = driver_version(&world);
    assert!(to_json(gpus(&files.generate(&inventory))).contains(&old));
    let newer = |model: &mut Model| {
        model.driver.as_mut().expect("it has one").version = "999.9.9".to_owned();
    };
    world.machine.update(newer).expect("updated");
    let after = to_json(gpus(&files.generate(&inventory)));
    assert!(after.contains("libcuda.so.999.9.9") && !after.contains(&old), "{after}");
}

#[tokio::test]
async fn an_added_library_is_found_in_a_folder_that_was_read_before() {
    let world = world("t4-edge");
    let inventory = world.scan_host().await.inventory;
    let mut files = CdiFiles::new(&world.config.places, world.config.policy.delivery.clone());
    files.generate(&inventory);
    let version = driver_version(&world);
    create_file(&world, &format!("usr/lib/x86_64-linux-gnu/libnvidia-new.so.{version}"));
    assert!(to_json(gpus(&files.generate(&inventory))).contains("libnvidia-new.so"));
}

#[tokio::test]
async fn a_new_mig_layout_rewrites_the_document_at_once_and_changes_no_other_gpu() {
    let world = gpu_node("mig-a100");
    let (kubelet, agent) = world.start_ready(2).await;
    let path = world.config.places.cdi_dir.join(GPU_DOCUMENT);
    let read = || -> Spec {
        serde_json::from_slice(&fs::read(&path).expect("there")).expect("complete at any time")
    };
    let before = read();
    let model = world.machine.model().expect("a model");
    let mig_gpu =
        model.gpus.iter().position(|gpu| gpu.mig.as_ref().is_some_and(|mig| !mig.is_empty()));
    let mig_gpu = mig_gpu.expect("the machine has a GPU in MIG mode");
    let removed: Vec<_> =
        model.gpus[mig_gpu].mig_devices().map(|(_, device)| device.uuid.clone()).collect();
    world.machine.set_mig(mig_gpu, Some(&["3g.20gb"])).expect("another layout");
    let after = until("the document is rewritten", async || {
        let now = read();
        if now.devices.iter().any(|device| removed.contains(&device.name)) {
            Err(now)
        } else {
            Ok(now)
        }
    })
    .await;
    let unchanged = |spec: &Spec| -> Vec<_> {
        let is_known = |name: &String| before.devices.iter().any(|device| device.name == *name);
        let devices = spec.devices.iter().filter(|device| is_known(&device.name));
        devices.filter(|device| !removed.contains(&device.name)).cloned().collect()
    };
    assert_eq!(unchanged(&after), unchanged(&before));
    assert_eq!(check(&after), []);
    let names = fs::read_dir(&world.config.places.cdi_dir).expect("a folder").flatten();
    let drafts = names.filter(|entry| entry.file_name().to_string_lossy().contains("draft"));
    assert_eq!(drafts.count(), 0);
    until_allocatable(&kubelet, "nvidia.com/mig-3g.20gb", 1).await;
    agent.stop().await;
}

#[tokio::test]
async fn graphics_nodes_that_appear_after_their_gpu_are_added_to_its_document() {
    let world = world("t4-edge");
    install_toolkit(&world);
    let complete = generate(&world).await;
    let edits = |document: &Spec| document.devices[0].container_edits.clone();
    let address = world.scan_host().await.inventory.devices[0].place.pci.expect("on PCI");
    let root = world.machine.host_root();
    let (drm, moved) = (root.join(format!("sys/bus/pci/devices/{address}/drm")), root.join("drm"));
    fs::rename(&drm, &moved).expect("the module for graphics is not loaded");
    let agent = world.start_agent();
    agent.until(|state| !state.documents.is_empty()).await;
    let path = world.config.places.cdi_dir.join(GPU_DOCUMENT);
    let read = || serde_json::from_slice::<Spec>(&fs::read(&path).expect("there")).expect("reads");
    let names_graphics = |document: &Spec| to_json(document).contains("/dev/dri");
    assert!(!names_graphics(&read()));

    fs::rename(&moved, &drm).expect("the module is loaded");
    let after = until("the document names the nodes", async || {
        let now = read();
        if names_graphics(&now) { Ok(now) } else { Err(now) }
    })
    .await;
    assert_eq!(edits(&after), edits(gpus(&complete)));
    assert!(to_json(&after).contains("by-path"));
    agent.stop().await;
}
