//! The flags and variables of NVIDIA's device plugin, as `windlass node` takes them.

use std::{collections::BTreeSet, path::PathBuf};

use clap::{Args, Command, FromArgMatches as _, ValueEnum};
use windlass_config::{AnnotationPrefix, DeviceIds, MigStrategy};
use windlass_core::placement;
use windlass_migrate::{HealthChecks, PeerFlags};

use super::DeviceListArg;

/// The plugin's flags, with its names and variables.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "As NVIDIA's device plugin")]
pub(crate) struct PeerArgs {
    /// Configuration file, in either format
    #[arg(long, value_name = "FILE", env = "CONFIG_FILE")]
    config_file: Option<String>,
    /// What a GPU in MIG mode is offered as
    #[arg(long, value_name = "STRATEGY", env = "MIG_STRATEGY")]
    mig_strategy: Option<MigArg>,
    /// The driver's root, as the host names it
    #[arg(long, alias = "nvidia-driver-root", value_name = "DIR", env = "NVIDIA_DRIVER_ROOT")]
    driver_root: Option<PathBuf>,
    /// The root that /dev lies under [default: the driver's root, if that is given]
    #[arg(long, alias = "nvidia-dev-root", value_name = "DIR", env = "NVIDIA_DEV_ROOT")]
    dev_root: Option<String>,
    /// Where the agent finds the driver's root
    #[arg(long, value_name = "DIR", env = "DRIVER_ROOT_CTR_PATH")]
    driver_root_ctr_path: Option<PathBuf>,
    #[arg(long, hide = true, value_name = "DIR", env = "CONTAINER_DRIVER_ROOT")]
    container_driver_root: Option<PathBuf>,
    #[command(flatten)]
    switches: Switches,
    /// The same as --device-list
    #[arg(long, value_name = "HOW", env = "DEVICE_LIST_STRATEGY", value_delimiter = ',')]
    device_list_strategy: Option<Vec<DeviceListArg>>,
    /// What devices are called towards the runtime
    #[arg(long, value_name = "HOW", env = "DEVICE_ID_STRATEGY")]
    device_id_strategy: Option<IdArg>,
    /// What the keys of CDI annotations begin with
    #[arg(long, value_name = "PREFIX", env = "CDI_ANNOTATION_PREFIX")]
    cdi_annotation_prefix: Option<AnnotationPrefix>,
    /// The toolkit's program that CDI hooks call, as the host names it
    #[arg(long, value_name = "FILE", env = "NVIDIA_CDI_HOOK_PATH")]
    nvidia_cdi_hook_path: Option<PathBuf>,
    #[arg(long, hide = true, value_name = "FILE", env = "NVIDIA_CTK_PATH")]
    nvidia_ctk_path: Option<PathBuf>,
    /// CDI hooks that are left out; all leaves out every one
    #[arg(long, value_name = "HOOKS", env = "CDI_DISABLE_HOOKS", value_delimiter = ',')]
    cdi_disable_hooks: Option<Vec<String>>,
    /// Where MPS daemons have their pipes and logs
    #[arg(long, value_name = "DIR", env = "MPS_ROOT")]
    mps_root: Option<String>,
    /// Which shared devices are filled first
    #[arg(long, value_name = "POLICY", env = "SHARED_DEVICES_ALLOCATION_POLICY")]
    shared_devices_allocation_policy: Option<AllocationArg>,
    /// IMEX channels that every container gets
    #[arg(long, value_name = "NUMBERS", env = "IMEX_CHANNEL_IDS", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(..2048))]
    imex_channel_ids: Option<Vec<u32>>,
    /// The kubelet's socket, in the folder device-plugins of the kubelet's folder
    #[arg(long, value_name = "FILE", env = "KUBELET_SOCKET", value_parser = kubelet_dir)]
    kubelet_socket: Option<KubeletDir>,
    /// XIDs that do not count: numbers, or all
    #[arg(long, value_name = "XIDS", env = "DP_DISABLE_HEALTHCHECKS", value_parser = xids)]
    disable_healthchecks: Option<String>,
    /// XIDs that count in any case: numbers, or all
    #[arg(long, value_name = "XIDS", env = "DP_ENABLE_HEALTHCHECKS", value_parser = xids)]
    enable_healthchecks: Option<String>,
    /// No effect: NVML is asked
    #[arg(long, value_name = "STRATEGY", env = "DEVICE_DISCOVERY_STRATEGY")]
    device_discovery_strategy: Option<DiscoveryArg>,
    /// No effect: they tune a generator that is not used here
    #[arg(long, value_name = "FLAGS", env = "CDI_FEATURE_FLAGS", value_delimiter = ',')]
    cdi_feature_flags: Option<Vec<String>>,
}

