//! State files for the agent's next start: content with version, boot id, and a checksum of all three.
//!
//! A document may have a copy in another folder, which is read if the document is lost. The copy is written first, so
//! that it is never older than the document.
//!
//! | version | checksum |
//! | --- | --- |
//! | 1 | content only; the agent reads it, and writes version 2 at the next change |
//! | 2 | version, boot id and content, since each affects devices |

mod journal;

use std::{
    collections::BTreeMap,
    fs,
    io::{
        self,
        ErrorKind::{IsADirectory, NotADirectory, NotFound},
    },
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
    files::{self, MAX_BYTES, Symlinks, reserve},
};

/// A state file of one kind.
#[derive(Debug)]
pub struct StateFile<T> {
    path: PathBuf,
    copy: Option<PathBuf>,
    format: Format,
    host: Host,
    content: PhantomData<fn() -> T>,
}

/// Format of a state file.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// Name in messages: `health history`.
    pub name: &'static str,
    /// Name of the field with the content: `devices`.
    pub content_key: &'static str,
}

/// State of an earlier agent.
#[derive(Debug)]
pub struct SavedState<T> {
    /// Content.
    pub content: T,
    /// Boot in which it was written.
    pub boot: Boot,
}

/// Boot of a state file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Boot {
    /// The current boot.
    Current,
    /// An earlier boot.
    Earlier,
    /// The kernel reported no boot id, at the write or now.
    Unknown,
}

/// Reason why an existing state file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// The file is unreadable.
    #[error("cannot read {0}")]
    Read(PathBuf, #[source] io::Error),
    /// The file has another format.
    #[error("{0} is not a {what} of version {VERSION}", what = .1.name)]
    Parse(PathBuf, Format, #[source] serde_json::Error),
    /// The checksum differs.
    #[error("{path} is not as it was written: it has checksum {computed}, not {found}")]
    Corrupt {
        /// Path.
        path: PathBuf,
        /// Checksum in the file.
        found: u32,
        /// Checksum of the content.
        computed: u32,
    },
    /// The checksum is missing.
    #[error("{0} is not as it was written: it has no checksum")]
    NoChecksum(PathBuf),
    /// The file has an unknown version.
    #[error("{0} has version {1}, this agent knows {VERSION}")]
    UnsupportedVersion(PathBuf, u32),
}

/// Metadata of the content.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Header {
    version: u32,
    /// Kernel's boot id at the time of writing.
    boot: Option<String>,
    checksum: Option<u32>,
}

/// Complete file.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    head: Header,
    #[serde(flatten)]
    content: BTreeMap<&'static str, &'a RawValue>,
}

const VERSION: u32 = 2;

/// Version whose checksum covers only the content.
const CONTENT_CHECKSUM_VERSION: u32 = 1;

/// Boot id, which differs between boots (`random(4)`).
pub const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

// === impl StateFile ===

impl<T> StateFile<T> {
    /// The state file at this path.
    pub fn new(path: PathBuf, format: Format, host: Host) -> Self {
        Self { path, copy: None, format, host, content: PhantomData }
    }

    /// Sets the path of the copy.
    #[must_use]
    pub fn with_copy(self, copy: PathBuf) -> Self {
        Self { copy: Some(copy), ..self }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn boot(&self) -> Option<String> {
        self.host.read_text(BOOT_ID)
    }
}

impl<T: Serialize + DeserializeOwned> StateFile<T> {
    /// State of an earlier agent; `None` if neither document nor copy is readable. Blocks.
    pub fn load(&self) -> Option<SavedState<T>> {
        self.read().ok().flatten()
    }

    /// State of an earlier agent; `None` if there is none. If the file is absent or damaged, the copy is read
    /// instead. An unreadable copy counts as absent. Blocks.
    pub fn read(&self) -> Result<Option<SavedState<T>>, StateFileError> {
        let document = self.read_document();
        let is_lost = document.as_ref().map_or_else(|error| !error.is_retryable(), Option::is_none);
        let Some(copy) = self.copy.as_ref().filter(|_| is_lost) else { return document };
        let copy = Self::new(copy.clone(), self.format, self.host.clone());
        let Some(saved) = copy.load() else { return document };
        let (path, copy) = (self.path.display(), copy.path.display());
        tracing::warn!(%path, %copy, "{} lost, read from its copy", self.format.name);
        Ok(Some(saved))
    }

    fn read_document(&self) -> Result<Option<SavedState<T>>, StateFileError> {
        let text = match files::read_regular(&self.path, Symlinks::Refused, MAX_BYTES) {
            Ok(text) => text,
            // Only a missing file means no state. If something else is in place of the folder, the state is unknown.
            Err(error) if error.kind() == NotFound => return Ok(None),
            Err(source) => return Err(StateFileError::Read(self.path.clone(), source)),
        };
        let (head, content) = self.split(&text)?;
        self.verify_checksum(&head, content.get())?;
        let content = self.parsed_or_error(serde_json::from_str(content.get()))?;
        let boot = match (head.boot, self.boot()) {
            (Some(written_boot), Some(current_boot)) if written_boot == current_boot => {
                Boot::Current
            }
            (Some(_), Some(_)) => Boot::Earlier,
            _ => Boot::Unknown,
        };
        Ok(Some(SavedState { content, boot }))
    }

