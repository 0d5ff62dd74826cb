//! The embedded kubelet with a third-party device plugin in Go.

use std::{
    env,
    process::{Child, Command, Stdio},
    time::Duration,
};

use super::support::{Node, ids, pod};

/// Environment variable with the path of a plugin's program. Its argument is the plugin folder. The
/// program serves `example.com/go` with devices `g0` and `g1` on a socket there, and registers. Its
/// options include `GetPreferredAllocation`. `Allocate` sets the environment variable `GO` to the id.
const PROGRAM: &str = "WINDLASS_GO_DEVICE_PLUGIN";

/// A child process, killed at the end of the test.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        // The program may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Skipped if the variable is not set.
#[tokio::test]
async fn a_go_plugin_registers_and_serves_a_pod() {
    let Some(program) = env::var_os(PROGRAM) else {
        eprintln!("SKIPPED: set {PROGRAM} to test with a plugin written in Go");
        return;
    };
    let node = Node::start_with(|config| config.dial_timeout = Duration::from_secs(10));
    let folder = node.kubelet.config().plugin_dir();
    let child = Command::new(program).arg(folder).stderr(Stdio::null()).spawn();
    let plugin = KilledOnDrop(child.expect("the program starts"));
    node.wait_for_counts("example.com/go", 2, 2).await;
    let admission = node.kubelet.admit(pod("pod", "example.com/go", 1)).await.expect("admitted");
    let allocation = admission.allocation("c", "example.com/go").expect("allocated");
    let preference = allocation.preferred_call.as_ref().expect("the plugin was called");
    assert_eq!(preference.available, ids("g0 g1"));
    assert_eq!(allocation.ids(), ids(&allocation.run_options.envs["GO"]));
    drop(plugin);
    node.wait_for_counts("example.com/go", 2, 0).await;
}
