//! Simulated Darwin3 boards that log their requests.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use windlass_machine::{Board, BoardAddresses, BoardEvent};

/// Boards at loopback addresses, with the ports of real ones.
#[derive(Debug, Default)]
pub(super) struct Boards(Vec<Board>);

/// Address of the first board. Real boards are shipped with 172.31.111.35.
const FIRST_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 31, 111, 35);

/// Ports of a board: control, and deployment of neural networks.
const PORTS: (u16, u16) = (6001, 6000);

/// Maximum number of addresses to try.
const MAX_TRIED: u32 = 100;

// === impl Boards ===

impl Boards {
    /// Starts boards and returns their addresses. Addresses in use by another demo are skipped.
    pub(super) fn start(&mut self, count: u16) -> io::Result<Vec<String>> {
        let first = FIRST_ADDRESS.to_bits();
        let mut hosts = (first..first + MAX_TRIED).map(Ipv4Addr::from_bits);
        let mut addresses = Vec::new();
        while addresses.len() < count.into() {
            let Some(host) = hosts.next() else { return Err(io::ErrorKind::AddrInUse.into()) };
            let address = |port| SocketAddr::from((host, port));
            match Board::start(&BoardAddresses {
                control: address(PORTS.0),
                data: address(PORTS.1),
            }) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                board => {
                    self.0.push(board?);
                    addresses.push(host.to_string());
                }
            }
        }
        Ok(addresses)
    }

    /// Takes the logged requests as text, without health checks.
    pub(super) fn take_requests(&self) -> Vec<String> {
        let boards = self.0.iter();
        let requests = boards.flat_map(|board| {
            let host = board.control().ip();
            let events = board.take_events().into_iter();
            events.filter_map(move |event| Some(format!("{host}: {}", description(event)?)))
        });
        requests.collect()
    }
}

/// Description of a request. `None` for health checks, which only read.
fn description(event: BoardEvent) -> Option<String> {
    match event {
        BoardEvent::Reset => Some("its chip is reset".to_owned()),
        BoardEvent::Frequency(mhz) => Some(format!("its clock is set to {mhz} MHz")),
        BoardEvent::Get(_) => None,
        other => Some(format!("{other:?}")),
    }
}
