//! Creation and destruction of single instances, with the driver's rules.

use super::GpuInstanceProfile;
use crate::state::{ComputeInstance, Gpu, MigInstance};

/// Reason why the driver refuses to create or destroy an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MigRefusal {
    /// MIG is off, or the card lacks MIG.
    #[error("MIG is off")]
    MigDisabled,
    /// The shape cannot start at this slice.
    #[error("an instance of that shape cannot start there")]
    InvalidPlacement,
    /// Other instances occupy the slices, or the shape reached its limit.
    #[error("there is no room left")]
    InsufficientResources,
    /// A process or a compute instance uses the instance.
    #[error("the instance is in use")]
    InUse,
    /// The instance does not exist.
    #[error("there is no such instance")]
    NotFound,
}

/// Lowest free id for an instance of a shape.
pub(crate) fn free_id(shape: GpuInstanceProfile, instances: &[MigInstance]) -> u32 {
    let free = |id: &u32| instances.iter().all(|one| one.gpu_instance != *id);
    let mut ids = (shape.first_instance_id()..).take(instances.len() + 1);
    ids.find(free).expect("there is one id more than there are instances")
}

// === impl Gpu ===

impl Gpu {
    /// Creates a GPU instance at a memory slice, or at the first free one. Returns its id.
    pub fn create_gpu_instance(
        &mut self,
        shape: GpuInstanceProfile,
        start: Option<u32>,
    ) -> Result<u32, MigRefusal> {
        let capability = self.card.mig.ok_or(MigRefusal::MigDisabled)?;
        let instances = self.mig.as_deref().ok_or(MigRefusal::MigDisabled)?;
        if start.is_some_and(|start| !shape.possible_starts.contains(&start)) {
            return Err(MigRefusal::InvalidPlacement);
        }
        let same_shape = instances.iter().filter(|one| one.profile_id == shape.profile_id).count();
        let taken = self.occupied_slices();
        let free = |at: &&u32| {
            start.is_none_or(|start| start == **at) && shape.slice_mask(**at) & taken == 0
        };
        let start = shape
            .possible_starts
            .iter()
            .find(free)
            .filter(|_| same_shape < shape.max_instances() as usize);
        let start = *start.ok_or(MigRefusal::InsufficientResources)?;
        let gpu_instance = free_id(shape, instances);
        self.mig.as_mut().ok_or(MigRefusal::MigDisabled)?.push(MigInstance {
            profile: shape.name(capability),
            profile_id: shape.profile_id,
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
        self.mig.iter_mut().for_each(|all| all.retain(|one| one.gpu_instance != gpu_instance));
        Ok(())
    }

    /// Occupied memory slices, as a bit mask.
    pub fn occupied_slices(&self) -> u32 {
        let shape = |one: &MigInstance| one.gpu_instance_profile(self.card.mig?);
        let taken = |one| Some(shape(one)?.slice_mask(one.start));
        self.mig.iter().flatten().filter_map(taken).fold(0, |all, one| all | one)
    }

    fn instance_mut(&mut self, gpu_instance: u32) -> Result<&mut MigInstance, MigRefusal> {
        let instances = self.mig.as_mut().ok_or(MigRefusal::MigDisabled)?;
        let found = instances.iter_mut().find(|one| one.gpu_instance == gpu_instance);
        found.ok_or(MigRefusal::NotFound)
    }

    fn has_processes_in(&self, gpu_instance: u32) -> bool {
        self.live.processes.iter().any(|process| process.gpu_instance == Some(gpu_instance))
    }
}
