//! Reader of files that may hang, with a deadline for each.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use windlass_host::external::{DeadlineExceeded, DeadlinePool};

/// Reads each file within a deadline, up to a maximum size.
pub(super) struct Reader {
    deadline: Duration,
    max_bytes: usize,
    pool: DeadlinePool<PathBuf, io::Result<Vec<u8>>>,
}

/// Outcome of reading a file.
pub(super) enum ReadOutcome {
    Text(String),
    /// The file is missing.
    Missing,
    /// The file is unreadable, with the reason.
    Unreadable(String),
}

// === impl Reader ===

impl Reader {
    pub(super) fn new(deadline: Duration, max_bytes: usize) -> Self {
        Self { deadline, max_bytes, pool: DeadlinePool::default() }
    }

    /// Number of files that still hang.
    pub(super) fn hanging(&self) -> usize {
        self.pool.hanging()
    }

    pub(super) fn read(&mut self, path: PathBuf) -> ReadOutcome {
        let (max_bytes, file) = (self.max_bytes, path.clone());
        match self.pool.call(path, self.deadline, move || bytes(&file, max_bytes)) {
            Ok(content) => self.outcome(content),
            Err(DeadlineExceeded) => {
                ReadOutcome::Unreadable(format!("no answer within {:?}", self.deadline))
            }
        }
    }

    fn outcome(&self, content: io::Result<Vec<u8>>) -> ReadOutcome {
        match content.map(String::from_utf8) {
            Ok(Ok(text)) if text.len() <= self.max_bytes => ReadOutcome::Text(text),
            Ok(Ok(_)) => ReadOutcome::Unreadable(format!("longer than {} bytes", self.max_bytes)),
            Ok(Err(_)) => ReadOutcome::Unreadable("no text".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => ReadOutcome::Missing,
            Err(error) => ReadOutcome::Unreadable(error.to_string()),
        }
    }
}

/// Content of a file, up to one byte beyond the limit, to detect a longer file.
fn bytes(file: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(max_bytes).unwrap_or(u64::MAX).saturating_add(1);
    File::open(file)?.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}
