//! What can be wrong with the MPS daemon of a simulated GPU.

use std::{fs, io};

use crate::{Machine, MachineError, machine::act, tree::unless};

/// What is wrong with a GPU's MPS daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpsFault {
    /// It does not start, and says this.
    Refuses(String),
    /// It stops at the next command, as a process does that hangs.
    Hangs,
}

/// The folder with a file for each GPU whose daemon has a fault.
const FAULTS: &str = "mps";

// === impl Machine ===

impl Machine {
    /// Makes the MPS daemon of the GPU with this UUID fail, or lets it be. A daemon that hangs goes
    /// on hanging until it is killed.
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
