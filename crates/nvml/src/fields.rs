//! Field values: several numbers in one call. A GPU may lack any of these fields.

use nvml_wrapper_sys::bindings::{self as sys, field_id as id};

use crate::{
    Result,
    error::{NvmlError, UnsupportedAsNone as _},
    gpu::Gpu,
    library::{Zeros, call},
    telemetry::MAX_CELSIUS,
};

/// Field to read.
#[derive(Clone, Copy)]
pub(crate) struct Field {
    id: u32,
    scope: u32,
}

/// Event counters of a GPU since its driver was loaded, and the temperature of its memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FieldValues {
    /// Temperature of the memory in degrees Celsius. HBM has a sensor.
    pub memory_celsius: Option<u32>,
    /// Memory errors that ECC corrected.
    pub corrected_errors: Option<u64>,
    /// PCIe packets that were sent again.
    pub pcie_replays: Option<u64>,
    /// Traffic and errors of all NVLinks.
    pub nvlink: NvLinkCounters,
}

/// Traffic and errors of all NVLinks of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvLinkCounters {
    /// Data sent, without protocol overhead.
    pub sent_kib: Option<u64>,
    /// Data received, without protocol overhead.
    pub received_kib: Option<u64>,
    /// Checksum errors of flow control units.
    pub crc_flit_errors: Option<u64>,
    /// Checksum errors of data.
    pub crc_data_errors: Option<u64>,
    /// Packets that were sent again.
    pub replays: Option<u64>,
    /// Recoveries: links that were trained again.
    pub recoveries: Option<u64>,
}

/// Scope of throughput fields that means all links.
const ALL_LINKS: u32 = u32::MAX;

// === impl Field ===

impl Field {
    pub(crate) const fn of_gpu(id: u32) -> Self {
        Self { id, scope: 0 }
    }

    const fn of_links(id: u32) -> Self {
        Self { id, scope: ALL_LINKS }
    }
}

// === impl Gpu ===

impl Gpu {
    /// All fields that are cheap to read, in one call.
    pub fn field_values(&self) -> Result<FieldValues> {
        let fields = [
            Field::of_gpu(id::NVML_FI_DEV_MEMORY_TEMP),
            Field::of_gpu(id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL),
            Field::of_gpu(id::NVML_FI_DEV_PCIE_REPLAY_COUNTER),
            Field::of_links(id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX),
            Field::of_links(id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX),
            Field::of_gpu(id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL),
            Field::of_gpu(id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL),
            Field::of_gpu(id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL),
            Field::of_gpu(id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL),
        ];
        let values = self.fields(fields).unsupported_as_none()?.unwrap_or_default();
        let [
            memory_celsius,
            corrected_errors,
            pcie_replays,
            sent_kib,
            received_kib,
            crc_flit_errors,
            crc_data_errors,
            replays,
            recoveries,
        ] = values;
        let nvlink = NvLinkCounters {
            sent_kib,
            received_kib,
            crc_flit_errors,
            crc_data_errors,
            replays,
            recoveries,
        };
        // A GPU without the sensor reports 0 under some drivers.
        let memory_celsius = memory_celsius
            .and_then(|celsius| u32::try_from(celsius).ok())
            .filter(|celsius| (1..=MAX_CELSIUS).contains(celsius));
        Ok(FieldValues { memory_celsius, corrected_errors, pcie_replays, nvlink })
    }

    /// Fields as unsigned numbers; `None` for one that the GPU lacks.
    pub(crate) fn fields<const N: usize>(&self, fields: [Field; N]) -> Result<[Option<u64>; N]> {
        const CALL: &str = "nvmlDeviceGetFieldValues";
        let request = |field: Field| sys::nvmlFieldValue_t {
            fieldId: field.id,
            scopeId: field.scope,
            ..Zeros::zeros()
        };
        let mut values = fields.map(request);
        let count = i32::try_from(N).map_err(|_| NvmlError::invalid_answer(CALL))?;
        call!(self.table, nvmlDeviceGetFieldValues, self.handle.0, count, values.as_mut_ptr())?;
        Ok(values.map(number))
    }
}

/// Value of a field; `None` if the GPU lacks the field, or does not know its value.
fn number(field: sys::nvmlFieldValue_t) -> Option<u64> {
    // SAFETY: every member is a plain number, all bytes of the union were zero before, and a narrower
    // member that NVML wrote lies in the low bytes (NVML's platforms are little-endian).
    let value = unsafe { field.value.ullVal };
    // NVML reports an unknown value as all bits set.
    (field.nvmlReturn == sys::nvmlReturn_enum_NVML_SUCCESS && value != u64::MAX).then_some(value)
}