    /// Metadata and raw content.
    fn split<'a>(&self, text: &'a [u8]) -> Result<(Header, &'a RawValue), StateFileError> {
        let head: Header = self.parsed_or_error(serde_json::from_slice(text))?;
        self.check_version(head.version)?;
        let mut fields: BTreeMap<String, &RawValue> =
            self.parsed_or_error(serde_json::from_slice(text))?;
        let content_key = self.format.content_key;
        let content =
            fields.remove(content_key).ok_or_else(|| serde_json::Error::missing_field(content_key));
        Ok((head, self.parsed_or_error(content)?))
    }

    /// Replaces the content. Blocks.
    pub fn write(&self, content: &T) -> io::Result<()> {
        let document = self.document(self.boot(), content)?;
        self.write_copy(&document)?;
        files::replace(&self.path, &document, files::FileAccess::Owner).map(drop)
    }

    /// Writes the copy. If that fails, removes it, so that the copy is never older than the document.
    fn write_copy(&self, document: &[u8]) -> io::Result<()> {
        let Some(copy) = &self.copy else { return Ok(()) };
        let Err(write_error) = files::replace(copy, document, files::FileAccess::Owner) else {
            return Ok(());
        };
        match fs::remove_file(copy) {
            Ok(()) => {
                let copy = copy.display();
                tracing::warn!(
                    error = %write_error,
                    %copy,
                    "copy of {} not written",
                    self.format.name
                );
                Ok(())
            }
            Err(error) if matches!(error.kind(), NotFound | NotADirectory | IsADirectory) => Ok(()),
            Err(_) => Err(write_error),
        }
    }

    /// Reserves disk space for one more version. Blocks.
    pub fn reserve(&self) -> io::Result<()> {
        reserve::create_spares(&self.path)
    }

    /// Replaces the content, in the reserved space. Blocks.
    pub fn write_into_reserve(&self, content: &T) -> io::Result<()> {
        let document = self.document(self.boot(), content)?;
        reserve::write_into_spare(&self.path, &document, files::FileAccess::Owner)
    }

    fn document(&self, boot: Option<String>, content: &T) -> serde_json::Result<Vec<u8>> {
        // Indents the content to its depth in the document. Strings of JSON contain no line breaks.
        let content = serde_json::to_string_pretty(content)?.replace('\n', "\n  ");
        let checksum = checksum_of(VERSION, boot.as_deref(), &content);
        let content = RawValue::from_string(content)?;
        let document = Document {
            head: Header { version: VERSION, boot, checksum: Some(checksum) },
            content: [(self.format.content_key, &*content)].into(),
        };
        serde_json::to_vec_pretty(&document)
    }

    /// Renames an unusable file for inspection. Blocks.
    pub fn set_aside(&self) {
        let Err(read_error) = self.read_document() else { return };
        let (error, name) = (causes(&read_error), self.format.name);
        match files::set_aside(&self.path) {
            Ok(new_path) => tracing::error!(error, aside = %new_path.display(), "{name} set aside"),
            Err(refused) => tracing::error!(error, %refused, "{name} cannot be read"),
        }
    }

    fn parsed_or_error<U>(&self, parsed: serde_json::Result<U>) -> Result<U, StateFileError> {
        let (path, format) = (self.path.clone(), self.format);
        parsed.map_err(|source| StateFileError::Parse(path, format, source))
    }

    fn check_version(&self, version: u32) -> Result<(), StateFileError> {
        match version {
            CONTENT_CHECKSUM_VERSION | VERSION => Ok(()),
            _ => Err(StateFileError::UnsupportedVersion(self.path.clone(), version)),
        }
    }

    fn verify_checksum(&self, head: &Header, content: &str) -> Result<(), StateFileError> {
        let computed = match head.version {
            CONTENT_CHECKSUM_VERSION => checksum(content),
            version => checksum_of(version, head.boot.as_deref(), content),
        };
        let path = self.path.clone();
        match head.checksum {
            Some(found) if found == computed => Ok(()),
            Some(found) => Err(StateFileError::Corrupt { path, found, computed }),
            None => Err(StateFileError::NoChecksum(path)),
        }
    }
}

// === impl StateFileError ===

impl StateFileError {
    /// True if the file may become usable later: for a newer agent, or after a disk error.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Read(..) => true,
            Self::UnsupportedVersion(_, found) => *found > VERSION,
            Self::Parse(..) | Self::Corrupt { .. } | Self::NoChecksum(_) => false,
        }
    }
}

/// A document as this agent would write it, or the reason why the document has another format. Ignores the checksum, so
/// that fuzzing reaches the content.
pub fn round_trip<T: Serialize + DeserializeOwned>(
    format: Format,
    text: &[u8],
) -> Result<Vec<u8>, String> {
    // Path and host are placeholders, which are never opened.
    let file = StateFile::<T>::new(format.name.into(), format, Host::new("", ""));
    let (head, content) = file.split(text).map_err(|error| causes(&error))?;
    let content = file.parsed_or_error(serde_json::from_str(content.get()));
    let content = content.map_err(|error| causes(&error))?;
    file.document(head.boot, &content).map_err(|error| error.to_string())
}

/// Checksum of version, boot id and content.
fn checksum_of(version: u32, boot: Option<&str>, content: &str) -> u32 {
    checksum(&format!("{version} {} {content}", boot.unwrap_or_default()))
}

// A derived impl would require `T: Clone`.
impl<T> Clone for StateFile<T> {
    fn clone(&self) -> Self {
        let without_copy = Self::new(self.path.clone(), self.format, self.host.clone());
        Self { copy: self.copy.clone(), ..without_copy }
    }
}

#[cfg(test)]
mod tests;
