//! Command line of `windlass cdi`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{HostArgs, OutputArg};

/// Folders in which container runtimes look for CDI documents, in ascending precedence.
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
    /// They equal the documents that `windlass node` writes. Missing driver files are reported on stderr.
    Generate(GenerateArgs),
    /// List the device names that containers can request.
    List(ListArgs),
    /// Check CDI documents for mistakes, whichever program wrote them.
    ///
    /// Reports each mistake for which a runtime rejects a document, and each missing host file for which it rejects a
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
    pub(crate) paths: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Documents, or folders of documents [default: /etc/cdi and /var/run/cdi]
    #[arg(value_name = "FILE|DIR")]
    pub(crate) paths: Vec<PathBuf>,
    /// Root of the files that documents refer to.
    #[arg(long, value_name = "DIR", env = "WINDLASS_HOST_ROOT", default_value = "/")]
    pub(crate) host_root: PathBuf,
    /// Path by which documents refer to that root
    #[arg(long, value_name = "DIR", env = "WINDLASS_HOST_ROOT_ON_NODE", default_value = "/")]
    pub(crate) host_root_on_node: PathBuf,
}

/// Files and folders of the command line, or else the existing default folders.
pub(crate) fn paths_or_default(paths: Vec<PathBuf>) -> Vec<PathBuf> {
    if !paths.is_empty() {
        return paths;
    }
    DOCUMENT_FOLDERS.map(PathBuf::from).into_iter().filter(|folder| folder.is_dir()).collect()
}
