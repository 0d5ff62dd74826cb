//! The four basic reads of host files: content, directory, link target, file type. All other readers use these.

use std::{
    borrow::Cow,
    ffi::CStr,
    io,
    os::fd::{AsFd as _, BorrowedFd},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    buffer::spare_capacity,
    fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, openat, readlinkat, statat},
    io::{Errno, Result, read, retry_on_intr},
};

use super::{
    Host,
    access_log::AccessKind,
    entry::Entry,
    scan_cache::{CachedReads, ScanCache},
};

/// Bytes of the first read. A sysfs file has at most a page.
const PAGE: usize = 4096;

/// Limit on the bytes of a file; the rest is cut off. Route tables are the longest files that the agent reads.
const MAX_BYTES: usize = 4 << 20;

/// Buffer for several hundred directory entries.
const ENTRIES_BYTES: usize = 32 << 10;

/// Limit on the entries of a folder. Callers with a lower limit ask for one entry more, to detect an overflow.
const MAX_ENTRIES: usize = 20_001;

/// Flags for opening a file. Reads may block; callers use threads for files that firmware serves.
const READ_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

// === impl Host ===

impl Host {
    /// Trimmed text of a file; `None` if it is unreadable, as is usual for absent features.
    pub fn read_text(&self, absolute: impl AsRef<Path>) -> Option<String> {
        self.try_read_text(absolute).ok()
    }

    /// Like [`Host::read_text`], with the error.
    ///
    /// # Errors
    ///
    /// Fails if the file is missing, unreadable or not text.
    pub fn try_read_text(&self, absolute: impl AsRef<Path>) -> io::Result<String> {
        let bytes = self.read_bytes(absolute.as_ref())?;
        let text = std::str::from_utf8(&bytes);
        let text = text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(text.trim().to_owned())
    }

    /// Content of a file.
    pub(super) fn read_bytes(&self, path: &Path) -> Result<Arc<[u8]>> {
        self.cached(
            AccessKind::Text,
            path,
            |cache| &cache.texts,
            || {
                let (folder, relative) = self.lookup_start(path);
                let file = retry_on_intr(|| openat(folder, &*relative, READ_FLAGS, Mode::empty()))?;
                let mut bytes = Vec::with_capacity(PAGE);
                loop {
                    let space = bytes.capacity() - bytes.len();
                    let count = retry_on_intr(|| read(&file, spare_capacity(&mut bytes)))?;
                    // Sysfs fills the buffer unless the file ends.
                    let is_end = count == 0 || (count < space && path.starts_with("/sys"));
                    if is_end || bytes.len() >= MAX_BYTES {
                        bytes.truncate(MAX_BYTES);
                        return Ok(bytes.into());
                    }
                    if count == space {
                        bytes.reserve(bytes.len());
                    }
                }
            },
        )
    }

    /// Entries of a folder, by name. A folder with more entries than the limit yields those with the lowest names.
    ///
    /// # Errors
    ///
    /// Fails if the folder is missing ([`io::ErrorKind::NotFound`]) or unreadable.
    pub fn read_dir(&self, folder: impl AsRef<Path>) -> io::Result<Arc<[Entry]>> {
        let path = folder.as_ref();
        let entries = self.cached(
            AccessKind::Names,
            path,
            |cache| &cache.lists,
            || {
                let (folder, relative) = self.lookup_start(path);
                let flags = READ_FLAGS | OFlags::DIRECTORY;
                let folder = retry_on_intr(|| openat(folder, &*relative, flags, Mode::empty()))?;
                entries(folder.as_fd())
            },
        );
        Ok(entries?)
    }

