//! `windlass conformance`, as typed.

use std::{num::NonZeroUsize, path::PathBuf};

use clap::Args;

use super::OutputArg;

/// The program, the cases, and what is known of the program. What the command does is said where it is listed.
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
    /// The program and its arguments.
    #[arg(last = true, value_name = "COMMAND", required_unless_present_any = ["list", "itself"])]
    pub(crate) command: Vec<String>,
    /// Windlass's own agent, on a simulated machine.
    #[arg(long, conflicts_with = "command")]
    pub(crate) itself: bool,
    /// The simulated machine for --itself, from `windlass machine list`.
    #[arg(long, value_name = "NAME|FILE", default_value = "dgx-h100", requires = "itself")]
    pub(crate) machine: String,
    /// List the cases, with where in Kubernetes each comes from, and play none.
    #[arg(long)]
    pub(crate) list: bool,
    /// Only cases whose ids begin so; several with commas between.
    #[arg(long = "case", value_name = "ID", value_delimiter = ',')]
    pub(crate) cases: Vec<String>,
    /// How many cases are played at once.
    #[arg(long, value_name = "N", default_value = "4", value_parser = jobs)]
    pub(crate) jobs: NonZeroUsize,
    /// Shell command that makes what the program needs, before it is first started in a case.
    #[arg(long, value_name = "COMMAND", conflicts_with = "itself")]
    pub(crate) setup: Option<String>,
    /// Shell command that makes one device fail; without it, cases about faults are not applicable.
    #[arg(long, value_name = "COMMAND", conflicts_with = "itself")]
    pub(crate) fail: Option<String>,
    /// Shell command that makes the device work again.
    #[arg(long, value_name = "COMMAND", conflicts_with = "itself")]
    pub(crate) heal: Option<String>,
    /// Where the program writes CDI documents; several with commas between [default: /etc/cdi,/var/run/cdi]
    #[arg(long = "cdi-dir", value_name = "DIR", value_delimiter = ',', conflicts_with = "itself")]
    pub(crate) cdi_dirs: Option<Vec<String>>,
    /// Which devices of a driver the cases claim, as an expression in CEL.
    #[arg(long, value_name = "EXPRESSION", conflicts_with = "itself")]
    pub(crate) devices: Option<String>,
    /// Seconds that the program may take from its start to its first list, or to its registration.
    #[arg(long, value_name = "SECONDS", default_value_t = 20)]
    pub(crate) start_within: u64,
    /// Where the findings are written as JUnit, for build servers.
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    /// How the findings are shown.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

fn jobs(text: &str) -> Result<NonZeroUsize, String> {
    text.parse()
        .map_err(|_| format!("{text:?} cases cannot be played at once: write a number from 1"))
}
