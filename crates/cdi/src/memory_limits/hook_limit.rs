//! Memory limit of a container by the driver or the kernel: its record, and the runtime hook that sets it.

use std::path::{Path, PathBuf};

use windlass_config::Policy;
use windlass_core::{
    cdi::Hook,
    device::{Device, DeviceId},
    enforcement::{self, Enforcement},
    memory_limit::MemoryLimitRecord,
};

use super::{GpuMemory, LimitSupport};

/// Rules for the memory of containers on shared GPUs: the configuration, and the means of the node.
#[derive(Clone, Copy, Debug)]
pub struct LimitRules<'a> {
    /// The configuration.
    pub policy: &'a Policy,
    /// Means of the node to enforce limits.
    pub support: &'a LimitSupport,
}

/// A limit that the hook sets before the container's first instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookLimit {
    /// The hook's record.
    pub record: MemoryLimitRecord,
    /// Path of the record.
    path: PathBuf,
    /// Path of the hook on the host.
    hook: PathBuf,
    /// Number of replicas, each with the record's memory. `None` if the record has the limit of the container.
    replicas: Option<u32>,
}

/// Reason why a container may not start: the enforcement of its memory limit would be weaker than required.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WeakLimitError {
    /// The best limit on this node is too weak.
    #[error(
        "`{required_limit}` is required by {required_by}, and the best limit of its memory is `{strongest}`: {reason}"
    )]
    TooWeak {
        /// The best limit.
        strongest: Enforcement,
        /// The weakest limit that is allowed.
        required_limit: Enforcement,
        /// The configuration key or annotation that requires it.
        required_by: &'static str,
        /// Reason why no stronger limit is possible.
        reason: String,
    },
    /// The abilities of the driver are unknown, because it is being initialised.
    #[error("support of memory limits is not known yet: it is checked again within ten seconds")]
    SupportUnknown,
    /// The container requests no memory, so that its use of memory cannot be limited.
    #[error(
        "`{required_limit}` is required by {required_by}, but without a request for memory nothing can be limited: \
         request memory too"
    )]
    NoMemoryRequest {
        /// The weakest limit that is allowed.
        required_limit: Enforcement,
        /// The configuration key or annotation that requires it.
        required_by: &'static str,
    },
}

/// The weakest limit that is allowed, and the key or annotation that requires it.
#[derive(Clone, Copy)]
struct Requirement {
    limit: Enforcement,
    source: &'static str,
}

/// Key of the configuration with the weakest limit.
const AT_LEAST_KEY: &str = "memoryLimits.atLeast";

/// Keys of the configuration with the method of sharing.
const METHOD_KEYS: &str = "the method of `sharing` or `dra.shares`";

/// Reason why the limit of an MPS daemon is a weak one.
const MPS_CAN_BE_BYPASSED: &str =
    "an MPS daemon limits it, and a program can run without the daemon";

/// Reason why the driver's limit is weaker than a MIG instance.
const NOT_ISOLATED: &str =
    "it shares a GPU: only a MIG instance of its own is kept apart by the hardware";

/// Reason why there is no limit by a driver, for a GPU of another vendor than NVIDIA.
const BY_KERNEL: &str = "the kernel's controller dmem limits it, and no driver does";

/// Reason why there is no limit by the hook, if containers get their devices without CDI.
const NO_CDI: &str = "the hook takes CDI: add cdi-cri to deviceList";

/// Stage of OCI hooks at which a container has its control group, but has not started.
const HOOK_STAGE: &str = "createRuntime";

/// Seconds after which the runtime ends the hook. The hook takes milliseconds, but a driver may hang.
const HOOK_TIMEOUT_SECONDS: i64 = 30;

// === impl LimitRules ===