    /// Sorted names in a folder; empty if it is unreadable.
    pub fn entry_names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        self.try_entry_names(folder, MAX_ENTRIES).unwrap_or_default()
    }

    /// Like [`Host::entry_names`], up to `max_names`.
    ///
    /// # Errors
    ///
    /// As [`Host::read_dir`].
    pub fn try_entry_names(
        &self,
        folder: impl AsRef<Path>,
        max_names: usize,
    ) -> io::Result<Vec<String>> {
        Ok(self.read_dir(folder)?.iter().take(max_names).map(|entry| entry.name.clone()).collect())
    }

    /// Sorted subfolders; links are excluded, so that a walk ends.
    pub fn subfolders(&self, folder: impl AsRef<Path>) -> Vec<PathBuf> {
        let listing = self.read_dir(folder);
        let entries = listing.iter().flat_map(|listing| listing.iter());
        let folders = entries.filter(|entry| entry.kind == FileType::Directory);
        folders.map(|entry| PathBuf::from(&entry.name)).collect()
    }

    /// Target of a symbolic link, as written.
    pub fn read_link(&self, absolute: impl AsRef<Path>) -> Option<String> {
        self.try_read_link(absolute.as_ref()).ok().map(|target| target.as_ref().to_owned())
    }

    /// Like [`Host::read_link`], with the error: [`Errno::INVAL`] if the path is not a link.
    pub(super) fn try_read_link(&self, path: &Path) -> Result<Arc<str>> {
        self.cached(
            AccessKind::Link,
            path,
            |cache| &cache.links,
            || {
                let (folder, relative) = self.lookup_start(path);
                let target = readlinkat(folder, &*relative, Vec::new())?;
                target.to_str().map(Arc::from).map_err(|_: std::str::Utf8Error| Errno::ILSEQ)
            },
        )
    }

    /// True if the path exists, after following links.
    pub fn exists(&self, absolute: impl AsRef<Path>) -> bool {
        self.kind(absolute.as_ref()).is_ok()
    }

    /// Like [`Host::exists`], with an error if existence is unknown, such as below an unreadable folder.
    ///
    /// # Errors
    ///
    /// Fails with the kernel's error, unless it means that the path does not exist.
    pub fn try_exists(&self, absolute: impl AsRef<Path>) -> io::Result<bool> {
        match self.kind(absolute.as_ref()) {
            Ok(_) => Ok(true),
            // A cycle of links leads to no file.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// True if the path is a folder.
    pub fn is_dir(&self, absolute: impl AsRef<Path>) -> bool {
        self.kind(absolute.as_ref()) == Ok(FileType::Directory)
    }

    fn kind(&self, path: &Path) -> Result<FileType> {
        self.cached(
            AccessKind::Kind,
            path,
            |cache| &cache.kinds,
            || {
                let (folder, relative) = self.lookup_start(path);
                Ok(FileType::from_raw_mode(statat(folder, &*relative, AtFlags::empty())?.st_mode))
            },
        )
    }

    /// The result in the scan's cache, or else the result of a read.
    fn cached<A: Clone>(
        &self,
        access: AccessKind,
        path: &Path,
        cached_reads: impl FnOnce(&ScanCache) -> &CachedReads<A>,
        read: impl FnOnce() -> Result<A>,
    ) -> Result<A> {
        let read = || {
            if let Some(recorder) = &self.recorder {
                recorder.record(access, path);
            }
            read()
        };
        match &self.scan_cache {
            Some(cache) => cached_reads(cache).get(path, read),
            None => read(),
        }
    }

    /// Start folder and relative path of a lookup.
    fn lookup_start<'a>(&'a self, absolute: &'a Path) -> (BorrowedFd<'a>, Cow<'a, Path>) {
        match (&self.root_fd, absolute.strip_prefix("/")) {
            (Some(root), Ok(relative)) if relative == Path::new("") => {
                (root.as_fd(), Path::new(".").into())
            }
            (Some(root), Ok(relative)) => (root.as_fd(), relative.into()),
            _ => (CWD, self.path(absolute).into()),
        }
    }
}

/// Entries of a folder, by name. Names that are not UTF-8 are skipped.
fn entries(folder: BorrowedFd<'_>) -> Result<Arc<[Entry]>> {
    let (mut entries, mut buffer) = (Vec::new(), Vec::with_capacity(ENTRIES_BYTES));
    let mut listing = RawDir::new(folder, buffer.spare_capacity_mut());
    while let Some(entry) = listing.next() {
        let entry = entry?;
        let name = entry.file_name();
        let Ok(text) = name.to_str() else { continue };
        if matches!(text, "." | "..") {
            continue;
        }
        let Some(kind) = file_type(folder, name, entry.file_type()) else { continue };
        entries.push(Entry { name: text.to_owned(), inode: entry.ino(), kind });
        if entries.len() >= 2 * MAX_ENTRIES {
            keep_lowest(&mut entries);
        }
    }
    keep_lowest(&mut entries);
    Ok(entries.into())
}

/// Type of an entry, which some file systems do not list with the name. `None` if the entry has disappeared.
fn file_type(folder: BorrowedFd<'_>, name: &CStr, listed_type: FileType) -> Option<FileType> {
    if listed_type != FileType::Unknown {
        return Some(listed_type);
    }
    let stat = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}

fn keep_lowest(entries: &mut Vec<Entry>) {
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    entries.truncate(MAX_ENTRIES);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_of_any_size_are_read_to_their_end() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/");
        for folder in ["sys", "proc"] {
            fs::create_dir(root.path().join(folder)).expect("made");
            for size in [0, 1, PAGE - 1, PAGE, PAGE + 1, 10 * PAGE + 7] {
                let text = "x".repeat(size);
                fs::write(root.path().join(folder).join("file"), &text).expect("written");
                let text_read = host.read_text(format!("/{folder}/file"));
                assert_eq!(text_read.map(|text_read| text_read.len()), Some(size), "{folder}");
            }
        }
        fs::write(root.path().join("sys/file"), vec![b'x'; MAX_BYTES + 1]).expect("written");
        assert!(host.read_text("/sys/file").is_some_and(|text_read| text_read.len() == MAX_BYTES));
    }

    #[test]
    fn a_missing_folder_is_distinguished_from_an_unreadable_one() {
        let root = tempfile::tempdir().expect("a temporary folder");
        fs::write(root.path().join("file"), "").expect("written");
        let host = Host::new(root.path(), "/");
        let kind = |path: &str| host.read_dir(path).expect_err("no folder").kind();
        assert_eq!(kind("/nothing"), io::ErrorKind::NotFound);
        assert_eq!(kind("/file"), io::ErrorKind::NotADirectory);
        assert_eq!(host.entry_names("/"), ["file"]);
    }
}
