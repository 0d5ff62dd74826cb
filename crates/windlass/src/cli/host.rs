//! Command line of `windlass host`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::HostArgs;

#[derive(Args, Debug)]
pub(crate) struct HostCommandArgs {
    #[command(subcommand)]
    pub(crate) command: HostCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// Record this host's devices, as its kernel reports them, to a folder that other commands accept as a host.
    ///
    /// The folder mirrors /sys, the names in /dev, and the text of allowed files. The host is not changed. Serial
    /// numbers, addresses and unique ids are replaced by fictitious ones of the same form.
    #[command(after_help = "\
Examples:
  windlass host record /tmp/myhost
      record this host
  tar czf myhost.tgz -C /tmp myhost
      pack it, for a bug report
  windlass devices --host-root /tmp/myhost
      use it on any machine in place of the host; topo, explain, labels and cdi accept it too

Read README.txt in the folder before you send it: it lists the contents, the replacements and the
omissions. NVIDIA's GPUs are described by a library, not by files: they are in inventory.json.

Exit codes: 0 done, 1 failed, 64 wrong command line or configuration.")]
    Record(RecordHostArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RecordHostArgs {
    /// Folder to create; an existing one must be empty.
    pub(crate) dir: PathBuf,
    /// Keep serial numbers, addresses and unique ids.
    #[arg(long)]
    pub(crate) with_serials: bool,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}
