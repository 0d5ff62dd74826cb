//! Command line of `windlass stage`.

mod darwin3;
mod picture;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{ArgGroup, Args};
use tracing_subscriber::filter::Targets;
use windlass_pipeline::quantity::{Bytes, Seconds};
use windlass_stage::{Address, Addresses};

pub(crate) use self::{
    darwin3::{Darwin3Args, DataPorts, Edge, EdgeFile},
    picture::PictureSize,
};
use crate::logging::LogFormat;

#[derive(Args, Debug)]
#[command(
    group = ArgGroup::new("work").args(["sleep", "compute", "exec", "call", "decode", "darwin3"]),
    after_help = "\
The work is one of --sleep, --compute, --exec, --call, --decode, --resize and --darwin3. Without any, the stage forwards
payloads unchanged.

SIGTERM drains the stage: it accepts no more items, and ends when the next stages have accepted its results.

Examples:
  windlass stage --name store --listen 0.0.0.0:7000
  windlass stage --name detect --listen 0.0.0.0:7000 --next store=store:7000 --sleep 12ms
      a model of a stage that takes 12 ms per item
  windlass stage --name grey --listen 0.0.0.0:7000 --next store=store:7000 \\
      --exec convert - -colorspace Gray -
  windlass stage --name detect --listen unix:/run/detect.sock \\
      --next store=10.0.0.7:7000,10.0.0.8:7000 \\
      --call http://127.0.0.1:9000/vision.Detector/Detect
      an existing gRPC service as a stage
  windlass stage --name resize --listen 0.0.0.0:7000 --next detect=detect:7000 --resize 320x320
      pictures of a camera, in the size that a model expects
  windlass stage --name spike --listen 0.0.0.0:7000 --next act=act:7000 --darwin3 --network net.bin
      a spiking network on the Darwin3 board of this container
  windlass stage --name fuse --listen 0.0.0.0:7000 --from detect --from track \\
      --next store=store:7000
      a join of two stages

Exit codes: 0 stopped by a signal, 1 failed, 64 wrong command line."
)]
pub(crate) struct StageArgs {
    /// Name of the stage, which previous stages use in --next.
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    /// Address to listen on: HOST:PORT or unix:/PATH
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Address,
    /// A next stage, with the addresses of its replicas, or one DNS name that resolves to all of them. Each next stage
    /// gets every result. Without a next stage the pipeline ends here
    #[arg(long, value_name = "NAME=ADDRESS,...", value_parser = next)]
    pub(crate) next: Vec<(String, Addresses)>,
    /// A previous stage. With two or more, this stage is a join: for each item it waits for a part from each of them
    #[arg(long, value_name = "NAME")]
    pub(crate) from: Vec<String>,
    /// Name of this process among the stage's replicas [default: this machine's name]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub(crate) replica: Option<String>,
    #[command(flatten)]
    pub(crate) work: WorkArgs,
    #[command(flatten)]
    pub(crate) limits: LimitArgs,
    /// Parent process; this process ends when the parent ends
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) ends_with: Option<i32>,
    /// Address that serves `/metrics` [default: none]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Format of log lines.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "WINDLASS_LOG_FORMAT",
        default_value = "text",
        help_heading = "Logging"
    )]
    pub(crate) log_format: LogFormat,
    /// Log level (info, debug), or levels by module (windlass_stage=debug,info).
    #[arg(long, value_name = "LEVELS", env = "WINDLASS_LOG", default_value = "info",
          value_parser = super::parse_log_levels, help_heading = "Logging")]
    pub(crate) log: Targets,
}

