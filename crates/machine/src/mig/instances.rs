//! Creation and destruction of single instances, with the driver's rules.

use super::GpuInstanceProfile;
use crate::state::{ComputeInstance, Gpu, MigInstance};

/// Reason why the driver refuses to create or destroy an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigRefusal {
    /// MIG is off, or the card lacks MIG.
    #[error("MIG is off")]
    MigDisabled,
    /// The profile cannot start at this slice.
    #[error("an instance of that profile cannot start there")]
    InvalidPlacement,
    /// Other instances occupy the slices, or the profile reached its limit.
    #[error("there is no room left")]
    InsufficientResources,
    /// A process or a compute instance uses the instance.
    #[error("the instance is in use")]
    InUse,
    /// The instance does not exist.
    #[error("there is no such instance")]
    NotFound,
}

/// Lowest free id for an instance of a profile.
pub(crate) fn free_id(profile: GpuInstanceProfile, instances: &[MigInstance]) -> u32 {
    let is_free = |id: &u32| instances.iter().all(|instance| instance.gpu_instance != *id);
    let mut ids = (profile.first_instance_id()..).take(instances.len() + 1);
    ids.find(is_free).expect("there is one id more than there are instances")
}

// === impl Gpu ===

impl Gpu {
    /// Creates a GPU instance at a memory slice, or at the first free one. Returns its id.
    pub fn create_gpu_instance(
        &mut self,
        profile: GpuInstanceProfile,
        start: Option<u32>,
    ) -> Result<u32, MigRefusal> {
        let capability = self.card.mig.ok_or(MigRefusal::MigDisabled)?;
        let instances = self.mig.as_deref().ok_or(MigRefusal::MigDisabled)?;
        if start.is_some_and(|start| !profile.possible_starts.contains(&start)) {
            return Err(MigRefusal::InvalidPlacement);
        }
        let same_profile_count =
            instances.iter().filter(|instance| instance.profile_id == profile.profile_id).count();
        let occupied_slices = self.occupied_slices();
        let is_free = |candidate: &&u32| {
            start.is_none_or(|start| start == **candidate)
                && profile.slice_mask(**candidate) & occupied_slices == 0
        };
        let start = profile
            .possible_starts
            .iter()
            .find(is_free)
            .filter(|_| same_profile_count < profile.max_instances() as usize);
        let start = *start.ok_or(MigRefusal::InsufficientResources)?;
        let gpu_instance = free_id(profile, instances);
        self.mig.as_mut().ok_or(MigRefusal::MigDisabled)?.push(MigInstance {
            profile: profile.name(capability),
            profile_id: profile.profile_id,
            gpu_instance,
            start,
            compute: None,
        });
        Ok(gpu_instance)
    }

    /// Creates a compute instance that fills a GPU instance. The new MIG device gets an unused UUID.
    /// Returns the instance id.
    pub fn create_compute_instance(&mut self, gpu_instance: u32) -> Result<u32, MigRefusal> {
        let (number, uuid) = (self.mig_made + 1, self.uuid.clone());
        let instance = self.instance_mut(gpu_instance)?;
        if instance.compute.is_some() {
            return Err(MigRefusal::InsufficientResources);
        }
        instance.compute = Some(ComputeInstance::with_number(&uuid, number));
        self.mig_made = number;
        Ok(0)
    }

    /// Destroys the compute instance in a GPU instance.
    pub fn destroy_compute_instance(&mut self, gpu_instance: u32) -> Result<(), MigRefusal> {
        let is_busy = self.has_processes_in(gpu_instance);
        let instance = self.instance_mut(gpu_instance)?;
        if is_busy {
            return Err(MigRefusal::InUse);
        }
        instance.compute.take().map(drop).ok_or(MigRefusal::NotFound)
    }

    /// Destroys an empty GPU instance.
    pub fn destroy_gpu_instance(&mut self, gpu_instance: u32) -> Result<(), MigRefusal> {
        let is_busy = self.has_processes_in(gpu_instance);
        if is_busy || self.instance_mut(gpu_instance)?.compute.is_some() {
            return Err(MigRefusal::InUse);
        }
        self.mig.iter_mut().for_each(|instances| {
            instances.retain(|instance| instance.gpu_instance != gpu_instance);
        });
        Ok(())
    }

    /// Occupied memory slices, as a bit mask.
    pub fn occupied_slices(&self) -> u32 {
        let profile_of = |instance: &MigInstance| instance.gpu_instance_profile(self.card.mig?);
        let slice_mask = |instance| Some(profile_of(instance)?.slice_mask(instance.start));
        self.mig.iter().flatten().filter_map(slice_mask).fold(0, |all, mask| all | mask)
    }

    fn instance_mut(&mut self, gpu_instance: u32) -> Result<&mut MigInstance, MigRefusal> {
        let instances = self.mig.as_mut().ok_or(MigRefusal::MigDisabled)?;
        let instance = instances.iter_mut().find(|instance| instance.gpu_instance == gpu_instance);
        instance.ok_or(MigRefusal::NotFound)
    }

    fn has_processes_in(&self, gpu_instance: u32) -> bool {
        self.live.processes.iter().any(|process| process.gpu_instance == Some(gpu_instance))
    }
}