impl LimitRules<'_> {
    /// The strongest enforcement of memory limits that this node has for a device shared by time slices.
    pub fn strongest_for(&self, device: &Device) -> Enforcement {
        let drm_address = device.drm_pci_address();
        if drm_address.is_none() && (!device.family().has_nvml || device.partitioned) {
            return Enforcement::None;
        }
        let hook_enforcement = self.hook().and_then(|_| self.support.hook_enforcement(drm_address));
        hook_enforcement
            .unwrap_or_else(|_| self.support.enforcement_without_hook(self.policy, drm_address))
    }

    /// Limit by the driver or the kernel for a container with parts of these GPUs. `None` if no part needs a limit,
    /// or if none is possible and the rules accept that. `at_least` is the weakest limit that the pod's annotation
    /// accepts, and `path` is the path of the record.
    pub fn limit(
        &self,
        gpus: &[GpuMemory],
        at_least: Enforcement,
        path: &Path,
    ) -> Result<Option<HookLimit>, WeakLimitError> {
        let required = self.required(gpus, at_least);
        if required.limit > Enforcement::None && gpus.iter().any(|gpu| gpu.limit_mib == 0) {
            return Err(WeakLimitError::NoMemoryRequest {
                required_limit: required.limit,
                required_by: required.source,
            });
        }
        let parts = || gpus.iter().filter(|gpu| gpu.is_part());
        if parts().any(|gpu| gpu.is_by_mps) {
            required.check(Enforcement::Mps, MPS_CAN_BE_BYPASSED)?;
        }
        let mut limited_gpus: Vec<_> = parts().filter(|gpu| !gpu.is_by_mps).collect();
        if limited_gpus.is_empty() {
            return Ok(None);
        }
        let limit_result = self.hook().and_then(|hook| {
            let record = self.support.record(&limited_gpus)?;
            Ok(HookLimit { record, path: path.to_owned(), hook, replicas: None })
        });
        let is_known = limited_gpus.iter().all(|gpu| self.support.is_known(gpu));
        if self.policy.memory_limits.hook.is_some() && !is_known {
            return Err(WeakLimitError::SupportUnknown);
        }
        let is_by_kernel = limited_gpus.iter().any(|gpu| gpu.drm_address.is_some());
        let (strongest, reason) = if is_by_kernel {
            (Enforcement::Dmem, BY_KERNEL)
        } else {
            (Enforcement::Driver, NOT_ISOLATED)
        };
        match limit_result {
            Ok(limit) => required.check(strongest, reason).map(|()| Some(limit)),
            Err(error) => {
                let drm_address = limited_gpus.iter().find_map(|gpu| gpu.drm_address);
                let enforcement = self.support.enforcement_without_hook(self.policy, drm_address);
                required.check(enforcement, &error)?;
                // The rules accept a weaker limit. The GPUs that can be limited still are.
                limited_gpus.retain(|gpu| self.support.record(&[*gpu]).is_ok());
                let record =
                    self.support.record(&limited_gpus).ok().filter(|_| !limited_gpus.is_empty());
                let limit = |(record, hook)| HookLimit {
                    record,
                    path: path.to_owned(),
                    hook,
                    replicas: None,
                };
                Ok(record.zip(self.hook().ok()).map(limit))
            }
        }
    }

    /// The limit of a container with this many replicas of a GPU, as [`Self::limit`].
    pub fn limit_of_replicas(
        &self,
        replica: &GpuMemory,
        replicas: u32,
        path: &Path,
    ) -> Result<Option<HookLimit>, WeakLimitError> {
        if !self.policy.delivery.uses_cdi() {
            let required = self.required(std::slice::from_ref(replica), Enforcement::None);
            let strongest = if replica.is_by_mps {
                Enforcement::Mps
            } else {
                self.support.enforcement_without_hook(self.policy, replica.drm_address)
            };
            return required.check(strongest, NO_CDI).map(|()| None);
        }
        // The replicas together need a limit unless they have the whole GPU. The record has the limit of one replica.
        if !replica.multiplied_by(replicas).is_part() {
            return Ok(None);
        }
        let limit = self.limit(std::slice::from_ref(replica), Enforcement::None, path)?;
        Ok(limit.map(|limit| HookLimit { replicas: Some(replicas), ..limit }))
    }

    /// The strongest limit that the configuration, the method of sharing, or the pod requires.
    fn required(&self, gpus: &[GpuMemory], at_least: Enforcement) -> Requirement {
        let configured_limit = self.policy.memory_limits.at_least.enforcement();
        let method_limit = gpus.iter().map(|gpu| gpu.required).max().unwrap_or_default();
        let requirements = [
            Requirement { limit: at_least, source: enforcement::ANNOTATION },
            Requirement { limit: method_limit, source: METHOD_KEYS },
            Requirement { limit: configured_limit, source: AT_LEAST_KEY },
        ];
        requirements
            .into_iter()
            .max_by_key(|required| required.limit)
            .expect("there are three requirements")
    }

    /// Path of the hook, or the reason why it cannot set limits.
    fn hook(&self) -> Result<PathBuf, String> {
        let hook = self.policy.memory_limits.hook.clone();
        hook.ok_or_else(|| "memoryLimits.hook is not set".to_owned())
    }
}

