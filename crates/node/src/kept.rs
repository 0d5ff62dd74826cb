//! What one life of the agent tells the next: a document on the disk, with its version, the boot that it was
//! written in, and a checksum.

mod follow;

use std::{
    collections::BTreeMap,
    fs, io,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, Error as _},
};
use serde_json::value::RawValue;

pub(crate) use self::follow::{Versioned, Written, follow, recorded};
use crate::{causes, files, host::Host, shortened::checksum};

/// Where a document of one kind is kept.
#[derive(Debug)]
pub(crate) struct KeptFile<T> {
    path: PathBuf,
    format: Format,
    host: Host,
    content: PhantomData<fn() -> T>,
}

/// What is in a document.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Format {
    /// What it is, for a message: `evidence of health`.
    pub(crate) what: &'static str,
    /// What it is about, which is the name of the field: `devices`.
    pub(crate) about: &'static str,
    pub(crate) version: u32,
}

/// What an earlier life wrote, and when.
#[derive(Debug)]
pub(crate) struct Earlier<T> {
    pub(crate) content: T,
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

/// Why there is a file and nothing is known.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: io::Error },
    #[error("{path} is no {} of version {}", format.what, format.version)]
    Parse { path: PathBuf, format: Format, source: serde_json::Error },
    #[error("{path} is not as it was written: its {about} have checksum {computed}, not {found}")]
    Corrupt { path: PathBuf, about: &'static str, found: u32, computed: u32 },
    #[error("{path} has version {found}, this agent knows {known}")]
    Version { path: PathBuf, found: u32, known: u32 },
}

/// What is said of the content.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    version: u32,
    /// The boot that it was written in, as the kernel names it.
    boot: Option<String>,
    /// Of the content, byte by byte. Earlier agents wrote none.
    checksum: Option<u32>,
}

/// The file.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    content: BTreeMap<&'static str, &'a RawValue>,
}

/// Differs from boot to boot, `random(4)`.
pub(crate) const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

// === impl KeptFile ===

impl<T> KeptFile<T> {
    pub(crate) fn new(path: PathBuf, format: Format, host: Host) -> Self {
        Self { path, format, host, content: PhantomData }
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
        self.read().ok().flatten()
    }

    /// What an earlier life kept, if it kept anything. Blocks.
    pub(crate) fn read(&self) -> Result<Option<Earlier<T>>, Unreadable> {
        let text = match fs::read(&self.path) {
            Ok(text) => text,
            Err(error) if is_absence(&error) => return Ok(None),
            Err(source) => return Err(Unreadable::Read { path: self.path.clone(), source }),
        };
        let (then, content) = self.parse(&text)?;
        let boot = match (then, self.boot()) {
            (Some(then), Some(now)) if then == now => Boot::Same,
            (Some(_), Some(_)) => Boot::Another,
            _ => Boot::Unknown,
        };
        Ok(Some(Earlier { content, boot }))
    }

    /// The boot in which a document was written, and what it keeps.
    fn parse(&self, text: &[u8]) -> Result<(Option<String>, T), Unreadable> {
        let head: Head = self.understood(serde_json::from_slice(text))?;
        self.check_version(head.version)?;
        let fields: BTreeMap<String, &RawValue> = self.understood(serde_json::from_slice(text))?;
        let about = self.format.about;
        let content = fields.get(about).ok_or_else(|| serde_json::Error::missing_field(about));
        let content = self.understood(content)?.get();
        self.check_sum(head.checksum, checksum(content))?;
        Ok((head.boot, self.understood(serde_json::from_str(content))?))
    }

    /// Replaces what is kept. Blocks.
    pub(crate) fn write(&self, content: &T) -> io::Result<()> {
        files::replace(&self.path, &self.document(self.boot(), content)?, files::Readers::Owner)
            .map(drop)
    }

    fn document(&self, boot: Option<String>, content: &T) -> serde_json::Result<Vec<u8>> {
        // As deep as it stands in the document; no string has such a line break in it.
        let content = serde_json::to_string_pretty(content)?.replace('\n', "\n  ");
        let (version, checksum) = (self.format.version, checksum(&content));
        let content = RawValue::from_string(content)?;
        let document = Document {
            head: Head { version, boot, checksum: Some(checksum) },
            content: [(self.format.about, &*content)].into(),
        };
        serde_json::to_vec_pretty(&document)
    }

    /// Moves a file that cannot be understood out of the way, for a person to look at. Blocks.
    pub(crate) fn set_aside(&self) {
        let Err(why) = self.read() else { return };
        let (error, what) = (causes(&why), self.format.what);
        match files::set_aside(&self.path) {
            Ok(aside) => tracing::error!(error, aside = %aside.display(), "{what} set aside"),
            Err(refused) => tracing::error!(error, %refused, "{what} cannot be read"),
        }
    }

    fn understood<U>(&self, parsed: serde_json::Result<U>) -> Result<U, Unreadable> {
        let (path, format) = (self.path.clone(), self.format);
        parsed.map_err(|source| Unreadable::Parse { path, format, source })
    }

    fn check_version(&self, found: u32) -> Result<(), Unreadable> {
        let (path, known) = (self.path.clone(), self.format.version);
        if found == known { Ok(()) } else { Err(Unreadable::Version { path, found, known }) }
    }

    fn check_sum(&self, found: Option<u32>, computed: u32) -> Result<(), Unreadable> {
        let (path, about) = (self.path.clone(), self.format.about);
        match found {
            Some(found) if found != computed => {
                Err(Unreadable::Corrupt { path, about, found, computed })
            }
            _ => Ok(()),
        }
    }
}

// === impl Unreadable ===

impl Unreadable {
    /// Whether somebody may read it another day: a newer agent, or this one when the disk gives it.
    pub(crate) fn is_for_later(&self) -> bool {
        match self {
            Self::Read { .. } => true,
            Self::Version { found, known, .. } => found > known,
            Self::Parse { .. } | Self::Corrupt { .. } => false,
        }
    }
}

/// What would be written of a document that was read, or why it is none of its format.
pub(crate) fn reread<T: Serialize + DeserializeOwned>(
    format: Format,
    text: &[u8],
) -> Result<Vec<u8>, String> {
    // Neither is opened.
    let file = KeptFile::<T>::new(format.what.into(), format, Host::new("", ""));
    let (boot, content) = file.parse(text).map_err(|error| causes(&error))?;
    file.document(boot, &content).map_err(|error| error.to_string())
}

/// Where the folder is a file there was never a document in it.
fn is_absence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

// By hand: a derived one would ask the same of what is kept.
impl<T> Clone for KeptFile<T> {
    fn clone(&self) -> Self {
        Self::new(self.path.clone(), self.format, self.host.clone())
    }
}
