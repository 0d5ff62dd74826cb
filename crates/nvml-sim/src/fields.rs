//! Field values: several queries in one call, each with its own status.

use std::{
    ffi::{c_int, c_uint},
    time::{SystemTime, UNIX_EPOCH},
};

use nvml_wrapper_sys::bindings::{self as sys, field_id};
use windlass_machine::state::LinkEnd;

use crate::{
    abi::OutArray,
    ecc,
    handle::{Device, GpuSnapshot},
    nvlink, power,
    status::{NvmlResult, Status},
};

/// Value of a field, by the union member for its type.
enum FieldValue {
    Number(c_uint),
    Long(u64),
}

export! {
    fn nvmlDeviceGetFieldValues(
        device: Device,
        count: c_int,
        values: OutArray<sys::nvmlFieldValue_t>,
    ) {
        // For a lost GPU the call succeeds. The field with the recovery action has a value, and the other fields report
        // the loss.
        let gpu = device.gpu_even_if_lost()?;
        let count = usize::try_from(count).map_err(|_| Status::INVALID_ARGUMENT)?;
        values.map(count, |field| fill_field(&gpu, field))
    }

    fn nvmlDeviceClearFieldValues(
        device: Device,
        count: c_int,
        values: OutArray<sys::nvmlFieldValue_t>,
    ) {
        device.gpu()?;
        let count = usize::try_from(count).map_err(|_| Status::INVALID_ARGUMENT)?;
        values.map(count, |mut field| {
            field.nvmlReturn = sys::nvmlReturn_enum_NVML_SUCCESS;
            field
        })
    }
}

fn fill_field(gpu: &GpuSnapshot, mut field: sys::nvmlFieldValue_t) -> sys::nvmlFieldValue_t {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    field.timestamp = i64::try_from(now.as_micros()).unwrap_or(i64::MAX);
    field.latencyUsec = 0;
    field.nvmlReturn = sys::nvmlReturn_enum_NVML_SUCCESS;
    match field_value(gpu, field.fieldId, field.scopeId) {
        Ok(FieldValue::Number(number)) => {
            field.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_INT;
            // Write the widest member, because some callers read it.
            field.value.ullVal = number.into();
        }
        Ok(FieldValue::Long(number)) => {
            field.valueType = sys::nvmlValueType_enum_NVML_VALUE_TYPE_UNSIGNED_LONG_LONG;
            field.value.ullVal = number;
        }
        Err(Status(code)) => field.nvmlReturn = code,
    }
    field
}

fn field_value(gpu: &GpuSnapshot, id: c_uint, scope: c_uint) -> NvmlResult<FieldValue> {
    if id == field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION {
        return Ok(FieldValue::Number(recovery_action(gpu)));
    }
    if gpu.faults.lost {
        return Err(Status::GPU_IS_LOST);
    }
    let link = |_| link_value(gpu, id).or_else(|_| traffic_value(gpu, id, scope));
    memory_value(gpu, id).or_else(link).or_else(|_| power_value(gpu, id))
}

fn recovery_action(gpu: &GpuSnapshot) -> c_uint {
    if gpu.needs_reset() {
        sys::nvmlDeviceGpuRecoveryAction_s_NVML_GPU_RECOVERY_ACTION_GPU_RESET
    } else {
        sys::nvmlDeviceGpuRecoveryAction_s_NVML_GPU_RECOVERY_ACTION_NONE
    }
}

