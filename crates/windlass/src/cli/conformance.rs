//! Command line of `windlass conformance`.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Args;

use super::OutputArg;

/// Program under test, selection of cases, and properties of the program.
#[derive(Args, Debug)]
#[command(
    after_help = "Exit codes: 0 no case failed and one passed, 1 otherwise, 64 wrong command line.\n\n\
                  Examples:\n  \
                  windlass conformance -- ./my-plugin --socket-dir={kubelet}/device-plugins\n  \
                  windlass conformance --case R,A02 -- nvidia-device-plugin\n  \
                  windlass conformance --case D -- ./my-driver --root={kubelet} --node={node} \\\n  \
                  \u{20}   --kubeconfig={kubeconfig}\n  \
                  windlass conformance --itself --junit report.xml"
)]
pub(crate) struct ConformanceArgs {
    /// Program under test with its arguments.
    #[arg(last = true, value_name = "COMMAND", required_unless_present_any = ["list", "itself"])]
    pub(crate) command: Vec<String>,
    /// Test Windlass's own agent on a simulated machine.
    #[arg(long, conflicts_with = "command")]
    pub(crate) itself: bool,
    /// Machine profile for --itself: a name from `windlass machine list`, or a YAML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "dgx-h100", requires = "itself")]
    pub(crate) machine: String,
    /// List the cases with their sources in Kubernetes, and run none.
    #[arg(long)]
    pub(crate) list: bool,
    /// Run only cases whose ids have these prefixes, separated by commas.
    #[arg(long = "case", value_name = "ID", value_delimiter = ',')]
    pub(crate) cases: Vec<String>,
    /// Number of cases that run in parallel.
    #[arg(long, value_name = "N", default_value = "4", value_parser = jobs)]
    pub(crate) jobs: NonZeroUsize,
    /// Shell command that runs before the program's first start in each case.
    #[arg(long, value_name = "COMMAND", conflicts_with = "itself")]
    pub(crate) setup: Option<String>,
    /// Shell command that makes one device fail; without it, cases about faults are not applicable.
    #[arg(long, value_name = "COMMAND", conflicts_with = "itself")]
    pub(crate) fail: Option<String>,
    /// Shell command that repairs the device.
    #[arg(long, value_name = "COMMAND", conflicts_with = "itself")]
    pub(crate) heal: Option<String>,
    /// Folders of the program's CDI documents, separated by commas [default: /etc/cdi,/var/run/cdi]
    #[arg(long = "cdi-dir", value_name = "DIR", value_delimiter = ',', conflicts_with = "itself")]
    pub(crate) cdi_dirs: Option<Vec<String>>,
    /// CEL expression that selects the driver's devices for claims.
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "itself")]
    pub(crate) devices: Option<String>,
    /// Deadline of the first device list or registration, in seconds after the start.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub(crate) start_within: u64,
    /// File for the results as JUnit XML, for build servers.
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

fn jobs(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a number of parallel cases: write a number from 1"))
}
