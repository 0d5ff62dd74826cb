//! What one life of the agent tells the next: a document on the disk, with its version, the boot that it was
//! written in, and a checksum of all three.
//!
//! | version | checksum |
//! | --- | --- |
//! | 1 | of the content alone; read, and written as 2 at the next change |
//! | 2 | of version, boot and content: each of them decides what becomes of a device |

mod journal;

use std::{
    collections::BTreeMap,
    io,
    marker::PhantomData,
    path::{Path, PathBuf},
};

use serde::{
    Deserialize, Serialize,
    de::{DeserializeOwned, Error as _},
};
use serde_json::value::RawValue;

pub use self::journal::{Journal, Versioned, Writer};
use crate::{
    Host,
    abbreviate::checksum,
    causes,
    files::{self, Links, MOST_BYTES, reserve},
};

/// Where a document of one kind is kept.
#[derive(Debug)]
pub struct KeptFile<T> {
    path: PathBuf,
    format: Format,
    host: Host,
    content: PhantomData<fn() -> T>,
}

/// What is in a document.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// What it is, for a message: `evidence of health`.
    pub what: &'static str,
    /// What it is about, which is the name of the field: `devices`.
    pub about: &'static str,
}

/// What an earlier life wrote, and when.
#[derive(Debug)]
pub struct Earlier<T> {
    /// The content.
    pub content: T,
    /// When it was written.
    pub boot: Boot,
}

/// Whether the machine was started since something was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// Since the machine was started.
    Same,
    /// Before the machine was started.
    Another,
    /// Then or now the kernel did not tell.
    Unknown,
}

/// Why there is a file and nothing is known.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The file holds something else.
    #[error("{path} is no {} of version {VERSION}", format.what)]
    Parse {
        /// The path.
        path: PathBuf,
        /// What it was to be.
        format: Format,
        /// The cause.
        source: serde_json::Error,
    },
    /// The content does not have its checksum.
    #[error("{path} is not as it was written: it has checksum {computed}, not {found}")]
    Corrupt {
        /// The path.
        path: PathBuf,
        /// What the file says.
        found: u32,
        /// The checksum of the content.
        computed: u32,
    },
    /// The checksum is missing.
    #[error("{path} is not as it was written: it has no checksum")]
    Unsealed {
        /// The path.
        path: PathBuf,
    },
    /// The file was written in another version of the format.
    #[error("{path} has version {found}, this agent knows {VERSION}")]
    Version {
        /// The path.
        path: PathBuf,
        /// What the file says.
        found: u32,
    },
}

/// What is said of the content.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    version: u32,
    /// The boot that it was written in, as the kernel names it.
    boot: Option<String>,
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

/// What this agent writes.
const VERSION: u32 = 2;

/// Of which the checksum covers the content alone.
const OF_CONTENT_ALONE: u32 = 1;

/// Differs from boot to boot, `random(4)`.
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

// === impl KeptFile ===

impl<T> KeptFile<T> {
    /// The file at this path.
    pub fn new(path: PathBuf, format: Format, host: Host) -> Self {
        Self { path, format, host, content: PhantomData }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn boot(&self) -> Option<String> {
        self.host.text(BOOT_ID)
    }
}

impl<T: Serialize + DeserializeOwned> KeptFile<T> {
    /// What an earlier life kept; nothing where it kept nothing that can be read. Blocks.
    pub fn load(&self) -> Option<Earlier<T>> {
        self.read().ok().flatten()
    }

    /// What an earlier life kept, if it kept anything. Blocks.
    pub fn read(&self) -> Result<Option<Earlier<T>>, Unreadable> {
        let text = match files::read_regular(&self.path, Links::Refused, MOST_BYTES) {
            Ok(text) => text,
            // A file in the place of the folder is something else: nobody knows what was in it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(Unreadable::Read { path: self.path.clone(), source }),
        };
        let (head, content) = self.parts(&text)?;
        self.check_sum(&head, content.get())?;
        let content = self.understood(serde_json::from_str(content.get()))?;
        let boot = match (head.boot, self.boot()) {
            (Some(then), Some(now)) if then == now => Boot::Same,
            (Some(_), Some(_)) => Boot::Another,
            _ => Boot::Unknown,
        };
        Ok(Some(Earlier { content, boot }))
    }