// === impl Requirement ===

impl Requirement {
    /// Fails if this limit is too weak. `reason` is the reason why there is no stronger one.
    fn check(self, strongest: Enforcement, reason: &str) -> Result<(), WeakLimitError> {
        let Self { limit, source: required_by } = self;
        if strongest >= limit {
            Ok(())
        } else {
            Err(WeakLimitError::TooWeak {
                strongest,
                required_limit: limit,
                required_by,
                reason: reason.to_owned(),
            })
        }
    }
}

// === impl HookLimit ===

impl HookLimit {
    /// True if the record limits memory of this GPU.
    pub fn limits_gpu(&self, gpu: &DeviceId) -> bool {
        self.record.gpus().iter().any(|limit| limit.uuid == gpu.as_str())
    }

    /// The hook, for the container's document.
    pub fn hook(&self) -> Hook {
        let program = self.hook.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let record = self.path.to_string_lossy().into_owned();
        let mut args = vec![program, "memory-limit".to_owned(), "--record".to_owned(), record];
        if let Some(replicas) = self.replicas {
            args.extend(["--replicas".to_owned(), replicas.to_string()]);
        }
        Hook {
            hook_name: HOOK_STAGE.to_owned(),
            path: self.hook.clone(),
            args,
            env: Vec::new(),
            timeout: Some(HOOK_TIMEOUT_SECONDS),
        }
    }
}

#[cfg(test)]
mod tests {
    use windlass_config::{
        Delivery, DeviceListStrategy, MemoryLimitPolicy, RequiredLimit, WatchdogAction,
        WatchdogPolicy,
    };
    use windlass_host::{
        Host,
        dmem::{DmemController, DmemUnavailable},
    };

    use super::{
        super::{MemoryLimitPaths, NoMemoryLimits},
        *,
    };

    fn policy(at_least: RequiredLimit) -> Policy {
        let hook = Some("/opt/windlass-hook".into());
        Policy { memory_limits: MemoryLimitPolicy { hook, at_least }, ..Policy::default() }
    }

    fn support_with(driver: Result<(), NoMemoryLimits>) -> LimitSupport {
        let paths = MemoryLimitPaths {
            library: "/usr/lib64/libnvidia-ml.so.1".into(),
            cgroups: "/sys/fs/cgroup".into(),
        };
        LimitSupport {
            driver: Some(driver.map(|()| paths)),
            dmem: Some(Err(DmemUnavailable::NoController)),
            shows_processes: true,
            shows_open_files: true,
        }
    }

    fn ten_of_eighty() -> GpuMemory {
        let device = "GPU-a".parse().expect("an id");
        GpuMemory {
            device,
            limit_mib: 10 << 10,
            total_mib: 80 << 10,
            is_by_mps: false,
            required: Enforcement::None,
            drm_address: None,
        }
    }

