//! Faults of a simulated GPU's MPS daemon.

use std::{fs, io};

use crate::{Machine, MachineError, machine::act, tree::unless};

/// Fault of a GPU's MPS daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpsFault {
    /// The daemon refuses to start with this message.
    Refuses(String),
    /// The daemon hangs at the next command.
    Hangs,
}

/// Folder with one file per GPU whose daemon has a fault.
const FAULTS: &str = "mps";

// === impl Machine ===

impl Machine {
    /// Sets or clears the fault of the MPS daemon for the GPU with this UUID. A hanging daemon hangs until
    /// killed.
    pub fn set_mps_fault(&self, gpu: &str, fault: Option<&MpsFault>) -> Result<(), MachineError> {
        let folder = self.dir().join(FAULTS);
        let path = folder.join(gpu);
        let Some(fault) = fault else {
            return act("remove", &path, |path| {
                unless(io::ErrorKind::NotFound, fs::remove_file(path))
            });
        };
        let line = match fault {
            MpsFault::Refuses(why) => format!("refuse {why}\n"),
            MpsFault::Hangs => "hang\n".to_owned(),
        };
        act("create", &folder, fs::create_dir_all)?;
        act("write", &path, |path| fs::write(path, line))
    }
}
