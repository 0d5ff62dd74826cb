//! Recovery action that the driver requests.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    Result,
    error::Optional as _,
    gpu::Gpu,
    library::{Zeros, get},
};

/// Recovery action (`nvmlDeviceGpuRecoveryAction_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryAction {
    /// None.
    None,
    /// Reset the GPU.
    Reset,
    /// Reboot the node.
    Reboot,
    /// Drain work, or traffic with peers, first.
    Drain,
    /// An unknown action.
    Other(u64),
}

impl Gpu {
    /// Requested action; `None` if unsupported, as before driver 570.
    pub fn recovery_action(&self) -> Result<Option<RecoveryAction>> {
        let answer = self.field(sys::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION).optional()?;
        Ok(answer.flatten().map(RecoveryAction::of))
    }

    /// A field as unsigned number; `None` if the GPU lacks it.
    fn field(&self, id: u32) -> Result<Option<u64>> {
        let request = sys::nvmlFieldValue_t { fieldId: id, ..Zeros::zeros() };
        let field = get!(self.table, nvmlDeviceGetFieldValues, self.handle.0, 1; request)?;
        if field.nvmlReturn != sys::nvmlReturn_enum_NVML_SUCCESS {
            return Ok(None);
        }
        // SAFETY: every member is a plain number, all bytes of the union were zero before, and a
        // narrower member that NVML wrote lies in the low bytes (NVML's platforms are little-endian).
        Ok(Some(unsafe { field.value.ullVal }))
    }
}

// === impl RecoveryAction ===

impl RecoveryAction {
    fn of(code: u64) -> Self {
        match u32::try_from(code) {
            Ok(sys::nvmlDeviceGpuRecoveryAction_s_NVML_GPU_RECOVERY_ACTION_NONE) => Self::None,
            Ok(sys::nvmlDeviceGpuRecoveryAction_s_NVML_GPU_RECOVERY_ACTION_GPU_RESET) => {
                Self::Reset
            }
            Ok(sys::nvmlDeviceGpuRecoveryAction_s_NVML_GPU_RECOVERY_ACTION_NODE_REBOOT) => {
                Self::Reboot
            }
            Ok(
                sys::nvmlDeviceGpuRecoveryAction_s_NVML_GPU_RECOVERY_ACTION_DRAIN_P2P
                | sys::nvmlDeviceGpuRecoveryAction_s_NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET,
            ) => Self::Drain,
            _ => Self::Other(code),
        }
    }
}
