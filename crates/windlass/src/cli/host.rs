//! `windlass host` as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::HostArgs;

#[derive(Args, Debug)]
pub(crate) struct HostAsked {
    #[command(subcommand)]
    pub(crate) command: HostCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum HostCommand {
    /// Write what this host's kernel shows of its devices to a folder that can stand for the host.
    ///
    /// The folder has the shape of /sys, the names in /dev, and the text of files that are known to be
    /// harmless. Nothing of the host is changed. Serial numbers, addresses and unique ids are replaced
    /// by others that look the same.
    #[command(after_help = "\
Examples:
  windlass host record /tmp/myhost
      record this host
  tar czf myhost.tgz -C /tmp myhost
      pack it, for a bug report
  windlass devices --host-root /tmp/myhost
      look at it anywhere, as at the host itself; topo, explain, labels and cdi do it as well

Read README.txt in the folder before you send it: it says what is in it, what was replaced, and what
was left out. NVIDIA's GPUs are told by a library, not by files: they are in inventory.json.

Exit codes: 0 done, 1 failed, 64 wrong command line or configuration.")]
    Record(RecordHostArgs),
}

#[derive(Args, Debug)]
pub(crate) struct RecordHostArgs {
    /// The folder, which must be empty or not exist yet.
    pub(crate) dir: PathBuf,
    /// Keep serial numbers, addresses and unique ids as they are.
    #[arg(long)]
    pub(crate) with_serials: bool,
    #[command(flatten)]
    pub(crate) host: HostArgs,
}
