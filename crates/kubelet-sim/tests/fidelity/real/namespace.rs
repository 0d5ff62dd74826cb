//! Namespaces of their own for a real kubelet: the test runs itself again inside.

use std::{
    env, fs,
    path::Path,
    process::{self, Command},
};

/// The kubelet's program.
pub(crate) const KUBELET: &str = "WINDLASS_E2E_KUBELET";

/// The sequence to play inside.
const SCRIPT: &str = "WINDLASS_FIDELITY_SCRIPT";

/// The cgroup of all pods inside, in each hierarchy.
const CGROUP: &str = "WINDLASS_FIDELITY_CGROUP";

/// Makes a node of the namespaces.
const MAKE_NODE: &str = include_str!("node.sh");

/// Where a test finds itself.
pub(crate) enum Place {
    /// There is no kubelet to compare with.
    Nowhere,
    /// On the machine, which is not disturbed.
    Outside,
    /// On a node of its own, to play one script.
    Inside { script: String, cgroup: String },
}

pub(crate) fn place() -> Place {
    match (env::var(SCRIPT), env::var(CGROUP), env::var(KUBELET)) {
        (Ok(script), Ok(cgroup), Ok(_)) => Place::Inside { script, cgroup },
        (_, _, Ok(_)) => Place::Outside,
        (_, _, Err(_)) => Place::Nowhere,
    }
}

/// Runs this test inside, for one script; whether it succeeded there.
pub(crate) fn plays_inside(test: &str, script: &str) -> bool {
    let cgroup = format!("windlass-fidelity-{}", process::id());
    let mut command = Command::new("setpriv");
    // When this process ends, so does all that is inside.
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

/// Removes a cgroup that nobody is in any more, with those in it.
fn remove_cgroup(cgroup: &Path) {
    for entry in fs::read_dir(cgroup).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_cgroup(&entry.path());
        }
    }
    // Most are not there.
    let _ = fs::remove_dir(cgroup);
}
