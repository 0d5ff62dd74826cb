//! The four questions that the host's files are asked: what a file says, what a folder has, where a link
//! leads, what there is at a path. All other readers are made of these.

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
    entry::Entry,
    look::{Answers, Look},
    tally::Question,
};

/// A file of sysfs says a page at most, which this is on most machines: one read takes all of it.
const PAGE: usize = 4096;

/// What is longer is cut. The longest that is of use is a table of routes.
const MOST_BYTES: usize = 4 << 20;

/// Room for some hundred entries of a folder.
const ENTRIES_BYTES: usize = 32 << 10;

/// Entries of one folder that are told. Whoever looks at fewer sees by one more that there are too many.
const MOST_ENTRIES: usize = 20_001;

/// How a file is opened. Whoever reads what a firmware answers has a thread for it, so a read may wait.
const TO_READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NOCTTY);

// === impl Host ===

impl Host {
    /// A file's text without the spaces around it; `None` when it cannot be read, as is usual for
    /// what a device does not have.
    pub fn text(&self, absolute: impl AsRef<Path>) -> Option<String> {
        self.try_text(absolute).ok()
    }

    /// As [`Host::text`], or why it cannot be read.
    ///
    /// # Errors
    ///
    /// When the file is not there, may not be read, or holds no text.
    pub fn try_text(&self, absolute: impl AsRef<Path>) -> io::Result<String> {
        let bytes = self.bytes(absolute.as_ref())?;
        let text = std::str::from_utf8(&bytes);
        let text = text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(text.trim().to_owned())
    }

    /// What a file holds.
    pub(super) fn bytes(&self, path: &Path) -> Result<Arc<[u8]>> {
        self.ask(
            (Question::Text, path),
            |look| &look.texts,
            || {
                let (folder, below) = self.at(path);
                let file = retry_on_intr(|| openat(folder, &*below, TO_READ, Mode::empty()))?;
                let mut bytes = Vec::with_capacity(PAGE);
                loop {
                    let room = bytes.capacity() - bytes.len();
                    let more = retry_on_intr(|| read(&file, spare_capacity(&mut bytes)))?;
                    // A file of sysfs gives all that there is room for, so less is its end.
                    let is_end = more == 0 || (more < room && path.starts_with("/sys"));
                    if is_end || bytes.len() >= MOST_BYTES {
                        bytes.truncate(MOST_BYTES);
                        return Ok(bytes.into());
                    }
                    if more == room {
                        bytes.reserve(bytes.len());
                    }
                }
            },
        )
    }

    /// What is in a folder, by name. Of a crowd it is the lowest names, in whatever order the kernel lists
    /// them: a new one takes no other's place.
    ///
    /// # Errors
    ///
    /// When the folder is not there, which [`io::ErrorKind::NotFound`] says, or cannot be read to its end.
    pub fn list(&self, folder: impl AsRef<Path>) -> io::Result<Arc<[Entry]>> {
        let path = folder.as_ref();
        let listed = self.ask(
            (Question::Names, path),
            |look| &look.lists,
            || {
                let (folder, below) = self.at(path);
                let flags = TO_READ | OFlags::DIRECTORY;
                let folder = retry_on_intr(|| openat(folder, &*below, flags, Mode::empty()))?;
                entries(folder.as_fd())
            },
        );
        Ok(listed?)
    }

    /// The names in a folder, sorted; none when it cannot be read.
    pub fn names(&self, folder: impl AsRef<Path>) -> Vec<String> {
        self.some_names(folder, MOST_ENTRIES).unwrap_or_default()
    }

    /// As [`Host::names`], but no more than so many: a folder may have more than can be looked at.
    ///
    /// # Errors
    ///
    /// As [`Host::list`].
    pub fn some_names(&self, folder: impl AsRef<Path>, most: usize) -> io::Result<Vec<String>> {
        Ok(self.list(folder)?.iter().take(most).map(|entry| entry.name.clone()).collect())
    }

    /// The folders in a folder, sorted; links are none, so that a walk has an end.
    pub fn folders(&self, folder: impl AsRef<Path>) -> Vec<PathBuf> {
        let listed = self.list(folder);
        let entries = listed.iter().flat_map(|listed| listed.iter());
        let folders = entries.filter(|entry| entry.kind == FileType::Directory);
        folders.map(|entry| PathBuf::from(&entry.name)).collect()
    }

    /// Where a symbolic link of the host points, as written.
    pub fn link(&self, absolute: impl AsRef<Path>) -> Option<String> {
        self.try_link(absolute.as_ref()).ok().map(|target| target.as_ref().to_owned())
    }

    /// As [`Host::link`]; what is there and no link is [`Errno::INVAL`].
    pub(super) fn try_link(&self, path: &Path) -> Result<Arc<str>> {
        self.ask(
            (Question::Link, path),
            |look| &look.links,
            || {
                let (folder, below) = self.at(path);
                let target = readlinkat(folder, &*below, Vec::new())?;
                target.to_str().map(Arc::from).map_err(|_: std::str::Utf8Error| Errno::ILSEQ)
            },
        )
    }

