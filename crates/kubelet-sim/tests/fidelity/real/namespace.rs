//! Namespaces of a real kubelet: the test runs itself again inside.

use std::{
    env, fs,
    path::Path,
    process::{self, Command},
};

/// Variable with the path of the kubelet's program.
pub(crate) const KUBELET: &str = "WINDLASS_E2E_KUBELET";

/// Variable with the sequence to play inside.
const SCRIPT: &str = "WINDLASS_FIDELITY_SCRIPT";

/// Variable with the cgroup of all pods inside, in each hierarchy.
const CGROUP: &str = "WINDLASS_FIDELITY_CGROUP";

/// Script that makes a node of the namespaces.
const MAKE_NODE: &str = include_str!("node.sh");

/// Place of a test.
pub(crate) enum Place {
    /// No kubelet is given for a comparison.
    Nowhere,
    /// The test runs on the machine, which stays undisturbed.
    Outside,
    /// The test runs on a node of its own, to play one script.
    Inside { script: String, cgroup: String },
}

pub(crate) fn place() -> Place {
    match (env::var(SCRIPT), env::var(CGROUP), env::var(KUBELET)) {
        (Ok(script), Ok(cgroup), Ok(_)) => Place::Inside { script, cgroup },
        (_, _, Ok(_)) => Place::Outside,
        (_, _, Err(_)) => Place::Nowhere,
    }
}

/// Runs this test inside for one script. Returns true if the script succeeded there.
pub(crate) fn plays_inside(test: &str, script: &str) -> bool {
    let cgroup = format!("windlass-fidelity-{}", process::id());
    let mut command = Command::new("setpriv");
    // The end of this process ends all processes inside.
    command.args(["--pdeathsig", "KILL", "unshare", "--mount", "--net", "--pid", "--fork"]);
    command.args(["--kill-child", "--mount-proc", "sh", "-c", MAKE_NODE, "node.sh"]);
    command.arg(env::current_exe().expect("its own path"));
    command.args([test, "--exact", "--nocapture"]);
    command.env(SCRIPT, script).env(CGROUP, &cgroup);
    let status = command.status().expect("setpriv and unshare are there");
    for hierarchy in fs::read_dir("/sys/fs/cgroup").expect("cgroups").flatten() {
        remove_cgroup(&hierarchy.path().join(&cgroup));
    }
    remove_cgroup(&Path::new("/sys/fs/cgroup").join(&cgroup));
    status.success()
}

/// Removes an unused cgroup, with those in it.
fn remove_cgroup(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    // Most of these cgroups do not exist.
    let _ = fs::remove_dir(cgroup);
}
