//! Command line of `windlass scrub`.

use clap::Args;

use super::{HostArgs, OutputArg};

#[derive(Args, Debug)]
#[command(after_help = "\
Memory of running programs is untouched; they cannot allocate more during the scrub.

Exit codes: 0 done, 1 failed, 64 wrong command line or configuration.")]
pub(crate) struct ScrubArgs {
    /// GPU or MIG device, as in `windlass devices`: GPU-..., MIG-...
    #[arg(value_name = "UUID", value_parser = uuid)]
    pub(crate) uuid: String,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

/// Number of hexadecimal digits in each part of a UUID.
const PART_LENGTHS: [usize; 5] = [8, 4, 4, 4, 12];

/// Parses a UUID as NVML formats it since driver 470. Older formats of MIG devices are unknown to CUDA.
fn uuid(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
    let is_hex = |part: &str| part.chars().all(|letter| letter.is_ascii_hexdigit());
    let is_uuid = |digits: &str| {
        digits.split('-').map(str::len).eq(PART_LENGTHS) && digits.split('-').all(is_hex)
    };
    if digits.is_some_and(is_uuid) {
        return Ok(text.to_owned());
    }
    Err("write GPU- or MIG- and a UUID, as `windlass devices` shows it".to_owned())
}