    /// Limits of one, two and eight replicas: true for a limit, false for none, or the reason why they may not start.
    fn replicas(
        policy: &Policy,
        support: &LimitSupport,
        replica: &GpuMemory,
    ) -> [Result<bool, String>; 3] {
        let rules = LimitRules { policy, support };
        [1, 2, 8].map(|replicas| {
            let limit = rules.limit_of_replicas(replica, replicas, Path::new("/r/GPU-a.json"));
            limit.map(|limit| limit.is_some()).map_err(|error| error.to_string())
        })
    }

    #[test]
    fn the_whole_gpu_needs_no_limit_and_a_part_gets_the_best_one() {
        let replica = ten_of_eighty();
        let limited = replicas(&policy(RequiredLimit::Driver), &support_with(Ok(())), &replica);
        assert_eq!(limited, [Ok(true), Ok(true), Ok(false)]);
        let old_driver = support_with(Err(NoMemoryLimits::OldDriver));
        assert_eq!(
            replicas(&policy(RequiredLimit::None), &old_driver, &replica),
            [const { Ok(false) }; 3]
        );
        let [one, _, all] = replicas(&policy(RequiredLimit::Driver), &old_driver, &replica);
        let expected = "`driver` is required by memoryLimits.atLeast, and the best limit of its memory is `none`: \
                        NVIDIA's driver limits no memory: it has to be 615 or newer";
        assert_eq!((one, all), (Err(expected.to_owned()), Ok(false)));
        let watchdog = WatchdogPolicy { action: WatchdogAction::Kill, ..WatchdogPolicy::default() };
        let watched_policy = Policy { watchdog, ..policy(RequiredLimit::Watched) };
        assert_eq!(replicas(&watched_policy, &old_driver, &replica), [const { Ok(false) }; 3]);
    }

    #[test]
    fn no_part_starts_without_a_limit_while_the_driver_is_being_initialised() {
        for support in [LimitSupport::default(), support_with(Err(NoMemoryLimits::NoDriver))] {
            let [one, ..] = replicas(&policy(RequiredLimit::None), &support, &ten_of_eighty());
            assert!(one.expect_err("unknown").contains("is not known yet"));
            let without_hook = Policy::default();
            let [one, ..] = replicas(&without_hook, &support, &ten_of_eighty());
            assert_eq!(one, Ok(false));
        }
    }

    #[test]
    fn a_daemon_and_another_delivery_are_weaker_than_the_driver() {
        let by_mps = GpuMemory { is_by_mps: true, ..ten_of_eighty() };
        let [one, ..] = replicas(&policy(RequiredLimit::Driver), &support_with(Ok(())), &by_mps);
        assert!(one.expect_err("weaker").contains("`mps`: an MPS daemon limits it"));
        let [one, ..] = replicas(&policy(RequiredLimit::Watched), &support_with(Ok(())), &by_mps);
        assert_eq!(one, Ok(false), "the daemon limits it");
        let delivery =
            Delivery { strategies: [DeviceListStrategy::Envvar].into(), ..Delivery::default() };
        let policy = Policy { delivery, ..policy(RequiredLimit::Driver) };
        let [one, ..] = replicas(&policy, &support_with(Ok(())), &ten_of_eighty());
        assert!(one.expect_err("no hook").contains("add cdi-cri to deviceList"));
    }

    /// Support of a node whose kernel limits the GPU at 0000:03:00.0.
    fn kernel_support() -> LimitSupport {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/");
        let folder = host.path("/sys/fs/cgroup");
        std::fs::create_dir_all(&folder).expect("made");
        for (file, text) in [
            ("cgroup.controllers", "memory dmem\n"),
            ("dmem.capacity", "drm/0000:03:00.0/vram 85899345920\n"),
        ] {
            std::fs::write(folder.join(file), text).expect("written");
        }
        let dmem = Some(DmemController::find(&host));
        LimitSupport { dmem, ..support_with(Err(NoMemoryLimits::NoDriver)) }
    }

