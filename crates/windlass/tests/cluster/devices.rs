//! Real devices of this machine in real pods.

use std::{fs, path::Path};

use crate::cluster::{
    NODE_STATUS_LIMIT, eventually, has_cluster,
    kubelet::allocatable,
    node::Node,
    plugin_folder_lock,
    pods::{Pods, kubectl, node_status},
};

const FUSE: &str = "example.com/fuse";
const EXCLUSIVE: &str = "example.com/exclusive";
const FUNCTION: &str = "example.com/function";

/// Device nodes for exclusive use, with their numbers. The test takes the first that this machine has.
const NODES: [(&str, &str); 2] = [("/dev/kvm", "10 232"), ("/dev/net/tun", "10 200")];

/// A PCI class that is neither bridge nor network, and the number of functions of that class. Virtual machines have
/// functions of no class, `0xffff00`.
fn class() -> Option<(String, usize)> {
    let functions = fs::read_dir("/sys/bus/pci/devices").ok()?.flatten();
    let class = |function: fs::DirEntry| fs::read_to_string(function.path().join("class")).ok();
    let mut classes: Vec<_> =
        functions.filter_map(class).map(|class| class.trim().to_owned()).collect();
    classes.retain(|class| !class.starts_with("0x06") && !class.starts_with("0x02"));
    classes.sort();
    let last_class = classes.last()?.clone();
    let count = classes.iter().filter(|class| **class == last_class).count();
    Some((last_class, count))
}

fn config(node: &str, class: &str) -> String {
    format!(
        "health: {{quietPeriod: 1s, probeInterval: 1s}}\nsources:\n\
         - name: fuse\n  resource: {FUSE}\n  sharing: {{method: shared, replicas: 3}}\n  \
         find: {{nodes: /dev/fuse}}\n\
         - name: exclusive\n  resource: {EXCLUSIVE}\n  find: {{nodes: {node}}}\n  \
         give: {{env: {{EXCLUSIVE_NODE: '{{node}}'}}}}\n\
         - name: function\n  resource: {FUNCTION}\n  find: {{bus: pci}}\n  \
         match: 'device.attributes[\"windlass.dev\"].pciClass == \"{class}\"'\n  \
         give: {{found: none, env: {{PCI_FUNCTION: '{{pci}}'}}}}\n"
    )
}

/// True if a container can open a node in its `/dev`.
fn can_open(pod: &str, node: &str) -> bool {
    // Without `test -c`, the shell would create a file if there is no node.
    Pods::exec(pod, &format!("test -c {node} && exec 3<>{node}")).is_some()
}

/// True if a container can open a device by its number, through a node that it creates.
fn can_mknod(pod: &str, number: &str) -> bool {
    let script = format!("mknod /tmp/other c {number} && exec 3<>/tmp/other");
    Pods::exec(pod, &script).is_some()
}

fn variable(pod: &str, name: &str) -> String {
    Pods::exec(pod, &format!("echo ${name}")).expect("the command runs").trim().to_owned()
}

