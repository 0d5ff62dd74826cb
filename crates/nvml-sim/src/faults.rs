//! Gate of every call to a GPU: active faults act here.

use std::{process, sync::Arc, time::Duration};

use windlass_machine::{
    Model,
    state::{Defect, Faults},
};

use crate::{
    handle::FoundGpu,
    library,
    status::{Answer, Status},
    watch::{Moment, pause},
};

/// GPU with this number, after its faults let the call through.
pub(crate) fn pass(number: u32) -> Answer<FoundGpu> {
    let gpu = pass_even_if_lost(number)?;
    if gpu.faults.lost { Err(Status::GPU_IS_LOST) } else { Ok(gpu) }
}

/// GPU with this number, for the few calls that the driver answers even for a lost GPU.
pub(crate) fn pass_even_if_lost(number: u32) -> Answer<FoundGpu> {
    let mut gpu = find_when_it_answers(number)?;
    if gpu.faults.slow_ms > 0 {
        pause(Duration::from_millis(gpu.faults.slow_ms.into()));
        // Search again, because the machine may have changed during the pause.
        gpu = find_when_it_answers(number)?;
    }
    match gpu.faults {
        Faults { lost: false, error: Some(code), .. } => Err(Status(code)),
        _ => Ok(gpu),
    }
}

/// Blocks as the real library does, until the GPU recovers or is gone.
fn find_when_it_answers(number: u32) -> Answer<FoundGpu> {
    let gpu = find(number)?;
    if gpu.faults.defect == Some(Defect::Crash) {
        crash(number);
    }
    if !gpu.faults.hang {
        return Ok(gpu);
    }
    loop {
        let moment = Moment::now()?;
        let gpu = find(number)?;
        if !gpu.faults.hang {
            return Ok(gpu);
        }
        moment.wait(None)?;
    }
}

/// Aborts this process only; the fault is cleared first.
fn crash(number: u32) -> ! {
    // If the machine cannot be changed, every process crashes.
    let _ = library::change(number, |gpu| gpu.faults.defect = None);
    process::abort()
}

fn find(number: u32) -> Answer<FoundGpu> {
    let model: Arc<Model> = library::machine()?;
    match model.gpus.iter().position(|gpu| gpu.number == number) {
        Some(index) => Ok(FoundGpu::new(model, index)),
        // A known number without a GPU belongs to a removed GPU.
        None if number < model.next_number => Err(Status::GPU_IS_LOST),
        None => Err(Status::INVALID_ARGUMENT),
    }
}
