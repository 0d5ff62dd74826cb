//! Recovery action that the driver requests.

use nvml_wrapper_sys::bindings as sys;

use crate::{Result, error::UnsupportedAsNone as _, fields::Field, gpu::Gpu};

/// Recovery action (`nvmlDeviceGpuRecoveryAction_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecoveryAction {
    /// No action.
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
        let action = Field::of_gpu(sys::field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION);
        let values = self.fields([action]).unsupported_as_none()?;
        Ok(values.and_then(|[action]| action).map(RecoveryAction::from_code))
    }
}

// === impl RecoveryAction ===

impl RecoveryAction {
    fn from_code(code: u64) -> Self {
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
