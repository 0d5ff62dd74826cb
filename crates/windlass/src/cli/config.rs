//! The command line of `windlass config`.

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
    /// Show every mistake in configuration files, as file:line. Files of other device plugins are
    /// taken too, and what they mean otherwise here is a warning.
    Check {
        /// The files; `-` is the standard input.
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Fail for warnings too.
        #[arg(long)]
        strict: bool,
    },
    /// Print the configuration of another device plugin, or plain rules of udev, in Windlass's format.
    ///
    /// Read are the files of NVIDIA's plugin, k8s-rdma-shared-dev-plugin, sriov-network-device-plugin,
    /// generic-device-plugin and smarter-device-manager, the ConfigMap around such a file, and the
    /// manifests of generic-device-plugin and darwin3-device-plugin. Of udev, rules that only search
    /// become sources, as Akri has them; any other is refused with its line and what to write instead.
    Convert {
        /// The file; `-` is the standard input.
        file: PathBuf,
    },
    /// List the profiles of devices that an entry of `sources` may begin from, or print one.
    Profiles {
        /// The profile to print, with where its facts come from and what a pod needs besides.
        name: Option<DeviceProfile>,
        /// How to write the answer.
        #[arg(short, long, value_name = "FORMAT", default_value = "table")]
        output: OutputArg,
    },
    /// Print the JSON schema of the configuration file.
    Schema,
}
