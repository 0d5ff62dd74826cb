//! Flags and variables of NVIDIA's device plugin, accepted by `windlass node`.

use std::{collections::BTreeSet, path::PathBuf};

use clap::{Args, Command, FromArgMatches as _, ValueEnum, builder::TypedValueParser};
use windlass_config::{AnnotationPrefix, DeviceIdStrategy, DeviceListStrategy, MigStrategy};
use windlass_core::placement;
use windlass_migrate::{HealthChecks, NvidiaPluginFlags};

use super::{device_list, word::enum_parser};

/// Flags with the names and variables of NVIDIA's plugin.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "As NVIDIA's device plugin")]
pub(crate) struct NvidiaPluginArgs {
    /// Configuration file, in the format of NVIDIA's plugin or of Windlass
    #[arg(long, value_name = "FILE", env = "CONFIG_FILE")]
    config_file: Option<String>,
    /// Resources for a GPU in MIG mode
    #[arg(long, value_name = "STRATEGY", env = "MIG_STRATEGY", value_parser = mig_strategy())]
    mig_strategy: Option<MigStrategy>,
    /// Driver root on the host
    #[arg(long, alias = "nvidia-driver-root", value_name = "DIR", env = "NVIDIA_DRIVER_ROOT")]
    driver_root: Option<PathBuf>,
    /// Root of /dev [default: the driver root, if given]
    #[arg(long, alias = "nvidia-dev-root", value_name = "DIR", env = "NVIDIA_DEV_ROOT")]
    dev_root: Option<String>,
    /// Driver root as the agent sees it
    #[arg(long, value_name = "DIR", env = "DRIVER_ROOT_CTR_PATH")]
    driver_root_ctr_path: Option<PathBuf>,
    #[arg(long, hide = true, value_name = "DIR", env = "CONTAINER_DRIVER_ROOT")]
    container_driver_root: Option<PathBuf>,
    #[command(flatten)]
    switches: Switches,
    /// Same as --device-list
    #[arg(long, value_name = "STRATEGIES", env = "DEVICE_LIST_STRATEGY", value_delimiter = ',',
          value_parser = device_list())]
    device_list_strategy: Option<Vec<DeviceListStrategy>>,
    /// Device ids for the container runtime
    #[arg(long, value_name = "STRATEGY", env = "DEVICE_ID_STRATEGY", value_parser = device_ids())]
    device_id_strategy: Option<DeviceIdStrategy>,
    /// Prefix of CDI annotation keys
    #[arg(long, value_name = "PREFIX", env = "CDI_ANNOTATION_PREFIX")]
    cdi_annotation_prefix: Option<AnnotationPrefix>,
    /// Toolkit program of CDI hooks, as a path on the host
    #[arg(long, value_name = "FILE", env = "NVIDIA_CDI_HOOK_PATH")]
    nvidia_cdi_hook_path: Option<PathBuf>,
    #[arg(long, hide = true, value_name = "FILE", env = "NVIDIA_CTK_PATH")]
    nvidia_ctk_path: Option<PathBuf>,
    /// CDI hooks to omit; `all` omits every hook
    #[arg(long, value_name = "HOOKS", env = "CDI_DISABLE_HOOKS", value_delimiter = ',')]
    cdi_disable_hooks: Option<Vec<String>>,
    /// Folder of the MPS daemons' pipes and logs
    #[arg(long, value_name = "DIR", env = "MPS_ROOT")]
    mps_root: Option<String>,
    /// Order in which shared devices are filled
    #[arg(long, value_name = "POLICY", env = "SHARED_DEVICES_ALLOCATION_POLICY",
          value_parser = allocation_policy())]
    shared_devices_allocation_policy: Option<placement::Policy>,
    /// IMEX channels to give to every container
    #[arg(long, value_name = "NUMBERS", env = "IMEX_CHANNEL_IDS", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(..2048))]
    imex_channel_ids: Option<Vec<u32>>,
    /// Kubelet socket, in the folder device-plugins of the kubelet's folder
    #[arg(long, value_name = "FILE", env = "KUBELET_SOCKET", value_parser = kubelet_dir)]
    kubelet_socket: Option<KubeletDir>,
    /// XIDs to ignore: numbers, or all
    #[arg(long, value_name = "XIDS", env = "DP_DISABLE_HEALTHCHECKS", value_parser = xids)]
    disable_healthchecks: Option<String>,
    /// XIDs that always make a GPU unhealthy: numbers, or all
    #[arg(long, value_name = "XIDS", env = "DP_ENABLE_HEALTHCHECKS", value_parser = xids)]
    enable_healthchecks: Option<String>,
    /// No effect: discovery uses NVML
    #[arg(long, value_name = "STRATEGY", env = "DEVICE_DISCOVERY_STRATEGY")]
    device_discovery_strategy: Option<DiscoveryArg>,
    /// No effect: the flags tune NVIDIA's CDI generator, which Windlass does not use
    #[arg(long, value_name = "FLAGS", env = "CDI_FEATURE_FLAGS", value_delimiter = ',')]
    cdi_feature_flags: Option<Vec<String>>,
}

