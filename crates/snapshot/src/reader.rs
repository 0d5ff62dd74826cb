//! Reading files that may never answer.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use windlass_host::external::{Late, Patience};

/// Reads one file after the other.
pub(super) struct Reader {
    deadline: Duration,
    most: usize,
    patience: Patience<PathBuf, io::Result<Vec<u8>>>,
}

/// What became of a file.
pub(super) enum Answer {
    /// Its text.
    Text(String),
    /// It is not there.
    Nothing,
    /// It is there, and cannot be had.
    Unread(String),
}

// === impl Reader ===

impl Reader {
    pub(super) fn new(deadline: Duration, most: usize) -> Self {
        Self { deadline, most, patience: Patience::default() }
    }

    /// How many files did not answer.
    pub(super) fn hanging(&self) -> usize {
        self.patience.late()
    }

    pub(super) fn read(&mut self, path: PathBuf) -> Answer {
        let (most, file) = (self.most, path.clone());
        match self.patience.ask(path, self.deadline, move || bytes(&file, most)) {
            Ok(answer) => self.judge(answer),
            Err(Late) => Answer::Unread(format!("no answer within {:?}", self.deadline)),
        }
    }

    fn judge(&self, answer: io::Result<Vec<u8>>) -> Answer {
        match answer.map(String::from_utf8) {
            Ok(Ok(text)) if text.len() <= self.most => Answer::Text(text),
            Ok(Ok(_)) => Answer::Unread(format!("longer than {} bytes", self.most)),
            Ok(Err(_)) => Answer::Unread("no text".to_owned()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Answer::Nothing,
            Err(error) => Answer::Unread(error.to_string()),
        }
    }
}

/// What is in a file; of one that is longer one byte more, to tell it.
fn bytes(file: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let most = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    File::open(file)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}
