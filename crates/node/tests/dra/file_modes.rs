//! Permissions of the agent's files on a node: sockets, state and documents, under any umask.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Stdio,
};

use tokio::process::Command;
use windlass_kubelet_sim::{Config, Container, Kubelet, Pod};
use windlass_machine::Fault;
use windlass_testkit::{TIMEOUT, until_exists};

use crate::dra::lifecycle_rig::Rig;

/// Modes of files: for the agent's user only, and readable by everyone.
const OWNER_ONLY: u32 = 0o600;
const WORLD_READABLE: u32 = 0o644;

/// Mode of a folder in which other users may read, but not write.
const FOLDER: u32 = 0o755;

/// Content of the state folder.
const STATE_FILES: [(&str, u32); 5] = [
    ("claims.json", OWNER_ONLY),
    ("devices.json", OWNER_ONLY),
    ("handover.json", OWNER_ONLY),
    ("health-nvidia.json", OWNER_ONLY),
    ("choices.json", WORLD_READABLE),
];

fn mode(path: &Path) -> u32 {
    let metadata = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    metadata.permissions().mode() & 0o777
}

fn in_folder(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path()).collect()
}

/// The agent has written files of each kind: for claims, pods, a fault, and a board that is prepared.
#[tokio::test]
async fn files_and_sockets_have_the_least_permissive_modes() {
    let rig = Rig::new();
    let (agent, mut kubelet) = rig.start_ready().await;
    let places = &rig.config.places;
    let board = rig.schedule("a", "board").expect("it is free");
    let gpu = rig.free_gpu("g").await;
    for tenant in [&board, &gpu] {
        kubelet.start_with(tenant).await.expect("prepared");
    }
    let kubelet_sim = Kubelet::start(Config::new(&places.kubelet_dir)).expect("it starts");
    let has_gpus = kubelet_sim
        .wait_for(|node| node.counts("nvidia.com/gpu").is_some_and(|(_, free)| free > 1), TIMEOUT);
    has_gpus.await.expect("registered");
    let pod = Pod::new("p").container(Container::new("c").limit("nvidia.com/gpu", 1));
    kubelet_sim.admit(pod).await.expect("admitted");
    rig.machine.inject(&Fault::Xid { gpu: 7, code: 79 }).expect("injected");

    for (name, expected) in STATE_FILES {
        let path = places.state_dir.join(name);
        until_exists(&path).await;
        assert_eq!(mode(&path), expected, "{name}");
    }
    let driver = places.kubelet_dir.join("plugins/windlass.dev");
    for folder in [&places.state_dir, &places.cdi_dir, &driver] {
        assert_eq!(mode(folder), FOLDER, "{}", folder.display());
    }
    let sockets = [
        "device-plugins/windlass-nvidia.com_gpu.sock",
        "plugins_registry/windlass.dev@reg.sock",
        "plugins/windlass.dev/dra.sock",
    ];
    for socket in sockets {
        assert_eq!(mode(&places.kubelet_dir.join(socket)), OWNER_ONLY, "{socket}");
    }
    let documents = in_folder(&places.cdi_dir);
    assert!(documents.iter().any(|path| path.to_string_lossy().contains("-claim-")));
    for document in documents {
        // The copy of the record names pods, as the record does.
        let is_copy = document.ends_with("windlass.dev-claims.copy");
        let expected = if is_copy { OWNER_ONLY } else { WORLD_READABLE };
        assert_eq!(mode(&document), expected, "{}", document.display());
    }
    let is_known = |path: &PathBuf| STATE_FILES.iter().any(|(name, _)| path.ends_with(name));
    let others = in_folder(&places.state_dir).into_iter().filter(|path| !is_known(path));
    for path in others.filter(|path| path.is_file()) {
        assert_eq!(mode(&path), OWNER_ONLY, "{}", path.display());
    }
    kubelet_sim.shutdown().await;
    agent.stop().await;
}

/// A process has one umask, so each umask needs another process for the test above.
#[tokio::test]
async fn the_modes_are_the_same_under_any_umask() {
    const TEST: &str = "dra::file_modes::files_and_sockets_have_the_least_permissive_modes";
    let program = std::env::current_exe().expect("this program");
    for umask in ["000", "077"] {
        let script = format!("umask {umask}; exec \"$0\" --exact {TEST}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(&program).stdin(Stdio::null()).kill_on_drop(true);
        let output = command.output().await.expect("sh runs");
        let output_text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && output_text.contains("1 passed"),
            "umask {umask}: {output_text}"
        );
    }
}
