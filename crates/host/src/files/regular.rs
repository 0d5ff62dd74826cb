//! Bounded reads of regular files.
//!
//! A FIFO, device, folder, link or endless file in place of the expected file is an error that names it. No read waits
//! for another process.

use std::{
    fs::{self, File, FileType, Metadata},
    io::{self, Read as _},
    os::unix::fs::FileTypeExt as _,
    path::Path,
};

use rustix::fs::{Mode, OFlags};

/// Treatment of a symbolic link at the end of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symlinks {
    /// Followed, as for files of a mounted `ConfigMap`.
    Followed,
    /// Refused, as for files that agents and kubelets replace.
    Refused,
}

/// Reason why a file is not read.
#[derive(Debug, thiserror::Error)]
enum FileRefusal {
    #[error("it is {0}, not a regular file")]
    NotRegular(&'static str),
    #[error("it is larger than {}, the most that is read", size(*.0))]
    TooLarge(u64),
    #[error("it is not UTF-8 text")]
    NotUtf8,
}

/// Limit on a document of a node. A claim takes about 2 KiB in the agent's record, and a container as much in the
/// kubelet's checkpoint.
pub const MAX_BYTES: u64 = 32 << 20;

/// Reads a regular file of at most `max_bytes`.
///
/// # Guarantees
///
/// Refuses FIFOs, devices and endless files at once. Follows links above the last path component.
///
/// # Errors
///
/// The system's error, such as [`NotFound`](io::ErrorKind::NotFound); otherwise
/// [`InvalidInput`](io::ErrorKind::InvalidInput) with the reason.
pub fn read_regular(path: &Path, symlinks: Symlinks, max_bytes: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path, symlinks)?;
    if file.metadata()?.len() > max_bytes {
        return Err(FileRefusal::TooLarge(max_bytes).into());
    }
    read_bytes(file, max_bytes)
}

/// Opens a regular file of any size; the caller limits the bytes that it reads.
///
/// # Errors
///
/// As [`read_regular`], except for the size.
pub fn open_regular(path: &Path, symlinks: Symlinks) -> io::Result<File> {
    // Opening a device may have effects, so the type is checked before opening, and once more after it.
    check(&symlinks.metadata(path)?)?;
    let flags =
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY | symlinks.flags();
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    check(&file.metadata()?)?;
    Ok(file)
}

/// Like [`read_regular`], for UTF-8 text.
///
/// # Errors
///
/// As [`read_regular`], and for invalid UTF-8.
pub fn read_regular_text(path: &Path, symlinks: Symlinks, max_bytes: u64) -> io::Result<String> {
    text(read_regular(path, symlinks, max_bytes)?)
}

/// Reads text of at most `max_bytes` from a stream such as standard input.
///
/// # Errors
///
/// As [`read_regular_text`].
pub fn read_text(stream: impl io::Read, max_bytes: u64) -> io::Result<String> {
    text(read_bytes(stream, max_bytes)?)
}

fn read_bytes(stream: impl io::Read, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    stream.take(max_bytes + 1).read_to_end(&mut bytes)?;
    match u64::try_from(bytes.len()) {
        Ok(length) if length <= max_bytes => Ok(bytes),
        _ => Err(FileRefusal::TooLarge(max_bytes).into()),
    }
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| FileRefusal::NotUtf8.into())
}

fn size(bytes: u64) -> String {
    const MIB: u64 = 1 << 20;
    if bytes.is_multiple_of(MIB) {
        format!("{} MiB", bytes / MIB)
    } else {
        format!("{bytes} bytes")
    }
}

fn check(metadata: &Metadata) -> Result<(), FileRefusal> {
    if metadata.is_file() {
        Ok(())
    } else {
        Err(FileRefusal::NotRegular(kind(metadata.file_type())))
    }
}

fn kind(file_type: FileType) -> &'static str {
    match file_type {
        file_type if file_type.is_dir() => "a folder",
        file_type if file_type.is_symlink() => "a symbolic link",
        file_type if file_type.is_fifo() => "a FIFO",
        file_type if file_type.is_socket() => "a socket",
        file_type if file_type.is_char_device() || file_type.is_block_device() => "a device",
        _ => "something else",
    }
}

// === impl Symlinks ===

impl Symlinks {
    fn metadata(self, path: &Path) -> io::Result<Metadata> {
        match self {
            Self::Followed => fs::metadata(path),
            Self::Refused => fs::symlink_metadata(path),
        }
    }

    fn flags(self) -> OFlags {
        match self {
            Self::Followed => OFlags::empty(),
            Self::Refused => OFlags::NOFOLLOW,
        }
    }
}

// === impl FileRefusal ===

impl From<FileRefusal> for io::Error {
    fn from(refusal: FileRefusal) -> Self {
        Self::new(io::ErrorKind::InvalidInput, refusal)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::symlink, net::UnixListener};

    use rustix::fs::{CWD, FileType as Kind, mknodat};

    use super::*;

    fn error_text(path: &Path) -> String {
        read_regular(path, Symlinks::Refused, 4).expect_err("refused").to_string()
    }

    #[test]
    fn other_kinds_of_file_and_long_files_are_refused_at_once() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        mknodat(CWD, path("fifo"), Kind::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
        symlink("file", path("link")).expect("linked");
        let _listener = UnixListener::bind(path("socket")).expect("bound");
        fs::write(path("file"), "1234").expect("written");
        fs::write(path("long"), "12345").expect("written");
        assert_eq!(error_text(&path("fifo")), "it is a FIFO, not a regular file");
        assert_eq!(error_text(&path("link")), "it is a symbolic link, not a regular file");
        assert_eq!(error_text(&path("socket")), "it is a socket, not a regular file");
        assert_eq!(error_text(folder.path()), "it is a folder, not a regular file");
        assert_eq!(error_text(Path::new("/dev/zero")), "it is a device, not a regular file");
        assert_eq!(error_text(&path("long")), "it is larger than 4 bytes, the most that is read");
        // The kernel reports length zero for this file, although it has more than four bytes.
        assert_eq!(
            error_text(Path::new("/proc/self/stat")),
            "it is larger than 4 bytes, the most that is read"
        );
        let text = |links, name| read_regular_text(&path(name), links, 4).expect("read");
        assert_eq!(text(Symlinks::Refused, "file"), "1234");
        assert_eq!(text(Symlinks::Followed, "link"), "1234");
        fs::write(path("binary"), b"\xff\xfe").expect("written");
        let binary = read_regular_text(&path("binary"), Symlinks::Refused, 4).expect_err("no text");
        assert_eq!(binary.to_string(), "it is not UTF-8 text");
        let endless = read_text(io::repeat(b'x'), 1 << 20).expect_err("no end");
        assert_eq!(endless.to_string(), "it is larger than 1 MiB, the most that is read");
        assert_eq!(read_text(&b"{}"[..], 4).expect("small"), "{}");
        let absent = read_regular(&path("absent"), Symlinks::Refused, 4).expect_err("absent");
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
    }
}
