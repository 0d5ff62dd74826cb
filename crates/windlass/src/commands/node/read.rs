//! Configuration of `windlass node`: flags and variables override the file, which overrides defaults.

use std::path::{Path, PathBuf};

use windlass_config::{Config, ConfigDir, ConfigError, LabelFile, LabelValue, PodIdentity};
use windlass_migrate::{Format, LoadedConfig, load, without_file};

use crate::{
    cli::NodeArgs,
    commands::{apply_host, make_absolute},
};

/// Mount path of the driver root in the manifests of NVIDIA's plugin.
const NVIDIA_DRIVER_ROOT: &str = "/driver-root";

/// Loads the node's file and applies the flags.
pub(super) fn read(args: &NodeArgs, label: &LabelValue) -> Result<LoadedConfig, ConfigError> {
    let flags = args.nvidia_plugin.flags();
    let path = match &args.config_dir {
        Some(dir) => select_file(args, &ConfigDir(dir.clone()), label)?,
        None => args.host.config.clone().or_else(|| args.nvidia_plugin.file()),
    };
    let mut loaded = match path {
        Some(path) => load(&path, &flags)?,
        None => without_file(&flags)?,
    };
    let driver = &mut loaded.config.places.driver;
    let mounted_at = Path::new(NVIDIA_DRIVER_ROOT);
    if loaded.format == Format::Nvidia && driver.mounted_at.is_none() && mounted_at.is_dir() {
        driver.mounted_at = Some(mounted_at.to_owned());
    }
    apply_flags(args, &mut loaded.config);
    make_absolute(&mut loaded.config);
    Ok(loaded)
}

/// Selects a file by the node's label. While the label is unknown, its last value counts, if that file still exists.
fn select_file(
    args: &NodeArgs,
    dir: &ConfigDir,
    label: &LabelValue,
) -> Result<Option<PathBuf>, ConfigError> {
    if *label != LabelValue::Unknown {
        return dir.choose(label);
    }
    let state_dir = args
        .paths
        .state_paths
        .state_dir
        .clone()
        .unwrap_or_else(|| Config::default().places.state_dir);
    let last_label = LabelFile::new(&state_dir).load();
    dir.choose(&last_label).or_else(|_| dir.choose(label))
}

/// Applies Windlass's own flags.
fn apply_flags(args: &NodeArgs, config: &mut Config) {
    apply_host(args.host.clone(), config);
    let paths = args.paths.clone();
    for (value, flag) in [
        (
            &mut config.places.kubelet_dir,
            paths.state_paths.kubelet_dir.or_else(|| args.nvidia_plugin.kubelet_dir()),
        ),
        (&mut config.places.cdi_dir, paths.cdi_dir),
        (&mut config.places.state_dir, paths.state_paths.state_dir),
        (&mut config.places.host_root_on_node, paths.host_root_on_node),
    ] {
        if let Some(flag) = flag {
            *value = flag;
        }
    }
    config.listen = paths.listen.or(config.listen);
    config.probe_socket = paths.probe_socket.or(config.probe_socket.take());
    if let Some(disclose) = paths.disclose {
        config.disclose = disclose.into_iter().collect();
    }
    let (api_server_args, access) = (args.cluster.clone(), &mut config.cluster);
    access.kubeconfig = api_server_args.kubeconfig.or(access.kubeconfig.take());
    access.node_name = api_server_args.node_name.or(access.node_name.take());
    access.namespace = api_server_args.namespace.or(access.namespace.take());
    if let (Some(name), Some(namespace), Some(uid)) =
        (api_server_args.pod_name, api_server_args.pod_namespace, api_server_args.pod_uid)
    {
        access.pod = Some(PodIdentity { namespace, name, uid });
    }
    if let Some(strategies) = &args.device_list {
        config.policy.delivery.strategies = strategies.iter().copied().collect();
    }
}
