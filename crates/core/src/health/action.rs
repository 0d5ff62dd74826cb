//! What an operator is to do about a trouble.

use std::fmt;

use serde::{Serialize, Serializer};

/// The first thing to do, after the immediate actions of NVIDIA's XID catalogue; the catalogue's name
/// for each stands beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing; `IGNORE`.
    Nothing,
    /// `RESTART_APP`.
    RestartProgram,
    /// `RESET_GPU`; also where the catalogue has a procedure that begins with a reset.
    ResetGpu,
    /// `RESTART_BM`: the power of the machine has to go off and on.
    RestartMachine,
    /// `CHECK_MECHANICALS`.
    CheckBoard,
    /// The procedures for NVLink errors, which read the message in the kernel's log.
    CheckLinks,
    /// No XID asks for it: the service that joins GPUs to the NVLink fabric.
    CheckFabricManager,
    /// `UPDATE_SWFW`.
    UpdateDriver,
    /// `CONTACT_SUPPORT`.
    ContactSupport,
}

// === impl Action ===

impl Action {
    /// Whether anybody is to act on the device itself.
    pub fn concerns_operator(self) -> bool {
        !matches!(self, Self::Nothing | Self::RestartProgram)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Nothing => "nothing",
            Self::RestartProgram => "restart the program",
            Self::ResetGpu => "reset the GPU",
            Self::RestartMachine => "restart the machine",
            Self::CheckBoard => "check the board's connections",
            Self::CheckLinks => "check the NVLinks",
            Self::CheckFabricManager => "check the fabric manager",
            Self::UpdateDriver => "update the driver",
            Self::ContactSupport => "contact support",
        })
    }
}

impl Serialize for Action {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