/// Boolean flags.
#[derive(Args, Clone, Debug)]
struct Switches {
    /// Pass device nodes through the kubelet as well
    #[arg(long, value_name = "BOOL", env = "PASS_DEVICE_SPECS", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pass_device_specs: Option<bool>,
    /// Give GPUDirect Storage to containers
    #[arg(long, value_name = "BOOL", env = "GDS_ENABLED", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    gds_enabled: Option<bool>,
    /// Give Mellanox OFED to containers
    #[arg(long, value_name = "BOOL", env = "MOFED_ENABLED", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    mofed_enabled: Option<bool>,
    /// Give GDRCopy to containers
    #[arg(long, value_name = "BOOL", env = "GDRCOPY_ENABLED", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    gdrcopy_enabled: Option<bool>,
    /// Withhold GPUs while an IMEX channel is missing
    #[arg(long, value_name = "BOOL", env = "IMEX_REQUIRED", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    imex_required: Option<bool>,
    /// No effect: without a driver the agent waits and logs it
    #[arg(long, value_name = "BOOL", env = "FAIL_ON_INIT_ERROR", num_args = 0..=1,
          require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    fail_on_init_error: Option<bool>,
}

fn mig_strategy() -> impl TypedValueParser<Value = MigStrategy> {
    enum_parser([
        ("none", MigStrategy::None, "The whole GPU"),
        ("single", MigStrategy::Single, "Its instances, under the resource of whole GPUs"),
        ("mixed", MigStrategy::Mixed, "Its instances, one resource per MIG profile"),
    ])
}

fn device_ids() -> impl TypedValueParser<Value = DeviceIdStrategy> {
    enum_parser([
        ("uuid", DeviceIdStrategy::Uuid, "By UUID"),
        ("index", DeviceIdStrategy::Index, "By position"),
    ])
}

fn allocation_policy() -> impl TypedValueParser<Value = placement::Policy> {
    enum_parser([
        ("distributed", placement::Policy::Distributed, "Least used devices first"),
        ("packed", placement::Policy::Packed, "Most used devices first"),
    ])
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum DiscoveryArg {
    Auto,
    Nvml,
    Tegra,
}

/// Kubelet folder, derived from its socket.
#[derive(Clone, Debug)]
struct KubeletDir(PathBuf);

// === impl NvidiaPluginArgs ===

impl NvidiaPluginArgs {
    /// Configuration file of `--config-file`.
    pub(crate) fn file(&self) -> Option<PathBuf> {
        self.config_file.as_ref().filter(|file| !file.is_empty()).map(PathBuf::from)
    }

    /// Kubelet folder, derived from `--kubelet-socket`.
    pub(crate) fn kubelet_dir(&self) -> Option<PathBuf> {
        self.kubelet_socket.as_ref().map(|KubeletDir(dir)| dir.clone())
    }

    /// Reads the environment variables only, for commands without these flags.
    pub(crate) fn from_environment() -> Result<Self, clap::Error> {
        let command = super::without_empty_variables(Self::augment_args(Command::new("windlass")));
        Self::from_arg_matches(&command.try_get_matches_from(["windlass"])?)
    }

    /// Values of all flags, for the conversion to Windlass's configuration.
    pub(crate) fn flags(&self) -> NvidiaPluginFlags {
        let args = self.clone();
        let lists = args.device_list_strategy;
        let (disabled, enabled) = (args.disable_healthchecks, args.enable_healthchecks);
        let health = HealthChecks::new(disabled.as_deref(), enabled.as_deref());
        NvidiaPluginFlags {
            mig: args.mig_strategy,
            driver_root: args.driver_root,
            dev_root: args.dev_root.map(Into::into),
            driver_mounted_at: args.driver_root_ctr_path.or(args.container_driver_root),
            pass_device_specs: args.switches.pass_device_specs,
            device_lists: lists.map(|list| list.into_iter().collect()),
            device_ids: args.device_id_strategy,
            gds: args.switches.gds_enabled,
            mofed: args.switches.mofed_enabled,
            gdrcopy: args.switches.gdrcopy_enabled,
            annotation_prefix: args.cdi_annotation_prefix,
            hook_program: args.nvidia_cdi_hook_path.or(args.nvidia_ctk_path),
            disabled_hooks: args.cdi_disable_hooks.map(non_empty),
            mps_root: args.mps_root.filter(|root| !root.is_empty()).map(Into::into),
            placement: args.shared_devices_allocation_policy,
            imex_channels: args.imex_channel_ids.map(|ids| ids.into_iter().collect()),
            imex_required: args.switches.imex_required,
            health: health.expect("both lists were checked when they were parsed"),
        }
    }
}

/// A list without its empty words.
fn non_empty(list: Vec<String>) -> BTreeSet<String> {
    list.into_iter().filter(|word| !word.is_empty()).collect()
}

/// Parses a boolean as Go does; an empty variable is false.
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
        "write a path that ends with /device-plugins/kubelet.sock: the agent registers with that kubelet"
            .to_owned()
    })
}