    /// Whether the host has that file; a link, where it leads.
    pub fn has(&self, absolute: impl AsRef<Path>) -> bool {
        self.kind(absolute.as_ref()).is_ok()
    }

    /// As [`Host::has`]; an error where the host does not say, as when a folder on the way cannot be read.
    ///
    /// # Errors
    ///
    /// The kernel's answer, unless it means that nothing is there.
    pub fn try_has(&self, absolute: impl AsRef<Path>) -> io::Result<bool> {
        match self.kind(absolute.as_ref()) {
            Ok(_) => Ok(true),
            // A link to itself leads to nothing.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the host has that folder.
    pub fn has_folder(&self, absolute: impl AsRef<Path>) -> bool {
        self.kind(absolute.as_ref()) == Ok(FileType::Directory)
    }

    fn kind(&self, path: &Path) -> Result<FileType> {
        self.ask(
            (Question::Kind, path),
            |look| &look.kinds,
            || {
                let (folder, below) = self.at(path);
                Ok(FileType::from_raw_mode(statat(folder, &*below, AtFlags::empty())?.st_mode))
            },
        )
    }

    /// Asks, unless this look knows the answer.
    fn ask<A: Clone>(
        &self,
        (question, path): (Question, &Path),
        answers: impl FnOnce(&Look) -> &Answers<A>,
        ask: impl FnOnce() -> Result<A>,
    ) -> Result<A> {
        let ask = || {
            if let Some(teller) = &self.teller {
                teller.tell(question, path);
            }
            ask()
        };
        match &self.look {
            Some(look) => answers(look).get(path, ask),
            None => ask(),
        }
    }

    /// From where the kernel is to walk, and its way to a file.
    fn at<'a>(&'a self, absolute: &'a Path) -> (BorrowedFd<'a>, Cow<'a, Path>) {
        match (&self.opened, absolute.strip_prefix("/")) {
            (Some(root), Ok(below)) if below == Path::new("") => {
                (root.as_fd(), Path::new(".").into())
            }
            (Some(root), Ok(below)) => (root.as_fd(), below.into()),
            _ => (CWD, self.path(absolute).into()),
        }
    }
}

/// The entries of a folder, by name. A name that is no text is none that anybody looks for.
fn entries(folder: BorrowedFd<'_>) -> Result<Arc<[Entry]>> {
    let (mut entries, mut room) = (Vec::new(), Vec::with_capacity(ENTRIES_BYTES));
    let mut listing = RawDir::new(folder, room.spare_capacity_mut());
    while let Some(listed) = listing.next() {
        let listed = listed?;
        let name = listed.file_name();
        let Ok(text) = name.to_str() else { continue };
        if matches!(text, "." | "..") {
            continue;
        }
        let Some(kind) = told(folder, name, listed.file_type()) else { continue };
        entries.push(Entry { name: text.to_owned(), inode: listed.ino(), kind });
        if entries.len() >= 2 * MOST_ENTRIES {
            keep_lowest(&mut entries);
        }
    }
    keep_lowest(&mut entries);
    Ok(entries.into())
}

/// What an entry is: not every file system says so in its list. `None` for one that is gone by now.
fn told(folder: BorrowedFd<'_>, name: &CStr, listed: FileType) -> Option<FileType> {
    if listed != FileType::Unknown {
        return Some(listed);
    }
    let found = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some(FileType::from_raw_mode(found.st_mode))
}

fn keep_lowest(entries: &mut Vec<Entry>) {
    entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    entries.truncate(MOST_ENTRIES);
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_read_to_its_end_whatever_its_size_and_where_it_is() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/");
        for folder in ["sys", "proc"] {
            fs::create_dir(root.path().join(folder)).expect("made");
            for size in [0, 1, PAGE - 1, PAGE, PAGE + 1, 10 * PAGE + 7] {
                let text = "x".repeat(size);
                fs::write(root.path().join(folder).join("file"), &text).expect("written");
                let said = host.text(format!("/{folder}/file"));
                assert_eq!(said.map(|said| said.len()), Some(size), "{folder}");
            }
        }
        fs::write(root.path().join("sys/file"), vec![b'x'; MOST_BYTES + 1]).expect("written");
        assert!(host.text("/sys/file").is_some_and(|said| said.len() == MOST_BYTES));
    }

    #[test]
    fn a_folder_that_is_not_there_is_told_from_one_that_cannot_be_read() {
        let root = tempfile::tempdir().expect("a temporary folder");
        fs::write(root.path().join("file"), "").expect("written");
        let host = Host::new(root.path(), "/");
        let kind = |path: &str| host.list(path).expect_err("no folder").kind();
        assert_eq!(kind("/nothing"), io::ErrorKind::NotFound);
        assert_eq!(kind("/file"), io::ErrorKind::NotADirectory);
        assert_eq!(host.names("/"), ["file"]);
    }
}
