//! Topology: CPU and memory affinity of GPUs, and distances between GPUs.

use std::ffi::{c_uint, c_ulong};

use nvml_wrapper_sys::bindings as sys;
use windlass_machine::{pci::PciDistance, state::Gpu};

use crate::{
    abi::{Out, OutArray},
    handle::{Device, GpuSnapshot},
    nvlink,
    status::{NvmlResult, Status},
};

export! {
    fn nvmlDeviceGetCpuAffinity(
        device: Device,
        length: c_uint,
        set: OutArray<c_ulong>,
    ) {
        put_cpus(&device.gpu()?, length, set)
    }

    /// The scope, node or socket, is ignored: in simulated machines both are equal.
    fn nvmlDeviceGetCpuAffinityWithinScope(
        device: Device,
        length: c_uint,
        set: OutArray<c_ulong>,
        _scope: c_uint,
    ) {
        put_cpus(&device.gpu()?, length, set)
    }

    fn nvmlDeviceGetMemoryAffinity(
        device: Device,
        length: c_uint,
        set: OutArray<c_ulong>,
        _scope: c_uint,
    ) {
        let node = device.gpu()?.numa.ok_or(Status::NOT_SUPPORTED)?;
        put_bits([node], length, set)
    }

    fn nvmlDeviceGetTopologyCommonAncestor(
        one: Device,
        other: Device,
        level: Out<sys::nvmlGpuTopologyLevel_t>,
    ) {
        let (one, other) = (one.gpu()?, other.gpu()?);
        level.put(level_between(&one, &other))
    }

    /// Returns the GPUs at exactly this level.
    fn nvmlDeviceGetTopologyNearestGpus(
        device: Device,
        level: sys::nvmlGpuTopologyLevel_t,
        count: Out<c_uint>,
        devices: OutArray<Device>,
    ) {
        let gpu = device.gpu()?;
        let others = gpu.machine().gpus.iter().filter(|other| other.number != gpu.number);
        let nearest_gpus = others.filter(|other| level_between(&gpu, other) == level);
        let nearest_gpus: Vec<_> = nearest_gpus.map(Device::of_gpu).collect();
        devices.put_or_count(count, &nearest_gpus)
    }

    fn nvmlDeviceGetP2PStatus(
        one: Device,
        other: Device,
        index: c_uint,
        status: Out<sys::nvmlGpuP2PStatus_t>,
    ) {
        let (one, other) = (one.gpu()?, other.gpu()?);
        status.put(p2p(&one, &other, index)?)
    }
}

fn level_between(one: &Gpu, other: &Gpu) -> sys::nvmlGpuTopologyLevel_t {
    match one.distance(other) {
        _ if one.number == other.number => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_INTERNAL,
        PciDistance::Pix => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_SINGLE,
        PciDistance::Pxb => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_MULTIPLE,
        PciDistance::Phb => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_HOSTBRIDGE,
        PciDistance::DifferentHostBridges if one.numa == other.numa => {
            sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_NODE
        }
        PciDistance::DifferentHostBridges => sys::nvmlGpuLevel_enum_NVML_TOPOLOGY_SYSTEM,
    }
}

/// P2P status. PCIe peers can read and write each other, atomics need NVLink, and a partitioned GPU has no peers.
fn p2p(
    one: &GpuSnapshot,
    other: &GpuSnapshot,
    index: c_uint,
) -> NvmlResult<sys::nvmlGpuP2PStatus_t> {
    let is_partitioned = one.mig.is_some() || other.mig.is_some();
    let is_linked = nvlink::are_linked(one, other);
    let is_possible = match index {
        sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_READ
        | sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_WRITE => !is_partitioned,
        sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK
        | sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_ATOMICS => is_linked && !is_partitioned,
        sys::nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_PCI => !is_linked && !is_partitioned,
        _ => return Err(Status::INVALID_ARGUMENT),
    };
    Ok(if is_possible {
        sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_OK
    } else {
        sys::nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_NOT_SUPPORTED
    })
}

fn put_cpus(gpu: &GpuSnapshot, length: c_uint, set: OutArray<c_ulong>) -> NvmlResult {
    put_bits(gpu.machine().local_cpus(gpu.numa).iter(), length, set)
}

/// Sets bits in an array of words. Bits beyond its end are dropped, as in the real library.
fn put_bits(
    bits: impl IntoIterator<Item = u32>,
    length: c_uint,
    set: OutArray<c_ulong>,
) -> NvmlResult {
    if length == 0 {
        return Err(Status::INVALID_ARGUMENT);
    }
    // The limit exceeds any kernel's CPU set. It bounds the allocation for a caller with a wrong length.
    let length = (length as usize).min(1024);
    let mut words: Vec<c_ulong> = vec![0; length];
    for bit in bits {
        if let Some(word) = words.get_mut((bit / c_ulong::BITS) as usize) {
            *word |= 1 << (bit % c_ulong::BITS);
        }
    }
    set.put(length, &words)
}