fn memory_value(gpu: &GpuSnapshot, id: c_uint) -> NvmlResult<FieldValue> {
    let ecc_count = |kind, since| ecc::error_count(gpu, kind, since).map(FieldValue::Long);
    let (corrected, uncorrected) = (
        sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_CORRECTED,
        sys::nvmlMemoryErrorType_enum_NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    );
    let (volatile, aggregate) = (
        sys::nvmlEccCounterType_enum_NVML_VOLATILE_ECC,
        sys::nvmlEccCounterType_enum_NVML_AGGREGATE_ECC,
    );
    let rows = gpu.live.remapped;
    if !gpu.card.ecc {
        return Err(Status::NOT_SUPPORTED);
    }
    match id {
        field_id::NVML_FI_DEV_ECC_CURRENT | field_id::NVML_FI_DEV_ECC_PENDING => {
            Ok(FieldValue::Number(1))
        }
        field_id::NVML_FI_DEV_ECC_SBE_VOL_TOTAL => ecc_count(corrected, volatile),
        field_id::NVML_FI_DEV_ECC_DBE_VOL_TOTAL => ecc_count(uncorrected, volatile),
        field_id::NVML_FI_DEV_ECC_SBE_AGG_TOTAL => ecc_count(corrected, aggregate),
        field_id::NVML_FI_DEV_ECC_DBE_AGG_TOTAL => ecc_count(uncorrected, aggregate),
        _ if gpu.card.architecture.remaps_rows() => remapped_value(gpu, id),
        field_id::NVML_FI_DEV_RETIRED_SBE => Ok(FieldValue::Number(rows.corrected)),
        field_id::NVML_FI_DEV_RETIRED_DBE => Ok(FieldValue::Number(rows.uncorrected)),
        field_id::NVML_FI_DEV_RETIRED_PENDING => Ok(FieldValue::Number(rows.pending.into())),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

/// Ampere and later remap rows and retire no pages.
fn remapped_value(gpu: &GpuSnapshot, id: c_uint) -> NvmlResult<FieldValue> {
    let rows = gpu.live.remapped;
    match id {
        field_id::NVML_FI_DEV_REMAPPED_COR => Ok(FieldValue::Number(rows.corrected)),
        field_id::NVML_FI_DEV_REMAPPED_UNC => Ok(FieldValue::Number(rows.uncorrected)),
        field_id::NVML_FI_DEV_REMAPPED_PENDING => Ok(FieldValue::Number(rows.pending.into())),
        field_id::NVML_FI_DEV_REMAPPED_FAILURE => Ok(FieldValue::Number(rows.failed.into())),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

fn link_value(gpu: &GpuSnapshot, id: c_uint) -> NvmlResult<FieldValue> {
    let (ports, counts) = (nvlink::ports(gpu)?, gpu.live.nvlink);
    let is_switch_link = |link: &&Option<LinkEnd>| matches!(link, Some(LinkEnd::Switch(_)));
    match id {
        field_id::NVML_FI_DEV_NVLINK_LINK_COUNT => Ok(FieldValue::Number(ports.links.into())),
        field_id::NVML_FI_DEV_NVSWITCH_CONNECTED_LINK_COUNT => {
            let count = gpu.links.iter().filter(is_switch_link).count();
            Ok(FieldValue::Number(crate::lookup::as_count(count)?))
        }
        field_id::NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON | field_id::NVML_FI_DEV_NVLINK_GET_SPEED => {
            Ok(FieldValue::Number(link_speed_mbps(ports.generation)))
        }
        field_id::NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL => {
            Ok(FieldValue::Long(counts.crc_flit_errors))
        }
        field_id::NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL => {
            Ok(FieldValue::Long(counts.crc_data_errors))
        }
        field_id::NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL => {
            Ok(FieldValue::Long(counts.replays))
        }
        field_id::NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL => {
            Ok(FieldValue::Long(counts.recoveries))
        }
        _ => Err(Status::NOT_SUPPORTED),
    }
}

/// Traffic of all links in total (scope `UINT_MAX`). The model has no traffic of single links.
fn traffic_value(gpu: &GpuSnapshot, id: c_uint, scope: c_uint) -> NvmlResult<FieldValue> {
    nvlink::ports(gpu)?;
    let counts = gpu.live.nvlink;
    match id {
        _ if scope != c_uint::MAX => Err(Status::NOT_SUPPORTED),
        field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX => Ok(FieldValue::Long(counts.sent_kib)),
        field_id::NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX => {
            Ok(FieldValue::Long(counts.received_kib))
        }
        _ => Err(Status::NOT_SUPPORTED),
    }
}

fn power_value(gpu: &GpuSnapshot, id: c_uint) -> NvmlResult<FieldValue> {
    let limit = power::limit_mw(gpu);
    match id {
        field_id::NVML_FI_DEV_MEMORY_TEMP => power::memory_c(gpu).map(FieldValue::Number),
        field_id::NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION => {
            Ok(FieldValue::Long(power::energy_mj(gpu)))
        }
        field_id::NVML_FI_DEV_POWER_AVERAGE | field_id::NVML_FI_DEV_POWER_INSTANT => {
            Ok(FieldValue::Number(gpu.live.power_mw))
        }
        field_id::NVML_FI_DEV_POWER_MIN_LIMIT => Ok(FieldValue::Number(limit / 4)),
        field_id::NVML_FI_DEV_POWER_MAX_LIMIT
        | field_id::NVML_FI_DEV_POWER_DEFAULT_LIMIT
        | field_id::NVML_FI_DEV_POWER_CURRENT_LIMIT
        | field_id::NVML_FI_DEV_POWER_REQUESTED_LIMIT => Ok(FieldValue::Number(limit)),
        field_id::NVML_FI_DEV_PCIE_REPLAY_COUNTER => Ok(FieldValue::Number(gpu.live.pcie_replays)),
        _ => Err(Status::NOT_SUPPORTED),
    }
}

/// Speed of one link in one direction in MB/s, as `nvidia-smi nvlink -s` reports it.
fn link_speed_mbps(generation: u8) -> c_uint {
    match generation {
        1 => 20_000,
        2 => 25_781,
        3 => 25_000,
        4 => 26_562,
        _ => 53_125,
    }
}
