//! Command line of `windlass config`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use windlass_config::DeviceProfile;

use super::OutputArg;

#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    pub(crate) command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Report every mistake in configuration files, as file:line. Files of other device plugins are accepted;
    /// differences in meaning are warnings.
    Check {
        /// Files; `-` is stdin.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Treat warnings as errors.
        #[arg(long)]
        strict: bool,
    },
    /// Convert the configuration of another device plugin, or simple udev rules, to Windlass's format.
    ///
    /// Accepts files of NVIDIA's plugin, k8s-rdma-shared-dev-plugin, sriov-network-device-plugin,
    /// generic-device-plugin and smarter-device-manager, ConfigMaps with such a file, and manifests of
    /// generic-device-plugin and darwin3-device-plugin. udev rules that only match devices become sources, as in
    /// Akri; other rules are refused with their line and an alternative.
    Convert {
        /// File; `-` is stdin.
        file: PathBuf,
    },
    /// List the device profiles for entries of `sources`, or print one.
    Profiles {
        /// Device profile to print, with the origin of its facts and further requirements of pods.
        name: Option<DeviceProfile>,
        /// Output format.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: OutputArg,
    },
    /// Print the JSON schema of the configuration file.
    Schema,
}
