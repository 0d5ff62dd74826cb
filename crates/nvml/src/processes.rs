//! Compute processes of a GPU.

use nvml_wrapper_sys::bindings as sys;

use crate::{Result, error::at_most, gpu::Gpu, library::call};

/// Initial buffer: as many processes as a GPU usually has.
const INITIAL_CAPACITY: u32 = 32;

/// Bound on processes: more than a GPU has contexts.
const MAX: u32 = 1 << 16;

const CALL: &str = "nvmlDeviceGetComputeRunningProcesses_v3";

impl Gpu {
    /// Host process ids that compute on a GPU or MIG device. Unsupported before driver 510.
    pub fn computing(&self) -> Result<Vec<u32>> {
        let mut room = INITIAL_CAPACITY;
        loop {
            let (count, answer) = self.computing_up_to(room);
            match answer {
                // More processes started meanwhile.
                Err(error) if error.is_too_small() && count > room => {
                    room = at_most(CALL, count, MAX)? + INITIAL_CAPACITY;
                }
                answer => return answer,
            }
        }
    }

    /// Process ids, with the total number if the buffer is too small.
    fn computing_up_to(&self, room: u32) -> (u32, Result<Vec<u32>>) {
        let nobody = sys::nvmlProcessInfo_t {
            pid: 0,
            usedGpuMemory: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
        };
        let (mut count, mut infos) = (room, vec![nobody; room as usize]);
        let answer = call!(
            self.table,
            nvmlDeviceGetComputeRunningProcesses_v3,
            self.handle.0,
            &raw mut count,
            infos.as_mut_ptr()
        );
        infos.truncate(count as usize);
        (count, answer.map(|()| infos.iter().map(|info| info.pid).collect()))
    }
}
