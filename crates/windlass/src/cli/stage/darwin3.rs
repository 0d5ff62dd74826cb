//! Flags of `windlass stage` for a Darwin3 board: data ports and files of flits.

use std::{path::PathBuf, str::FromStr};

use clap::{Args, ValueEnum};

/// Flags for a stage that runs on a Darwin3 board.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Darwin3 board")]
pub(crate) struct Darwin3Args {
    /// Run each payload on a Darwin3 board. The payload is flits of spikes, which enter the chip at its west edge. The
    /// value is the address of the board's data port; each of several boards has one worker [default: the boards of the
    /// container, from `DARWIN3_ENDPOINTS`]
    #[arg(long, value_name = "HOST:PORT,...", num_args = 0..=1, default_missing_value = "")]
    pub(crate) darwin3: Option<DataPorts>,
    /// Flits of a network, deployed before the first run and again after a failed run. They enter at the west edge, or
    /// at a named one: east=net-east.bin. Repeatable, once for each edge
    #[arg(long, value_name = "[EDGE=]FILE", requires = "darwin3")]
    pub(crate) network: Vec<EdgeFile>,
    /// Flits that enter at another edge with each run; the vendor's client sends some at the east edge: east=sync.bin
    #[arg(long, value_name = "EDGE=FILE", requires = "darwin3")]
    pub(crate) run_with: Vec<EdgeFile>,
    /// Edge of the chip whose flits are the result. A board answers for the edges that received flits in the run
    #[arg(long, value_name = "EDGE", default_value = "west", requires = "darwin3")]
    pub(crate) result_edge: Edge,
}

/// An edge of the chip, in the order of the board's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Edge {
    West,
    East,
    North,
    South,
}

/// A file of flits for an edge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EdgeFile {
    pub(crate) edge: Edge,
    pub(crate) path: PathBuf,
}

/// Addresses of boards' data ports; empty for the boards of the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DataPorts(pub(crate) Vec<String>);

// === impl EdgeFile ===

impl FromStr for EdgeFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let edge_file = text.split_once('=').and_then(|(edge, path)| {
            Some(Self { edge: Edge::from_str(edge, false).ok()?, path: path.into() })
        });
        Ok(edge_file.unwrap_or_else(|| Self { edge: Edge::West, path: text.into() }))
    }
}

// === impl DataPorts ===

impl FromStr for DataPorts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_address = |address: &&str| {
            let parts = address.rsplit_once(':');
            parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        if text.is_empty() {
            return Ok(Self(Vec::new()));
        }
        let mut ports: Vec<_> = text.split(',').map(str::trim).collect();
        if let Some(text) = ports.iter().find(|address| !is_address(address)) {
            return Err(format!(
                "{text:?} is not a data port: write HOST:PORT, such as 10.0.0.21:6000"
            ));
        }
        ports.sort_unstable();
        if ports.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(format!("{text} has an address twice"));
        }
        Ok(Self(ports.into_iter().map(str::to_owned).collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_ports_are_separated_by_commas() {
        let parse = |text: &str| text.parse().map(|DataPorts(ports)| ports);
        assert_eq!(parse("10.0.0.21:6000"), Ok(vec!["10.0.0.21:6000".to_owned()]));
        assert_eq!(parse("b:1,a:1").map(|ports| ports.len()), Ok(2));
        assert_eq!(parse(""), Ok(Vec::new()));
        for invalid in ["10.0.0.21", ":6000", "a:70000", "a:1,", "a:1,a:1"] {
            assert!(parse(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn a_file_is_for_the_west_unless_it_names_an_edge() {
        let parse = |text: &str| text.parse::<EdgeFile>().expect("a file");
        assert_eq!(parse("net.bin"), EdgeFile { edge: Edge::West, path: "net.bin".into() });
        assert_eq!(parse("east=net.bin"), EdgeFile { edge: Edge::East, path: "net.bin".into() });
        assert_eq!(parse("a=b"), EdgeFile { edge: Edge::West, path: "a=b".into() });
    }
}
