//! Faults of a simulated GPU's MPS daemon.

use std::{fs, io, path::PathBuf};

use crate::{Machine, MachineError, machine::with_path, tree::ignore_error_kind};

/// Fault of a GPU's MPS daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MpsFault {
    /// The daemon refuses to start, and prints this message.
    Refuses(String),
    /// The daemon hangs at the next command.
    Hangs,
    /// The server accepts no more clients, because one of them had a fatal fault.
    ServerFault,
}

/// Folder with up to two files for each GPU: the fault of its daemon, and the clients of its server.
const MPS_DIR: &str = "mps";

// === impl Machine ===

impl Machine {
    /// Sets or clears the fault of the MPS daemon for the GPU with this UUID. A hanging daemon hangs until killed.
    pub fn set_mps_fault(&self, gpu: &str, fault: Option<&MpsFault>) -> Result<(), MachineError> {
        let folder = self.dir().join(MPS_DIR);
        let path = folder.join(gpu);
        let Some(fault) = fault else {
            return with_path("remove", &path, |path| {
                ignore_error_kind(io::ErrorKind::NotFound, fs::remove_file(path))
            });
        };
        let line = match fault {
            MpsFault::Refuses(message) => format!("refuse {message}\n"),
            MpsFault::Hangs => "hang\n".to_owned(),
            MpsFault::ServerFault => "fault\n".to_owned(),
        };
        with_path("create", &folder, fs::create_dir_all)?;
        with_path("write", &path, |path| fs::write(path, line))
    }

    /// Sets the processes that are clients of the MPS server of a GPU.
    pub fn set_mps_clients(&self, gpu: &str, clients: &[u32]) -> Result<(), MachineError> {
        with_path("create", &self.dir().join(MPS_DIR), fs::create_dir_all)?;
        let lines: Vec<_> = clients.iter().map(ToString::to_string).collect();
        with_path("write", &self.mps_clients_file(gpu), |path| {
            fs::write(path, lines.join("\n") + "\n")
        })
    }

    /// Processes that are clients of a GPU's MPS server: the processes that were set, except for terminated ones.
    pub fn mps_clients(&self, gpu: &str) -> Result<Vec<u32>, MachineError> {
        let text = with_path("read", &self.mps_clients_file(gpu), fs::read_to_string)?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    fn mps_clients_file(&self, gpu: &str) -> PathBuf {
        self.dir().join(MPS_DIR).join(format!("{gpu}.clients"))
    }
}
