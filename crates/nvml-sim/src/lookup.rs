//! Device lookup by index, UUID, serial number or bus id.

use std::ffi::c_uint;

use windlass_machine::{Model, pci::PciAddress, state::Gpu};

use crate::{
    abi::{Out, Text},
    faults,
    handle::Device,
    library,
    status::{NvmlResult, Status},
};

export! {
    fn [nvmlDeviceGetCount nvmlDeviceGetCount_v2](count: Out<c_uint>) {
        count.put(as_count(library::current_model()?.gpus.len())?)
    }

    fn [nvmlDeviceGetHandleByIndex nvmlDeviceGetHandleByIndex_v2](
        index: c_uint,
        device: Out<Device>,
    ) {
        let model = library::current_model()?;
        let gpu = model.gpus.get(index as usize).ok_or(Status::INVALID_ARGUMENT)?;
        put_handle(device, gpu)
    }

    /// Finds GPUs and MIG devices.
    fn nvmlDeviceGetHandleByUUID(uuid: Text, device: Out<Device>) {
        let model = library::current_model()?;
        let uuid = uuid.read()?;
        match model.gpus.iter().find(|gpu| gpu.uuid == uuid) {
            Some(gpu) => put_handle(device, gpu),
            None => put_mig_handle(device, &model, &uuid),
        }
    }

    fn nvmlDeviceGetHandleBySerial(serial: Text, device: Out<Device>) {
        let (model, serial) = (library::current_model()?, serial.read()?);
        let gpu = model.gpus.iter().find(|gpu| gpu.serial == serial);
        put_handle(device, gpu.ok_or(Status::NOT_FOUND)?)
    }

    /// Accepts any width of domain, as the real library does.
    fn [nvmlDeviceGetHandleByPciBusId nvmlDeviceGetHandleByPciBusId_v2](
        bus_id: Text,
        device: Out<Device>,
    ) {
        let model = library::current_model()?;
        let address: PciAddress = bus_id.read()?.parse().map_err(|_| Status::INVALID_ARGUMENT)?;
        let gpu = model.gpus.iter().find(|gpu| gpu.address() == address);
        put_handle(device, gpu.ok_or(Status::NOT_FOUND)?)
    }
}

/// Length as a C count.
pub(crate) fn as_count(length: usize) -> NvmlResult<c_uint> {
    c_uint::try_from(length).map_err(|_| Status::UNKNOWN)
}

/// Returns the handle of a GPU. A lost GPU is an error, as in the real library.
fn put_handle(device: Out<Device>, gpu: &Gpu) -> NvmlResult {
    device.check()?;
    faults::find_gpu(gpu.number)?;
    device.put(Device::of_gpu(gpu))
}

/// Returns the handle of a MIG device. A lost GPU is an error.
fn put_mig_handle(device: Out<Device>, model: &Model, uuid: &str) -> NvmlResult {
    let devices = model
        .gpus
        .iter()
        .flat_map(|gpu| gpu.mig_devices().map(move |mig_device| (gpu, mig_device)));
    let target = { devices }.find(|(_, (_, compute))| compute.uuid == uuid);
    let (gpu, (instance, compute)) = target.ok_or(Status::NOT_FOUND)?;
    device.check()?;
    faults::find_gpu(gpu.number)?;
    device.put(Device::of_instance(gpu, instance, compute))
}
