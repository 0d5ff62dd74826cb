//! The door that every call for a GPU goes through: faults in force act here.

use std::{sync::Arc, time::Duration};

use windlass_machine::{Model, state::Faults};

use crate::{
    handle::FoundGpu,
    library,
    status::{Answer, Status},
    watch::{Watch, pause},
};

/// The GPU with a number, once its faults let the call through.
pub(crate) fn pass(number: u32) -> Answer<FoundGpu> {
    let mut gpu = find(number)?;
    if gpu.faults.hang {
        gpu = wait_for_recovery(number)?;
    }
    let Faults { lost, error, slow_ms, .. } = gpu.faults;
    if slow_ms > 0 {
        pause(Duration::from_millis(slow_ms.into()));
    }
    match error {
        _ if lost => Err(Status::GPU_IS_LOST),
        Some(code) => Err(Status(code)),
        None => Ok(gpu),
    }
}

/// Blocks as the real library does, until the GPU no longer hangs or is gone.
fn wait_for_recovery(number: u32) -> Answer<FoundGpu> {
    let watch = Watch::new(&library::folder()?)?;
    loop {
        watch.forget();
        let gpu = find(number)?;
        if !gpu.faults.hang {
            return Ok(gpu);
        }
        watch.wait(None)?;
    }
}

fn find(number: u32) -> Answer<FoundGpu> {
    let model: Arc<Model> = library::machine()?;
    match model.gpus.iter().position(|gpu| gpu.number == number) {
        Some(index) => Ok(FoundGpu::new(model, index)),
        // It was there, and was pulled out.
        None if number < model.next_number => Err(Status::GPU_IS_LOST),
        None => Err(Status::INVALID_ARGUMENT),
    }
}
