//! The embedded kubelet with a third-party device plugin in Go.

use std::{
    env,
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::support::{Node, ids, pod};

/// Path of a program that takes the plugin folder as its argument. The program serves
/// `example.com/go` with devices `g0` and `g1` on a socket there, asks for
/// `GetPreferredAllocation`, and registers. `Allocate` puts the id into the environment variable
/// `GO`.
const PROGRAM: &str = "WINDLASS_GO_DEVICE_PLUGIN";

/// A child process that ends with its test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // The program may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Passes without the program.
#[tokio::test]
async fn a_go_plugin_registers_and_serves_a_pod() {
    let Some(program) = env::var_os(PROGRAM) else {
        eprintln!("SKIPPED: set {PROGRAM} to meet a plugin written in Go");
        return;
    };
    let node = Node::start_with(|config| config.dial_timeout = Duration::from_secs(10));
    let folder = node.kubelet.config().plugin_dir();
    let child = Command::new(program).arg(folder).stderr(Stdio::null()).spawn();
    let plugin = Killed(child.expect("it runs"));
    node.counts("example.com/go", 2, 2).await;
    let admission = node.kubelet.admit(pod("pod", "example.com/go", 1)).await.expect("admitted");
    let allotment = admission.allotment("c", "example.com/go").expect("held");
    assert_eq!(allotment.preference.as_ref().expect("it was asked").available, ids("g0 g1"));
    assert_eq!(allotment.ids(), ids(&allotment.grant.envs["GO"]));
    drop(plugin);
    node.counts("example.com/go", 2, 0).await;
}
