//! Changes to the simulated machine of a node: faults, files, reboots.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::symlink,
    path::PathBuf,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::node::Node;

/// File with the boot id, which the kernel generates at each boot.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

// === impl Node ===

impl Node {
    /// Injects a fault, such as `xid:79@3` or `unplug:stick`.
    pub fn inject(&self, fault: &str) {
        self.machine.inject(&fault.parse().expect("a fault")).expect("injected");
    }

    /// Path of a host file in the test's file system.
    pub fn host_path(&self, path: &str) -> PathBuf {
        self.config.places.host_root.join(path.trim_start_matches('/'))
    }

    /// Same as [`Node::host_path`], but creates the parent folder.
    fn host_with_parent(&self, path: &str) -> PathBuf {
        let path = self.host_path(path);
        fs::create_dir_all(path.parent().expect("a path below the root")).expect("created");
        path
    }

    /// Writes a file of the host.
    pub fn write(&self, path: &str, text: &str) {
        fs::write(self.host_with_parent(path), text).expect("written");
    }

    /// Simulates a reboot: changes the boot id, or creates one. Without a boot id the agent cannot recognise its boot.
    pub fn reboot(&self) {
        let current = fs::read_to_string(self.host_path(BOOT_ID)).unwrap_or_default();
        self.write(BOOT_ID, &format!("{current}1"));
    }

    /// Replaces a host file by a FIFO, whose readers block.
    pub fn block_reads(&self, path: &str) {
        let path = self.host_with_parent(path);
        fs::remove_file(&path).or_else(unless_missing).expect("removed");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    }

    /// Replaces the FIFO of [`Node::block_reads`] by a file with this text, and unblocks the FIFO's readers.
    pub fn unblock_reads(&self, path: &str, text: &str) {
        let fifo = OpenOptions::new().read(true).write(true).open(self.host_path(path));
        fs::remove_file(self.host_path(path)).expect("removed");
        self.write(path, text);
        drop(fifo.expect("a FIFO"));
    }

    /// Creates `count` links in the folder `path`, all to one folder. Their names are `prefix` and a number. A large
    /// `count` exceeds the agent's limit for a list.
    pub fn create_many_links(&self, path: &str, prefix: &str, count: u32) {
        let folder = self.host_path(path);
        fs::create_dir_all(&folder).expect("created");
        let first = folder.join(format!("{prefix}0"));
        symlink("../../devices", &first).expect("linked");
        for number in 1..count {
            let name = folder.join(format!("{prefix}{number}"));
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
