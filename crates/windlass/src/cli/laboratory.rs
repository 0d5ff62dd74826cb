//! Command lines of `windlass kubelet` and `windlass machine`.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Subcommand, builder::TypedValueParser};
use windlass_kubelet_sim::{PluginDirCleanup, Release, TopologyPolicy};
use windlass_machine::{Attached, Fault};

use super::word::enum_parser;

#[derive(Args, Debug)]
#[command(after_help = "\
Add pods with --pod, or by commands on stdin:

  run NAME RESOURCE=N [RESOURCE=N ...]   admit a pod with one container
  delete NAME                            delete a pod
  pods                                   list pods and what they hold
  resources                              list resources, devices and health
  restart                                restart the kubelet: sockets are deleted, pods stay
  help, quit

Any plugin may register in DIR/device-plugins, in any language.
A folder of a real kubelet is refused. Without a terminal the kubelet runs until SIGTERM.")]
pub(crate) struct KubeletArgs {
    /// Folder of the kubelet; its sockets are in device-plugins and pod-resources.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Pod to admit once its resources exist, such as trainer:nvidia.com/gpu=4
    #[arg(long = "pod", value_name = "NAME:RESOURCE=N[,RESOURCE=N]")]
    pub(crate) pods: Vec<String>,
    /// Kubernetes release to imitate where releases differ.
    #[arg(long, value_name = "RELEASE", default_value = "1.36", value_parser = release())]
    pub(crate) release: Release,
    /// Files that the kubelet deletes in device-plugins at its start.
    #[arg(long, value_name = "FILES", default_value = "sockets", value_parser = cleanup())]
    pub(crate) cleanup: PluginDirCleanup,
    /// Topology manager policy.
    #[arg(long, value_name = "POLICY", default_value = "none", value_parser = topology_policy())]
    pub(crate) topology_policy: TopologyPolicy,
}

fn release() -> impl TypedValueParser<Value = Release> {
    enum_parser([
        ("1.36", Release::UpTo1_36, "Kubernetes up to 1.36"),
        ("1.37", Release::From1_37, "Kubernetes from 1.37"),
    ])
}

fn cleanup() -> impl TypedValueParser<Value = PluginDirCleanup> {
    let all = "Everything but the checkpoint: Kubernetes up to 1.30, and 1.31.1 to 1.32";
    enum_parser([
        (
            "sockets",
            PluginDirCleanup::Sockets,
            "Sockets only: Kubernetes 1.31.0, and 1.33 and later",
        ),
        ("all-files", PluginDirCleanup::AllFiles, all),
    ])
}

fn topology_policy() -> impl TypedValueParser<Value = TopologyPolicy> {
    enum_parser([
        ("none", TopologyPolicy::None, "No topology hints"),
        ("best-effort", TopologyPolicy::BestEffort, "Aligned where possible"),
        ("restricted", TopologyPolicy::Restricted, "Refused where alignment is impossible"),
        ("single-numa-node", TopologyPolicy::SingleNumaNode, "One NUMA node or refused"),
    ])
}

#[derive(Args, Debug)]
pub(crate) struct MachineArgs {
    #[command(subcommand)]
    pub(crate) command: MachineCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// List the built-in machine profiles.
    List,
    /// Create a simulated machine in a folder, and print the flags of an agent for it.
    Create {
        /// Folder to create.
        dir: PathBuf,
        /// Replace an existing machine in the folder.
        #[arg(long)]
        force: bool,
        /// Keep an existing machine in the folder unchanged, and succeed.
        #[arg(long, conflicts_with = "force")]
        keep: bool,
        /// Machine profile: a name from `windlass machine list`, or a YAML file.
        #[arg(long, value_name = "NAME|FILE", default_value = "dgx-h100")]
        machine: String,
        /// Devices to add, as device profile and count: hailo, coral-usb:2. Repeatable.
        #[arg(long, value_name = "NAME[:COUNT]")]
        device: Vec<Attached>,
    },
    /// Inject a fault into a simulated machine while it is in use.
    Fault {
        /// Folder of the machine.
        dir: PathBuf,
        /// Fault: xid:79@3, lost@3, recover@3, unplug:eth0. --help lists all.
        #[arg(long_help = faults())]
        fault: Fault,
    },
    /// Run a simulated Darwin3 board until Ctrl-C, and print the requests of its clients.
    Board(BoardArgs),
    /// Partition a GPU of a simulated machine into MIG instances while it is in use; without MIG profiles, MIG is
    /// turned off.
    Mig {
        /// Folder of the machine.
        dir: PathBuf,
        /// Index of the GPU.
        gpu: usize,
        /// MIG profiles of its model, such as 1g.10gb; --none leaves MIG on without instances.
        #[arg(value_name = "PROFILE")]
        profiles: Vec<String>,
        /// Turn MIG on without instances.
        #[arg(long, conflicts_with = "profiles")]
        none: bool,
    },
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct BoardArgs {
    /// Address of the board's HTTP control interface.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6001")]
    pub(crate) http: SocketAddr,
    /// Address of the board's data port, for networks and spikes. A client that connects and sends no message blocks
    /// this port, as on a real board.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6000")]
    pub(crate) data: SocketAddr,
}

/// Table of all faults with their effects.
fn faults() -> String {
    let rows: Vec<_> = Fault::examples().collect();
    let width = rows.iter().map(|(example, _)| example.len()).max().unwrap_or_default();
    let rows = rows.iter().map(|(example, meaning)| format!("  {example:width$}  {meaning}"));
    let rows = rows.collect::<Vec<_>>().join("\n");
    format!(
        "Fault, for example of GPU 3; other devices by name, network interface or PCI address:\n\n{rows}"
    )
}