    #[test]
    fn the_kernel_limits_gpus_of_other_vendors_by_their_region() {
        let pci_address = |address: &str| Some(address.parse().expect("an address"));
        let replica = GpuMemory { drm_address: pci_address("0000:03:00.0"), ..ten_of_eighty() };
        for at_least in [RequiredLimit::None, RequiredLimit::Watched, RequiredLimit::Dmem] {
            let limits = replicas(&policy(at_least), &kernel_support(), &replica);
            assert_eq!(limits, [Ok(true), Ok(true), Ok(false)], "{at_least:?}");
        }
        let (policy_of_none, kernel) = (policy(RequiredLimit::None), kernel_support());
        let rules = LimitRules { policy: &policy_of_none, support: &kernel };
        let limit = rules.limit_of_replicas(&replica, 2, Path::new("/r/amd-a.json"));
        let limit = limit.expect("allowed").expect("a limit");
        assert_eq!(limit.record.library(), None);
        let region = limit.record.gpus()[0].region.as_ref().expect("a region");
        assert_eq!(region.as_str(), "drm/0000:03:00.0/vram");
        let [one, ..] = replicas(&policy(RequiredLimit::Driver), &kernel, &replica);
        assert!(
            one.expect_err("weaker").contains("`dmem`: the kernel's controller dmem limits it")
        );
        let other = GpuMemory { drm_address: pci_address("0000:04:00.0"), ..replica.clone() };
        assert_eq!(
            replicas(&policy(RequiredLimit::None), &kernel, &other),
            [const { Ok(false) }; 3]
        );
        let [one, ..] = replicas(&policy(RequiredLimit::Dmem), &kernel, &other);
        assert!(
            one.expect_err("none").contains("`none`: the kernel's controller dmem has no region")
        );
        let old_kernel = support_with(Ok(()));
        let [one, ..] = replicas(&policy(RequiredLimit::Dmem), &old_kernel, &replica);
        assert!(one.expect_err("none").contains("it has to be 6.14 or newer"));
        let [one, ..] = replicas(&policy(RequiredLimit::None), &LimitSupport::default(), &replica);
        assert!(one.expect_err("unknown").contains("is not known yet"));
    }

    #[test]
    fn the_error_names_the_requirement() {
        let (policy, support) = (policy(RequiredLimit::Watched), support_with(Ok(())));
        let rules = LimitRules { policy: &policy, support: &support };
        let gpus = [ten_of_eighty()];
        let limit = |at_least| rules.limit(&gpus, at_least, Path::new("/r/a.json"));
        assert!(limit(Enforcement::Driver).is_ok_and(|limit| limit.is_some()));
        let error = limit(Enforcement::Mig).expect_err("weaker").to_string();
        assert!(error.starts_with("`mig` is required by windlass.dev/enforcement"), "{error}");
        let by_method = [GpuMemory { required: Enforcement::Driver, ..ten_of_eighty() }];
        let old_driver = support_with(Err(NoMemoryLimits::OldDriver));
        let error = LimitRules { support: &old_driver, ..rules }.limit(
            &by_method,
            Enforcement::None,
            Path::new("/r/a.json"),
        );
        let error = error.expect_err("weaker").to_string();
        assert!(error.starts_with("`driver` is required by the method of `sharing`"), "{error}");
        let no_request = [GpuMemory { limit_mib: 0, ..ten_of_eighty() }];
        let error = rules.limit(&no_request, Enforcement::None, Path::new("/r/a.json"));
        let error = error.expect_err("no memory").to_string();
        assert!(error.starts_with("`watched` is required by memoryLimits.atLeast"), "{error}");
    }
}
