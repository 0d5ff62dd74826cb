//! Ownership of the folder: an embedded kubelet never claims the folder of a real one.
//!
//! At its start a kubelet deletes every socket in its folder, creates the registration socket and replaces the
//! checkpoint, which would cut off the plugins of a real kubelet.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use anyhow::{Context as _, Result, anyhow};
use tokio::net::UnixStream;
use windlass_kubelet_api::{checkpoint, deviceplugin::PLUGIN_DIR};
use windlass_kubelet_sim::Config;

use crate::exit::UsageError;

/// Marks folders of embedded kubelets, because the embedded kubelet's checkpoint resembles a real one's.
const MARKER: &str = ".windlass-embedded-kubelet";

/// Files of every real kubelet (`pkg/kubelet/cm`), which the embedded one never writes.
const REAL_KUBELET_FILES: [&str; 2] = ["cpu_manager_state", "memory_manager_state"];

/// Claims a folder, unless it has traces of another kubelet.
pub(super) async fn claim_folder(config: &Config) -> Result<()> {
    let dir = &config.dir;
    let socket = config.registration_socket();
    if is_listening(&socket).await {
        return Err(refusal(dir, &format!("a kubelet answers on {}", socket.display())).into());
    }
    let marker = dir.join(MARKER);
    if !marker.exists() {
        let checkpoint = dir.join(PLUGIN_DIR).join(checkpoint::FILE_NAME);
        let mut traces =
            REAL_KUBELET_FILES.map(|name| dir.join(name)).into_iter().chain([checkpoint]);
        if let Some(trace) = traces.find(|path| path.exists()) {
            return Err(
                refusal(dir, &format!("{} belongs to a real kubelet", trace.display())).into()
            );
        }
    }
    fs::create_dir_all(dir)
        .and_then(|()| File::create(&marker))
        .with_context(|| format!("cannot write {}", marker.display()))?;
    Ok(())
}

/// True if a process listens; a full queue counts.
async fn is_listening(socket: &Path) -> bool {
    match UnixStream::connect(socket).await {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn refusal(dir: &Path, reason: &str) -> UsageError {
    UsageError(anyhow!(
        "{reason}, and an embedded kubelet in {} would destroy its state: name an empty folder",
        dir.display()
    ))
}
