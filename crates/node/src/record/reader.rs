//! Reading files that may never answer: on a thread that is left behind if it does not come back.

use std::{
    fs::File,
    io::{self, Read as _},
    path::PathBuf,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::Duration,
};

/// Reads one file after the other.
pub(super) struct Reader {
    deadline: Duration,
    most: usize,
    worker: Option<Worker>,
    hanging: usize,
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

/// The thread: paths go in, answers come out.
struct Worker {
    paths: Sender<PathBuf>,
    answers: Receiver<io::Result<Vec<u8>>>,
}

// === impl Reader ===

impl Reader {
    pub(super) fn new(deadline: Duration, most: usize) -> Self {
        Self { deadline, most, worker: None, hanging: 0 }
    }

    /// How many files did not answer.
    pub(super) fn hanging(&self) -> usize {
        self.hanging
    }

    pub(super) fn read(&mut self, path: PathBuf) -> Answer {
        let Some(worker) = self.worker.take().or_else(|| Worker::start(self.most).ok()) else {
            return Answer::Unread("there is no thread to read it on".to_owned());
        };
        worker.paths.send(path).expect("the thread ends when this end is dropped");
        let Ok(answer) = worker.answers.recv_timeout(self.deadline) else {
            // The thread is left behind with the file.
            self.hanging += 1;
            return Answer::Unread(format!("no answer within {:?}", self.deadline));
        };
        self.worker = Some(worker);
        self.judge(answer)
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

// === impl Worker ===

impl Worker {
    fn start(most: usize) -> io::Result<Self> {
        let (paths, asked) = channel::<PathBuf>();
        let (replies, answers) = channel();
        let read = move || {
            for path in asked {
                let mut bytes = Vec::new();
                // One byte more, to tell a file that is longer.
                let most = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
                let read =
                    File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
                if replies.send(read.map(|_| bytes)).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("snapshot".to_owned()).spawn(read)?;
        Ok(Self { paths, answers })
    }
}
