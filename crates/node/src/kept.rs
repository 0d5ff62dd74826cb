//! What one life of the agent tells the next about devices: a document on the disk, with its version
//! and the boot that it was written in.

mod follow;

use std::{
    fs, io,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub(crate) use self::follow::{Versioned, Written, follow, recorded};
use crate::{causes, files, host::Host};

/// Where a document of one kind is kept.
#[derive(Debug)]
pub(crate) struct KeptFile<T> {
    path: PathBuf,
    /// What it is, for a message: `evidence of health`.
    what: &'static str,
    version: u32,
    host: Host,
    devices: PhantomData<fn() -> T>,
}

/// What an earlier life wrote, and when.
#[derive(Debug)]
pub(crate) struct Earlier<T> {
    pub(crate) devices: T,
    pub(crate) boot: Boot,
}

/// Whether the machine was started since something was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Boot {
    Same,
    Another,
    /// Then or now the kernel did not tell.
    Unknown,
}

/// The file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document<T> {
    version: u32,
    /// The boot that it was written in, as the kernel names it.
    boot: Option<String>,
    devices: T,
}

/// Why there is a file and nothing is known.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no {what} of version {version}")]
    Parse { path: PathBuf, what: &'static str, version: u32, source: serde_json::Error },
    #[error("{path} has version {found}, this agent knows {known}")]
    Version { path: PathBuf, found: u32, known: u32 },
}

/// Differs from boot to boot, `random(4)`.
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

// === impl KeptFile ===

impl<T> KeptFile<T> {
    pub(crate) fn new(path: PathBuf, what: &'static str, version: u32, host: Host) -> Self {
        Self { path, what, version, host, devices: PhantomData }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn boot(&self) -> Option<String> {
        self.host.text(BOOT_ID)
    }
}

impl<T: Serialize + DeserializeOwned> KeptFile<T> {
    /// What an earlier life kept; nothing where it kept nothing that can be read. Blocks.
    pub(crate) fn load(&self) -> Option<Earlier<T>> {
        let document = self.read().ok().flatten()?;
        let boot = match (document.boot, self.boot()) {
            (Some(then), Some(now)) if then == now => Boot::Same,
            (Some(_), Some(_)) => Boot::Another,
            _ => Boot::Unknown,
        };
        Some(Earlier { devices: document.devices, boot })
    }

    /// Replaces what is kept. Blocks.
    pub(crate) fn write(&self, devices: T) -> io::Result<()> {
        let document = Document { version: self.version, boot: self.boot(), devices };
        files::replace(&self.path, &serde_json::to_vec_pretty(&document)?).map(drop)
    }

    /// Moves a file that cannot be understood out of the way, for a person to look at. Blocks.
    pub(crate) fn set_aside(&self) {
        let Err(why) = self.read() else { return };
        let (error, what) = (causes(&why), self.what);
        match files::set_aside(&self.path) {
            Ok(aside) => tracing::warn!(error, aside = %aside.display(), "{what} set aside"),
            Err(refused) => tracing::warn!(error, %refused, "{what} cannot be read"),
        }
    }

    fn read(&self) -> Result<Option<Document<T>>, Unreadable> {
        let path = || self.path.clone();
        let (what, version) = (self.what, self.version);
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Unreadable::Read { path: path(), source }),
        };
        let document: Document<T> = serde_json::from_slice(&text)
            .map_err(|source| Unreadable::Parse { path: path(), what, version, source })?;
        match document.version {
            found if found == version => Ok(Some(document)),
            found => Err(Unreadable::Version { path: path(), found, known: version }),
        }
    }
}

// By hand: a derived one would ask the same of what is kept.
impl<T> Clone for KeptFile<T> {
    fn clone(&self) -> Self {
        Self::new(self.path.clone(), self.what, self.version, self.host.clone())
    }
}
