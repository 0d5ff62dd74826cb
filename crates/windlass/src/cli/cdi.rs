//! `windlass cdi` as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{HostArgs, OutputArg};

/// Where container runtimes look for documents; a later folder wins.
const DOCUMENT_FOLDERS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];

#[derive(Args, Debug)]
pub(crate) struct CdiArgs {
    #[command(subcommand)]
    pub(crate) command: CdiCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CdiCommand {
    /// Make the documents for this host's devices, and print them or write them to a folder.
    ///
    /// They are the ones that `windlass node` would write. What containers will lack is said on the
    /// standard error stream.
    Generate(GenerateArgs),
    /// List the names that containers can ask for.
    List(ListArgs),
    /// Find the mistakes of documents, whoever wrote them.
    ///
    /// Looks for everything that makes a runtime refuse a document, and for files of the host that
    /// are not there, for which it refuses a container.
    #[command(
        after_help = "Exit codes: 0 all right, 1 a mistake was found, 64 wrong command line."
    )]
    Check(CheckArgs),
}

#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// What the container runtime calls the host root [default: /]
    #[arg(long, value_name = "DIR", env = "WINDLASS_HOST_ROOT_ON_NODE")]
    pub(crate) host_root_on_node: Option<PathBuf>,
    /// Write each document to this folder instead of printing it.
    #[arg(long, value_name = "DIR")]
    pub(crate) output_dir: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Documents, or folders of documents [default: /etc/cdi and /var/run/cdi]
    #[arg(value_name = "FILE|DIR")]
    pub(crate) places: Vec<PathBuf>,
    /// How to write the answer.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Documents, or folders of documents [default: /etc/cdi and /var/run/cdi]
    #[arg(value_name = "FILE|DIR")]
    pub(crate) places: Vec<PathBuf>,
    /// Where the files that documents name are looked for.
    #[arg(long, value_name = "DIR", env = "WINDLASS_HOST_ROOT", default_value = "/")]
    pub(crate) host_root: PathBuf,
}

/// The places that were named, or those of the runtimes that are there.
pub(crate) fn places(named: Vec<PathBuf>) -> Vec<PathBuf> {
    if !named.is_empty() {
        return named;
    }
    DOCUMENT_FOLDERS.map(PathBuf::from).into_iter().filter(|folder| folder.is_dir()).collect()
}