#[tokio::test]
async fn pods_can_open_only_the_devices_that_they_requested() {
    if !has_cluster() {
        return;
    }
    let exclusive_node = NODES.into_iter().find(|(node, _)| Path::new(node).exists());
    let (Some((node, number)), Some((class, function_count)), true) =
        (exclusive_node, class(), Path::new("/dev/fuse").exists())
    else {
        eprintln!("SKIPPED: this machine lacks /dev/fuse, an exclusive device, or a PCI function");
        return;
    };
    let _lock = plugin_folder_lock();
    let machine_node = Node::of_this_machine(&config(node, &class));
    let agent = machine_node.start_agent();
    for (resource, count) in [(FUSE, 3), (EXCLUSIVE, 1), (FUNCTION, function_count)] {
        eventually(NODE_STATUS_LIMIT, Some(count), async || allocatable(resource).await).await;
        let capacity = async || node_status("capacity", resource);
        eventually(NODE_STATUS_LIMIT, count.to_string(), capacity).await;
    }
    let mut pods = Pods::new();
    for name in ["windlass-e2e-fuse-a", "windlass-e2e-fuse-b"] {
        pods.run(name, FUSE, 1).await;
        assert!(can_open(name, "/dev/fuse"), "{name} cannot open /dev/fuse");
        assert!(!can_open(name, node), "{name} can open {node}");
        assert!(!can_mknod(name, number), "{name} can open {node} through its own node");
    }
    pods.run("windlass-e2e-owner", EXCLUSIVE, 1).await;
    assert!(can_open("windlass-e2e-owner", node), "{node} cannot be opened");
    assert_eq!(variable("windlass-e2e-owner", "EXCLUSIVE_NODE"), node);
    assert!(
        !can_open("windlass-e2e-owner", "/dev/fuse") && !can_mknod("windlass-e2e-owner", "10 229")
    );
    assert!(!can_mknod("windlass-e2e-owner", "1 11"), "the kernel's log");

    pods.run("windlass-e2e-function", FUNCTION, 1).await;
    let address = variable("windlass-e2e-function", "PCI_FUNCTION");
    let function_class = fs::read_to_string(format!("/sys/bus/pci/devices/{address}/class"));
    assert_eq!(function_class.expect("a function of this machine").trim(), class);
    assert!(
        !can_open("windlass-e2e-function", "/dev/fuse")
            && !can_mknod("windlass-e2e-function", number)
    );

    pods.create("windlass-e2e-waits", EXCLUSIVE, 1);
    let reason = "jsonpath={.status.conditions[?(@.type==\"PodScheduled\")].reason}";
    let reason = async || kubectl(&["get", "pod", "windlass-e2e-waits", "-o", reason]);
    eventually(NODE_STATUS_LIMIT, "Unschedulable".to_owned(), reason).await;
    pods.delete("windlass-e2e-owner");
    pods.wait_for_running("windlass-e2e-waits").await;
    assert!(can_open("windlass-e2e-waits", node), "the next pod cannot open {node}");
    drop(pods);
    drop(agent);
}

/// Configuration of two sources. The probe of one never ends.
fn config_with_hanging_probe() -> String {
    format!(
        "health: {{quietPeriod: 1s, probeInterval: 1s}}\nsources:\n\
         - name: fuse\n  resource: {FUSE}\n  sharing: {{method: shared, replicas: 3}}\n  \
         find: {{nodes: /dev/fuse}}\n\
         - name: hanging\n  resource: {EXCLUSIVE}\n  find: {{nodes: /dev/null}}\n  \
         probe: {{command: [/bin/sleep, infinity], timeout: 500ms, every: 1s}}\n"
    )
}

#[tokio::test]
async fn a_hanging_probe_withholds_its_own_device_only() {
    if !has_cluster() {
        return;
    }
    if !Path::new("/dev/fuse").exists() {
        eprintln!("SKIPPED: this machine lacks /dev/fuse");
        return;
    }
    let _lock = plugin_folder_lock();
    let machine_node = Node::of_this_machine(&config_with_hanging_probe());
    let agent = machine_node.start_agent();
    eventually(NODE_STATUS_LIMIT, Some(3), async || allocatable(FUSE).await).await;
    eventually(NODE_STATUS_LIMIT, "1".to_owned(), async || node_status("capacity", EXCLUSIVE))
        .await;
    eventually(NODE_STATUS_LIMIT, "0".to_owned(), async || node_status("allocatable", EXCLUSIVE))
        .await;
    let mut pods = Pods::new();
    pods.run("windlass-e2e-fuse", FUSE, 1).await;
    assert!(can_open("windlass-e2e-fuse", "/dev/fuse"), "/dev/fuse cannot be opened");
    drop(pods);
    drop(agent);
}
