//! Namespaces of a real kubelet. The test runs its own program again in new namespaces.

use std::{
    env, fs,
    path::Path,
    process::{self, Command},
};

/// Environment variable with the path of the kubelet's program.
pub(crate) const KUBELET: &str = "WINDLASS_E2E_KUBELET";

/// Environment variable with the name of the script to run in the namespaces.
const SCRIPT: &str = "WINDLASS_FIDELITY_SCRIPT";

/// Environment variable with the name of the cgroup of all pods, in each cgroup hierarchy.
const CGROUP: &str = "WINDLASS_FIDELITY_CGROUP";

/// Shell script that sets up a node in new namespaces, and runs a command there.
const MAKE_NODE: &str = include_str!("node.sh");

/// Role of this process in the comparison with a real kubelet.
pub(crate) enum RunMode {
    /// No kubelet is configured.
    Skip,
    /// The process starts a child in new namespaces for each script.
    Parent,
    /// The process runs in new namespaces, with one script.
    Child { script: String, cgroup: String },
}

pub(crate) fn run_mode() -> RunMode {
    match (env::var(SCRIPT), env::var(CGROUP), env::var(KUBELET)) {
        (Ok(script), Ok(cgroup), Ok(_)) => RunMode::Child { script, cgroup },
        (_, _, Ok(_)) => RunMode::Parent,
        (_, _, Err(_)) => RunMode::Skip,
    }
}

/// Runs the test for one script in new namespaces. Returns true if it succeeded.
pub(crate) fn run_child(test: &str, script: &str) -> bool {
    let cgroup = format!("windlass-fidelity-{}", process::id());
    let mut command = Command::new("setpriv");
    // The end of this process ends all processes in the namespaces.
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork"]);
    command.args(["--kill-child", "--mount-proc", "sh", "-c", MAKE_NODE, "node.sh"]);
    command.arg(env::current_exe().expect("its own path"));
    command.args([test, "--exact", "--nocapture"]);
    command.env(SCRIPT, script).env(CGROUP, &cgroup);
    let status = command.status().expect("setpriv is installed");
    for hierarchy in fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten() {
        remove_cgroup(&hierarchy.path().join(&cgroup));
    }
    remove_cgroup(&Path::new("/sys/fs/cgroup").join(&cgroup));
    status.success()
}

/// Removes a cgroup without processes, and the cgroups below it.
fn remove_cgroup(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|file_type| file_type.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    // The cgroup exists in some of the tried folders only.
    let _ = fs::remove_dir(cgroup);
}
