//! Reader of files that may hang.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use windlass_host::external::{DeadlinePool, Late};

/// Reads files with a deadline each.
pub(super) struct Reader {
    deadline: Duration,
    most: usize,
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
    pub(super) fn new(deadline: Duration, most: usize) -> Self {
        Self { deadline, most, pool: DeadlinePool::default() }
    }

    /// Number of hanging files.
    pub(super) fn hanging(&self) -> usize {
        self.pool.late()
    }

    pub(super) fn read(&mut self, path: PathBuf) -> ReadOutcome {
        let (most, file) = (self.most, path.clone());
        match self.pool.call(path, self.deadline, move || bytes(&file, most)) {
            Ok(answer) => self.judge(answer),
            Err(Late) => ReadOutcome::Unreadable(format!("no answer within {:?}", self.deadline)),
        }
    }

    fn judge(&self, answer: io::Result<Vec<u8>>) -> ReadOutcome {
        match answer.map(String::from_utf8) {
            Ok(Ok(text)) if text.len() <= self.most => ReadOutcome::Text(text),
            Ok(Ok(_)) => ReadOutcome::Unreadable(format!("longer than {} bytes", self.most)),
            Ok(Err(_)) => ReadOutcome::Unreadable("no text".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => ReadOutcome::Missing,
            Err(error) => ReadOutcome::Unreadable(error.to_string()),
        }
    }
}

/// Content of a file, up to one byte beyond the limit to detect longer ones.
fn bytes(file: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    File::open(file)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
