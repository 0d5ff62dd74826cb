//! Who computes on a GPU.

use nvml_wrapper_sys::bindings as sys;

use crate::{Result, error::at_most, gpu::Gpu, library::call};

/// Room for as many processes as a GPU has as a rule.
const USUAL: u32 = 32;

/// More than any GPU has contexts for.
const MOST: u32 = 1 << 16;

const CALL: &str = "nvmlDeviceGetComputeRunningProcesses_v3";

impl Gpu {
    /// The processes that compute on it, or in this MIG device, by their numbers on the host. Drivers before
    /// 510 do not tell.
    pub fn computing(&self) -> Result<Vec<u32>> {
        let mut room = USUAL;
        loop {
            let (count, asked) = self.computing_up_to(room);
            match asked {
                // Others have come since it was last asked.
                Err(error) if error.is_too_small() && count > room => {
                    room = at_most(CALL, count, MOST)? + USUAL;
                }
                asked => return asked,
            }
        }
    }

    /// With how many there are, if there are more.
    fn computing_up_to(&self, room: u32) -> (u32, Result<Vec<u32>>) {
        let nobody = sys::nvmlProcessInfo_t {
            pid: 0,
            usedGpuMemory: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
        };
        let (mut count, mut infos) = (room, vec![nobody; room as usize]);
        let asked = call!(
            self.table,
            nvmlDeviceGetComputeRunningProcesses_v3,
            self.handle.0,
            &raw mut count,
            infos.as_mut_ptr()
        );
        infos.truncate(count as usize);
        (count, asked.map(|()| infos.iter().map(|info| info.pid).collect()))
    }
}
