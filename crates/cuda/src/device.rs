//! CUDA devices: GPUs and MIG devices.

use std::{
    ffi::{c_int, c_uint},
    fmt,
};

use crate::{
    Result,
    context::Context,
    table::{Table, call},
};

/// A visible CUDA device.
#[derive(Clone, Copy, Debug)]
pub struct Device<'a> {
    table: &'a Table,
    ordinal: c_int,
}

/// UUID of a GPU or MIG device. CUDA does not distinguish the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUuid([u8; 16]);

/// `CU_DEVICE_ATTRIBUTE_INTEGRATED` in `cuda.h`.
const ATTRIBUTE_INTEGRATED: c_int = 18;

/// `CU_CTX_SCHED_AUTO` in `cuda.h`.
const SCHED_AUTO: c_uint = 0;

// === impl Device ===

impl<'a> Device<'a> {
    pub(crate) fn first_visible(table: &'a Table) -> Result<Self> {
        let mut ordinal = 0;
        call!(table, cuDeviceGet, &raw mut ordinal, 0)?;
        Ok(Self { table, ordinal })
    }

    /// UUID.
    pub fn uuid(self) -> Result<DeviceUuid> {
        let mut bytes = [0; 16];
        call!(self.table, cuDeviceGetUuid_v2, &raw mut bytes, self.ordinal)?;
        Ok(DeviceUuid(bytes))
    }

    /// True if the device uses the host's memory.
    pub fn is_integrated(self) -> Result<bool> {
        let mut value = 0;
        call!(
            self.table,
            cuDeviceGetAttribute,
            &raw mut value,
            ATTRIBUTE_INTEGRATED,
            self.ordinal
        )?;
        Ok(value != 0)
    }

    /// Creates a context on this thread.
    pub(crate) fn context(self) -> Result<Context<'a>> {
        let mut handle = std::ptr::null_mut();
        call!(self.table, cuCtxCreate_v2, &raw mut handle, SCHED_AUTO, self.ordinal)?;
        Ok(Context::new(self.table, handle))
    }
}

// === impl DeviceUuid ===

impl DeviceUuid {
    /// True if NVML's text, `GPU-` or `MIG-` and a UUID, has this UUID.
    pub fn matches(self, text: &str) -> bool {
        text.get(4..).is_some_and(|uuid| uuid.eq_ignore_ascii_case(&self.to_string()))
    }
}

impl fmt::Display for DeviceUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if [4, 6, 8, 10].contains(&index) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_matches_nvml_s_text() {
        let uuid =
            DeviceUuid(std::array::from_fn(|index| u8::try_from(index * 17).expect("small")));
        assert_eq!(uuid.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
        assert!(uuid.matches("GPU-00112233-4455-6677-8899-aabbccddeeff"));
        assert!(uuid.matches("MIG-00112233-4455-6677-8899-AABBCCDDEEFF"));
        for other in ["GPU-00112233-4455-6677-8899-aabbccddee00", "0000:3b:00.0", "GPU", ""] {
            assert!(!uuid.matches(other), "{other}");
        }
    }
}
