//! Command line of `windlass cdi`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{HostArgs, OutputArg};

/// Folders of container runtimes, in ascending precedence.
const DOCUMENT_FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

#[derive(Args, Debug)]
pub(crate) struct CdiArgs {
    #[command(subcommand)]
    pub(crate) command: CdiCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CdiCommand {
    /// Generate the documents for this host's devices, and print them or write them to a folder.
    ///
    /// They equal those of `windlass node`. Missing driver files are reported on stderr.
    Generate(GenerateArgs),
    /// List the device names that containers can request.
    List(ListArgs),
    /// Find mistakes in documents of any origin.
    ///
    /// Reports everything that makes a runtime refuse a document, and missing files of the host, which make it refuse a
    /// container.
    #[command(
        after_help = "Exit codes: 0 no mistakes, 1 a mistake was found, 64 wrong command line."
    )]
    Check(CheckArgs),
}

#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// Host root as the container runtime sees it [default: /]
    #[arg(long, value_name = "DIR", env = "WINDLASS_HOST_ROOT_ON_NODE")]
    pub(crate) host_root_on_node: Option<PathBuf>,
    /// Folder to write the documents to, instead of printing them.
    #[arg(long, value_name = "DIR")]
    pub(crate) output_dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Documents, or folders of documents [default: /etc/cdi and /var/run/cdi]
    #[arg(value_name = "FILE|DIR")]
    pub(crate) places: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Documents, or folders of documents [default: /etc/cdi and /var/run/cdi]
    #[arg(value_name = "FILE|DIR")]
    pub(crate) places: Vec<PathBuf>,
    /// Root of the files that documents refer to.
    #[arg(long, value_name = "DIR", env = "WINDLASS_HOST_ROOT", default_value = "/")]
    pub(crate) host_root: PathBuf,
    /// The same root as documents name it
    #[arg(long, value_name = "DIR", env = "WINDLASS_HOST_ROOT_ON_NODE", default_value = "/")]
    pub(crate) host_root_on_node: PathBuf,
}

/// The given places, or the existing default folders.
pub(crate) fn places(named: Vec<PathBuf>) -> Vec<PathBuf> {
    if !named.is_empty() {
        return named;
    }
    DOCUMENT_FOLDERS.map(PathBuf::from).into_iter().filter(|folder| folder.is_dir()).collect()
}