/// Flags that are on or off.
#[derive(Args, Clone, Debug)]
struct Switches {
    /// Whether device nodes go through the kubelet as well
    #[arg(long, value_name = "BOOL", env = "PASS_DEVICE_SPECS", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pass_device_specs: Option<bool>,
    /// Whether containers get GPUDirect Storage
    #[arg(long, value_name = "BOOL", env = "GDS_ENABLED", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    gds_enabled: Option<bool>,
    /// Whether containers get Mellanox OFED
    #[arg(long, value_name = "BOOL", env = "MOFED_ENABLED", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    mofed_enabled: Option<bool>,
    /// Whether containers get GDRCopy
    #[arg(long, value_name = "BOOL", env = "GDRCOPY_ENABLED", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    gdrcopy_enabled: Option<bool>,
    /// Whether GPUs are kept back while an IMEX channel is missing
    #[arg(long, value_name = "BOOL", env = "IMEX_REQUIRED", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    imex_required: Option<bool>,
    /// No effect: without a driver the agent waits, and says so
    #[arg(long, value_name = "BOOL", env = "FAIL_ON_INIT_ERROR", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    fail_on_init_error: Option<bool>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MigArg {
    /// The whole GPU
    None,
    /// Its instances, under the name of whole GPUs
    Single,
    /// Its instances, each under the name of its profile
    Mixed,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IdArg {
    /// By UUID
    Uuid,
    /// By position
    Index,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum AllocationArg {
    /// Those with the fewest replicas in use
    Distributed,
    /// Those with the most replicas in use
    Packed,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DiscoveryArg {
    Auto,
    Nvml,
    Tegra,
}

/// The folder that a kubelet's socket belongs to.
#[derive(Clone, Debug)]
struct KubeletDir(PathBuf);

// === impl PeerArgs ===

impl PeerArgs {
    /// The plugin's own flag for a configuration file.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        self.config_file.as_ref().filter(|file| !file.is_empty()).map(PathBuf::from)
    }

    /// The kubelet's folder, from its socket.
    pub(crate) fn kubelet_dir(&self) -> Option<PathBuf> {
        self.kubelet_socket.as_ref().map(|KubeletDir(dir)| dir.clone())
    }

    /// What the variables alone say, for commands that take none of the flags.
    pub(crate) fn of_environment() -> Result<Self, clap::Error> {
        let command = super::without_empty_variables(Self::augment_args(Command::new("windlass")));
        Self::from_arg_matches(&command.try_get_matches_from(["windlass"])?)
    }

    /// What is given, as values.
    pub(crate) fn flags(&self) -> PeerFlags {
        let given = self.clone();
        let lists = given.device_list_strategy;
        let (disabled, enabled) = (given.disable_healthchecks, given.enable_healthchecks);
        let health = HealthChecks::new(disabled.as_deref(), enabled.as_deref());
        PeerFlags {
            mig: given.mig_strategy.map(Into::into),
            driver_root: given.driver_root,
            dev_root: given.dev_root.map(Into::into),
            driver_mounted_at: given.driver_root_ctr_path.or(given.container_driver_root),
            pass_device_specs: given.switches.pass_device_specs,
            device_lists: lists.map(|all| all.into_iter().map(Into::into).collect()),
            device_ids: given.device_id_strategy.map(Into::into),
            gds: given.switches.gds_enabled,
            mofed: given.switches.mofed_enabled,
            gdrcopy: given.switches.gdrcopy_enabled,
            annotation_prefix: given.cdi_annotation_prefix,
            hook_program: given.nvidia_cdi_hook_path.or(given.nvidia_ctk_path),
            disabled_hooks: given.cdi_disable_hooks.map(words),
            mps_root: given.mps_root.filter(|root| !root.is_empty()).map(Into::into),
            placement: given.shared_devices_allocation_policy.map(Into::into),
            imex_channels: given.imex_channel_ids.map(|ids| ids.into_iter().collect()),
            imex_required: given.switches.imex_required,
            health: health.expect("both lists were checked when they were parsed"),
        }
    }
}

/// A list without its empty words.
fn words(list: Vec<String>) -> BTreeSet<String> {
    list.into_iter().filter(|word| !word.is_empty()).collect()
}

/// What Go takes for a truth value; an empty variable is false.
fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

fn xids(text: &str) -> Result<String, String> {
    HealthChecks::new(Some(text), None).map(|_| text.to_owned())
}

fn kubelet_dir(text: &str) -> Result<KubeletDir, String> {
    let dir = text.strip_suffix("/device-plugins/kubelet.sock").map(PathBuf::from);
    dir.map(KubeletDir).ok_or_else(|| {
        "write a path that ends with /device-plugins/kubelet.sock: the agent serves that kubelet, and \
         always registers"
            .to_owned()
    })
}

impl From<MigArg> for MigStrategy {
    fn from(arg: MigArg) -> Self {
        match arg {
            MigArg::None => Self::None,
            MigArg::Single => Self::Single,
            MigArg::Mixed => Self::Mixed,
        }
    }
}

impl From<IdArg> for DeviceIds {
    fn from(arg: IdArg) -> Self {
        match arg {
            IdArg::Uuid => Self::Uuid,
            IdArg::Index => Self::Index,
        }
    }
}

impl From<AllocationArg> for placement::Policy {
    fn from(arg: AllocationArg) -> Self {
        match arg {
            AllocationArg::Distributed => Self::Distributed,
            AllocationArg::Packed => Self::Packed,
        }
    }
}
