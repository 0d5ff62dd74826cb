//! `windlass kubelet` and `windlass machine` as typed.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use windlass_machine::{Attached, Fault};

#[derive(Args, Debug)]
#[command(after_help = "\
Pods are given with --pod, or typed while it runs:

  run NAME RESOURCE=N [RESOURCE=N ...]   admit a pod with one container
  delete NAME                            delete a pod
  pods                                   list pods and what they hold
  resources                              list resources, devices and health
  restart                                restart the kubelet: sockets are deleted, pods stay
  help, quit

Any plugin that registers in DIR/device-plugins is served, in whatever language it is written.
A folder that belongs to a real kubelet is refused. Without a terminal it runs until SIGTERM.")]
pub(crate) struct KubeletArgs {
    /// The kubelet's folder; sockets are made in device-plugins and pod-resources below it.
    #[arg(value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// A pod to admit as soon as its resources are there, such as trainer:nvidia.com/gpu=4
    #[arg(long = "pod", value_name = "NAME:RESOURCE=N[,RESOURCE=N]")]
    pub(crate) pods: Vec<String>,
    /// Whose behaviour to show where releases of Kubernetes differ.
    #[arg(long, value_name = "RELEASE", default_value = "1.36")]
    pub(crate) release: ReleaseArg,
    /// What it deletes in device-plugins when it starts.
    #[arg(long, value_name = "WHAT", default_value = "sockets")]
    pub(crate) cleanup: CleanupArg,
    /// How NUMA hints are used.
    #[arg(long, value_name = "POLICY", default_value = "none")]
    pub(crate) topology_policy: TopologyArg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum ReleaseArg {
    /// Kubernetes up to 1.36.
    #[value(name = "1.36")]
    UpTo1_36,
    /// Kubernetes from 1.37.
    #[value(name = "1.37")]
    From1_37,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum CleanupArg {
    /// As Kubernetes 1.31.0, and from 1.33 on.
    Sockets,
    /// Everything but its own record, as up to 1.30, and from 1.31.1 to 1.32.
    AllFiles,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum TopologyArg {
    /// No hints are asked for.
    None,
    /// Aligned where possible.
    BestEffort,
    /// Refused where it cannot be aligned.
    Restricted,
    /// One NUMA node or none.
    SingleNumaNode,
}

#[derive(Args, Debug)]
pub(crate) struct MachineArgs {
    #[command(subcommand)]
    pub(crate) command: MachineCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MachineCommand {
    /// List the machine profiles that Windlass knows.
    List,
    /// Make a simulated machine in a folder, and print how to point the agent at it.
    Create {
        /// The folder.
        dir: PathBuf,
        /// Replace the machine that is in the folder.
        #[arg(long)]
        force: bool,
        /// A machine profile: a name from `windlass machine list`, or a YAML file.
        #[arg(long, value_name = "NAME|FILE", default_value = "dgx-h100")]
        machine: String,
        /// Devices to add, by a device profile and how many of them: hailo, coral-usb:2. May be given
        /// several times.
        #[arg(long, value_name = "NAME[:COUNT]")]
        device: Vec<Attached>,
    },
    /// Let something happen to a simulated machine while it is in use.
    Fault {
        /// The machine's folder.
        dir: PathBuf,
        /// What happens: xid:79@3, lost@3, recover@3, unplug:eth0. --help shows all.
        #[arg(long_help = faults())]
        fault: Fault,
    },
    /// Run a simulated Darwin3 board until Ctrl-C, and tell what its clients do with it.
    Board(BoardArgs),
    /// Cut a GPU of a simulated machine into MIG instances while it is in use; without profiles MIG is
    /// turned off.
    Mig {
        /// The machine's folder.
        dir: PathBuf,
        /// The GPU, by its index.
        gpu: usize,
        /// Profiles of its card, such as 1g.10gb; --none leaves MIG on without an instance.
        #[arg(value_name = "PROFILE")]
        profiles: Vec<String>,
        /// Turn MIG on, and make no instance.
        #[arg(long, conflicts_with = "profiles")]
        none: bool,
    },
}

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct BoardArgs {
    /// Where the board is controlled by HTTP.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6001")]
    pub(crate) http: SocketAddr,
    /// Where it takes networks and spikes. A client that connects and closes without a message wedges
    /// this port, as it does that of a real board.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6000")]
    pub(crate) data: SocketAddr,
}

/// Every fault with what it does, in columns.
fn faults() -> String {
    let rows: Vec<_> = Fault::examples().collect();
    let width = rows.iter().map(|(example, _)| example.len()).max().unwrap_or_default();
    let rows = rows.iter().map(|(example, meaning)| format!("  {example:width$}  {meaning}"));
    let rows = rows.collect::<Vec<_>>().join("\n");
    format!(
        "What happens, to GPU 3 for example, or to another device, by its name, that of its interface or its PCI \
         address:\n\n{rows}"
    )
}
