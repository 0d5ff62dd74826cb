//! Changes to the machine of a node.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::symlink,
    path::PathBuf,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::node::Node;

/// Differs from boot to boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

// === impl Node ===

impl Node {
    /// Lets something happen, `xid:79@3` or `unplug:stick`.
    pub fn inject(&self, fault: &str) {
        self.machine.inject(&fault.parse().expect("a fault")).expect("it happens");
    }

    /// A path of the host, as the test finds it.
    pub fn host(&self, path: &str) -> PathBuf {
        self.config.places.host_root.join(path.trim_start_matches('/'))
    }

    /// The same in a folder that is there.
    fn place(&self, path: &str) -> PathBuf {
        let path = self.host(path);
        fs::create_dir_all(path.parent().expect("it is below the root")).expect("made");
        path
    }

    /// Writes a file of the host.
    pub fn write(&self, path: &str, text: &str) {
        fs::write(self.place(path), text).expect("written");
    }

    /// A boot that the node was not in before. Without any it is not known which one it is in.
    pub fn reboot(&self) {
        let known = fs::read_to_string(self.host(BOOT_ID)).unwrap_or_default();
        self.write(BOOT_ID, &format!("{known}1"));
    }

    /// Makes a file of the host one that nobody answers who reads it.
    pub fn hang(&self, path: &str) {
        let path = self.place(path);
        fs::remove_file(&path).or_else(unless_missing).expect("removed");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    }

    /// Makes it a file again, and answers who still reads it.
    pub fn answer(&self, path: &str, text: &str) {
        let fifo = OpenOptions::new().read(true).write(true).open(self.host(path));
        fs::remove_file(self.host(path)).expect("removed");
        self.write(path, text);
        drop(fifo.expect("a FIFO"));
    }

    /// Links that lead to one folder, as a list that is out of bounds would have them; their names begin so.
    pub fn crowd(&self, list: &str, begin: &str, count: u32) {
        let folder = self.host(list);
        fs::create_dir_all(&folder).expect("made");
        let first = folder.join(format!("{begin}0"));
        symlink("../../devices", &first).expect("linked");
        for number in 1..count {
            let name = folder.join(format!("{begin}{number}"));
            // One more name for the same link costs the machine the least.
            if fs::hard_link(&first, &name).is_err() {
                symlink("../../devices", &name).expect("linked");
            }
        }
    }
}

fn unless_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
