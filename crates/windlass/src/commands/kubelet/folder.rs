//! Whose folder it is: an embedded kubelet never takes that of a real one.
//!
//! A kubelet that starts deletes every socket of its folder, takes the registration socket and
//! replaces the checkpoint; in a real kubelet's folder that would end the plugins of the node.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use anyhow::{Context as _, Result, anyhow};
use tokio::net::UnixStream;
use windlass_kubelet_api::{checkpoint, deviceplugin::PLUGIN_DIR};
use windlass_kubelet_sim::Config;

use crate::exit::Misuse;

/// Left in a folder that was taken once, since our own checkpoint looks as the real one's.
const MARKER: &str = ".windlass-embedded-kubelet";

/// Written by every real kubelet (`pkg/kubelet/cm`), and never by the embedded one.
const STATES: [&str; 2] = ["cpu_manager_state", "memory_manager_state"];

/// Takes a folder that nobody's kubelet lives or lived in, but for our own.
pub(super) async fn claim(config: &Config) -> Result<()> {
    let dir = &config.dir;
    let socket = config.registration_socket();
    if answers(&socket).await {
        return Err(refusal(dir, &format!("a kubelet answers on {}", socket.display())).into());
    }
    let marker = dir.join(MARKER);
    if !marker.exists() {
        let checkpoint = dir.join(PLUGIN_DIR).join(checkpoint::FILE);
        let mut signs = STATES.map(|name| dir.join(name)).into_iter().chain([checkpoint]);
        if let Some(sign) = signs.find(|path| path.exists()) {
            return Err(refusal(dir, &format!("{} is another kubelet's", sign.display())).into());
        }
    }
    fs::create_dir_all(dir)
        .and_then(|()| File::create(&marker))
        .with_context(|| format!("cannot write {}", marker.display()))?;
    Ok(())
}

/// Whether somebody listens; a queue that is full is somebody's, too.
async fn answers(socket: &Path) -> bool {
    match UnixStream::connect(socket).await {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::WouldBlock,
    }
}

fn refusal(dir: &Path, why: &str) -> Misuse {
    Misuse(anyhow!(
        "{why}, and an embedded kubelet in {} would destroy what it has: name an empty folder",
        dir.display()
    ))
}