/// The work of a stage.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Work")]
pub(crate) struct WorkArgs {
    /// Wait for this time per item, as if a device computed: 12ms, 800us
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) sleep: Option<Duration>,
    /// Wait for this time per batch, in addition to --sleep.
    #[arg(long, value_name = "TIME", value_parser = duration, requires = "sleep")]
    pub(crate) sleep_batch: Option<Duration>,
    /// Spend this processor time per item, on one core
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) compute: Option<Duration>,
    /// Vary the time of --sleep or --compute by up to this fraction, uniformly: 0.2 is 80 to 120 percent
    #[arg(long, value_name = "FRACTION", value_parser = fraction)]
    pub(crate) variation: Option<f64>,
    /// Size of the results of --sleep and --compute: 2KiB [default: the size of the payload]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) output: Option<usize>,
    /// Run a program for each item: it reads the payload from stdin and writes the result to stdout. An exit code other
    /// than 0 fails the item, with the last line of stderr as the reason. An argument `;` ends the program's arguments
    #[arg(long, value_name = "PROGRAM", num_args = 1.., allow_hyphen_values = true, value_terminator = ";")]
    pub(crate) exec: Option<Vec<PathBuf>>,
    /// Call a method of a gRPC service: the payload is the encoded request, and the result is the encoded response
    #[arg(long, value_name = "http://HOST:PORT/PACKAGE.SERVICE/METHOD", value_parser = call)]
    pub(crate) call: Option<Call>,
    /// Decode pictures: a JPEG, or a frame of MJPEG, becomes a binary PPM (P6): a header with the size, then RGB with 8
    /// bits per channel. A PPM passes unchanged
    #[arg(long)]
    pub(crate) decode: bool,
    /// Resize pictures to this size: a JPEG or PPM becomes a PPM. Width and height are scaled independently, bilinearly
    /// and without aliasing, so the aspect ratio may change
    #[arg(long, value_name = "WIDTHxHEIGHT", conflicts_with_all = ["sleep", "compute", "exec", "call", "darwin3"])]
    pub(crate) resize: Option<PictureSize>,
    #[command(flatten)]
    pub(crate) darwin3: Darwin3Args,
}

/// Limits of a stage.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Limits")]
pub(crate) struct LimitArgs {
    /// Number of batches to process in parallel, one per device.
    #[arg(long, value_name = "N", default_value = "1", value_parser = count)]
    pub(crate) workers: usize,
    /// Maximum number of items in a batch.
    #[arg(long, value_name = "N", default_value = "1", value_parser = count)]
    pub(crate) batch: usize,
    /// Maximum time to wait for a batch to fill.
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = duration)]
    pub(crate) batch_wait: Duration,
    /// Maximum number of items in flight to each replica of a next stage.
    #[arg(long, value_name = "N", default_value = "8", value_parser = count)]
    pub(crate) window: usize,
    /// Maximum size of a payload.
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size)]
    pub(crate) max_payload: usize,
    /// Time limit for the work of a batch, after which its items fail.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub(crate) work_timeout: Duration,
    /// Time limit to drain after SIGTERM.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = duration)]
    pub(crate) drain_timeout: Duration,
    /// Maximum time that a join waits for the other parts of an item.
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = duration)]
    pub(crate) join_timeout: Duration,
}

/// A method of a gRPC service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// `http://HOST:PORT`
    pub(crate) server: String,
    /// `/PACKAGE.SERVICE/METHOD`
    pub(crate) method: String,
}

fn next(text: &str) -> Result<(String, Addresses), String> {
    let (name, addresses) =
        text.split_once('=').ok_or("write NAME=ADDRESS, such as classify=classify:7000")?;
    let addresses = addresses.parse().map_err(|error| format!("{error}"))?;
    Ok((name.to_owned(), addresses))
}

/// Parses a time in the syntax of pipeline files.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let Seconds(seconds) = text.parse()?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Parses a size in the syntax of pipeline files.
fn size(text: &str) -> Result<usize, String> {
    let Bytes(bytes) = text.parse()?;
    usize::try_from(bytes).map_err(|_| format!("{text} exceeds the address space of this machine"))
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=4096) => Ok(count),
        _ => Err("write a number from 1 to 4096".to_owned()),
    }
}

fn fraction(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(fraction) if (0.0..=1.0).contains(&fraction) => Ok(fraction),
        _ => Err("write a fraction from 0 to 1, such as 0.2".to_owned()),
    }
}

fn call(text: &str) -> Result<Call, String> {
    let syntax = "write http://HOST:PORT/PACKAGE.SERVICE/METHOD";
    let address = text.strip_prefix("http://").ok_or(syntax)?;
    let (host, method) = address.split_once('/').ok_or(syntax)?;
    let is_method =
        method.split('/').count() == 2 && method.split('/').all(|part| !part.is_empty());
    if host.is_empty() || !is_method {
        return Err(syntax.to_owned());
    }
    Ok(Call { server: format!("http://{host}"), method: format!("/{method}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_split_into_server_and_method() {
        let parsed = call("http://127.0.0.1:9000/vision.Detector/Detect").expect("a method");
        assert_eq!(
            (&*parsed.server, &*parsed.method),
            ("http://127.0.0.1:9000", "/vision.Detector/Detect")
        );
        for text in ["127.0.0.1:9000/a/b", "http://h:1/a", "http:///a/b", "http://h:1/a/"] {
            assert!(call(text).is_err(), "{text}");
        }
    }
}