    /// What is said of the content, and the content, byte by byte.
    fn parts<'a>(&self, text: &'a [u8]) -> Result<(Head, &'a RawValue), Unreadable> {
        let head: Head = self.understood(serde_json::from_slice(text))?;
        self.check_version(head.version)?;
        let mut fields: BTreeMap<String, &RawValue> =
            self.understood(serde_json::from_slice(text))?;
        let about = self.format.about;
        let content = fields.remove(about).ok_or_else(|| serde_json::Error::missing_field(about));
        Ok((head, self.understood(content)?))
    }

    /// Replaces what is kept. Blocks.
    pub fn write(&self, content: &T) -> io::Result<()> {
        files::replace(&self.path, &self.document(self.boot(), content)?, files::Readers::Owner)
            .map(drop)
    }

    /// Keeps room for one more version. Blocks.
    pub fn reserve(&self) -> io::Result<()> {
        reserve::keep(&self.path)
    }

    /// Replaces what is kept, in the room that was kept for it. Blocks.
    pub fn write_into_reserve(&self, content: &T) -> io::Result<()> {
        let document = self.document(self.boot(), content)?;
        reserve::fill(&self.path, &document, files::Readers::Owner)
    }

    fn document(&self, boot: Option<String>, content: &T) -> serde_json::Result<Vec<u8>> {
        // As deep as it stands in the document; no string has such a line break in it.
        let content = serde_json::to_string_pretty(content)?.replace('\n', "\n  ");
        let checksum = seal(VERSION, boot.as_deref(), &content);
        let content = RawValue::from_string(content)?;
        let document = Document {
            head: Head { version: VERSION, boot, checksum: Some(checksum) },
            content: [(self.format.about, &*content)].into(),
        };
        serde_json::to_vec_pretty(&document)
    }

    /// Moves a file that cannot be understood out of the way, for a person to look at. Blocks.
    pub fn set_aside(&self) {
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
        match found {
            OF_CONTENT_ALONE | VERSION => Ok(()),
            _ => Err(Unreadable::Version { path: self.path.clone(), found }),
        }
    }

    fn check_sum(&self, head: &Head, content: &str) -> Result<(), Unreadable> {
        let computed = match head.version {
            OF_CONTENT_ALONE => checksum(content),
            version => seal(version, head.boot.as_deref(), content),
        };
        let path = self.path.clone();
        match head.checksum {
            Some(found) if found == computed => Ok(()),
            Some(found) => Err(Unreadable::Corrupt { path, found, computed }),
            None => Err(Unreadable::Unsealed { path }),
        }
    }
}

// === impl Unreadable ===

impl Unreadable {
    /// Whether somebody may read it another day: a newer agent, or this one when the disk gives it.
    pub fn is_for_later(&self) -> bool {
        match self {
            Self::Read { .. } => true,
            Self::Version { found, .. } => *found > VERSION,
            Self::Parse { .. } | Self::Corrupt { .. } | Self::Unsealed { .. } => false,
        }
    }
}

/// What would be written of a document that was read, or why it is none of its format. Its checksum is not asked for:
/// changes to a document shall reach what reads the rest.
pub fn reread<T: Serialize + DeserializeOwned>(
    format: Format,
    text: &[u8],
) -> Result<Vec<u8>, String> {
    // Neither is opened.
    let file = KeptFile::<T>::new(format.what.into(), format, Host::new("", ""));
    let (head, content) = file.parts(text).map_err(|error| causes(&error))?;
    let content = file.understood(serde_json::from_str(content.get()));
    let content = content.map_err(|error| causes(&error))?;
    file.document(head.boot, &content).map_err(|error| error.to_string())
}

/// The checksum of a document.
fn seal(version: u32, boot: Option<&str>, content: &str) -> u32 {
    checksum(&format!("{version} {} {content}", boot.unwrap_or_default()))
}

// By hand: a derived one would ask the same of what is kept.
impl<T> Clone for KeptFile<T> {
    fn clone(&self) -> Self {
        Self::new(self.path.clone(), self.format, self.host.clone())
    }
}
