//! Lookup of a GPU for a call. Active faults delay, fail or abort the call here.

use std::{process, sync::Arc, time::Duration};

use windlass_machine::{
    Model,
    state::{Faults, LibraryDefect},
};

use crate::{
    handle::GpuSnapshot,
    library,
    status::{NvmlResult, Status},
    watch::{Generation, sleep_for},
};

/// GPU with this number. Its faults may delay or fail the call.
pub(crate) fn find_gpu(number: u32) -> NvmlResult<GpuSnapshot> {
    let gpu = find_gpu_even_if_lost(number)?;
    if gpu.faults.lost { Err(Status::GPU_IS_LOST) } else { Ok(gpu) }
}

/// Same as [`find_gpu`], for the few calls that the driver answers even for a lost GPU.
pub(crate) fn find_gpu_even_if_lost(number: u32) -> NvmlResult<GpuSnapshot> {
    let mut gpu = wait_for_gpu(number)?;
    if gpu.faults.slow_ms > 0 {
        sleep_for(Duration::from_millis(gpu.faults.slow_ms.into()));
        // Search again, because the machine may have changed during the pause.
        gpu = wait_for_gpu(number)?;
    }
    match gpu.faults {
        Faults { lost: false, error: Some(code), .. } => Err(Status(code)),
        _ => Ok(gpu),
    }
}

/// Finds a GPU. While it hangs, blocks as the real library does, until the GPU recovers or is removed.
fn wait_for_gpu(number: u32) -> NvmlResult<GpuSnapshot> {
    let gpu = lookup(number)?;
    if gpu.faults.defect == Some(LibraryDefect::Crash) {
        crash(number);
    }
    if !gpu.faults.hang {
        return Ok(gpu);
    }
    loop {
        let generation = Generation::current()?;
        let gpu = lookup(number)?;
        if !gpu.faults.hang {
            return Ok(gpu);
        }
        generation.wait(None)?;
    }
}

/// Aborts this process. The fault is cleared first, so that it aborts no other process.
fn crash(number: u32) -> ! {
    // If the change fails, the fault remains for the next process too.
    let _ = library::update_gpu(number, |gpu| gpu.faults.defect = None);
    process::abort()
}

fn lookup(number: u32) -> NvmlResult<GpuSnapshot> {
    let model: Arc<Model> = library::current_model()?;
    match model.gpus.iter().position(|gpu| gpu.number == number) {
        Some(index) => Ok(GpuSnapshot::new(model, index)),
        // A number below `next_number` without a GPU belongs to a removed GPU.
        None if number < model.next_number => Err(Status::GPU_IS_LOST),
        None => Err(Status::INVALID_ARGUMENT),
    }
}
