//! Remedies for failures, after NVIDIA's XID catalogue.

use std::fmt;

/// First remedy for a failure: immediate actions of NVIDIA's XID catalogue, each with its name there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Nothing; `IGNORE`.
    Ignore,
    /// `RESTART_APP`.
    RestartProgram,
    /// `RESET_GPU`; also for procedures that begin with a reset.
    ResetGpu,
    /// `RESTART_BM`: power-cycle the machine.
    RestartMachine,
    /// `CHECK_MECHANICALS`.
    CheckBoard,
    /// The NVLink procedures, which start from the kernel's log message.
    CheckLinks,
    /// No XID requests it: restart or check the service that joins GPUs to the NVLink fabric.
    CheckFabricManager,
    /// `UPDATE_SWFW`.
    UpdateDriver,
    /// `CONTACT_SUPPORT`.
    ContactSupport,
}

serialize_as_text!(Action);

// === impl Action ===

impl Action {
    /// True if the device itself needs attention.
    pub fn concerns_operator(self) -> bool {
        !matches!(self, Self::Ignore | Self::RestartProgram)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ignore => "nothing",
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
