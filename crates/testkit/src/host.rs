//! Changes to the simulated machine of a node: faults, files, reboots.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::symlink,
    path::PathBuf,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::node::Node;

/// Path of the boot id, which the kernel generates at each boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

// === impl Node ===

impl Node {
    /// Injects a fault, such as `xid:79@3` or `unplug:stick`.
    pub fn inject(&self, fault: &str) {
        self.machine.inject(&fault.parse().expect("a fault")).expect("it happens");
    }

    /// Path of a host file in the test's file system.
    pub fn host(&self, path: &str) -> PathBuf {
        self.config.places.host_root.join(path.trim_start_matches('/'))
    }

    /// Same as [`Node::host`], and creates the parent folder.
    fn place(&self, path: &str) -> PathBuf {
        let path = self.host(path);
        fs::create_dir_all(path.parent().expect("it is below the root")).expect("made");
        path
    }

    /// Writes a file of the host.
    pub fn write(&self, path: &str, text: &str) {
        fs::write(self.place(path), text).expect("written");
    }

    /// Gives the node a new boot id. Without a boot id the agent cannot recognise its boot.
    pub fn reboot(&self) {
        let known = fs::read_to_string(self.host(BOOT_ID)).unwrap_or_default();
        self.write(BOOT_ID, &format!("{known}1"));
    }

    /// Turns a host file into one whose readers block.
    pub fn hang(&self, path: &str) {
        let path = self.place(path);
        fs::remove_file(&path).or_else(unless_missing).expect("removed");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    }

    /// Restores a file after [`Node::hang`], and unblocks its readers.
    pub fn answer(&self, path: &str, text: &str) {
        let fifo = OpenOptions::new().read(true).write(true).open(self.host(path));
        fs::remove_file(self.host(path)).expect("removed");
        self.write(path, text);
        drop(fifo.expect("a FIFO"));
    }

    /// Creates this number of links to one folder, with names that begin with `begin`. A large number exceeds the
    /// agent's limit for a list.
    pub fn crowd(&self, list: &str, begin: &str, count: u32) {
        let folder = self.host(list);
        fs::create_dir_all(&folder).expect("made");
        let first = folder.join(format!("{begin}0"));
        symlink("../../devices", &first).expect("linked");
        for number in 1..count {
            let name = folder.join(format!("{begin}{number}"));
            // A hard link is cheaper than a new symbolic link.
            if fs::hard_link(&first, &name).is_err() {
                symlink("../../devices", &name).expect("linked");
            }
        }
    }
}

fn unless_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
