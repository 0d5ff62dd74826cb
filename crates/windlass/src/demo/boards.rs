//! Simulated Darwin3 boards, and what is done to them.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use windlass_machine::{Board, BoardAddresses, BoardEvent};

/// Boards at addresses of this machine's own network, each with the ports of a real one.
#[derive(Debug, Default)]
pub(super) struct Boards(Vec<Board>);

/// The first board's; a real one comes from the factory as 172.31.111.35.
const FIRST: Ipv4Addr = Ipv4Addr::new(127, 31, 111, 35);

/// Where a board is controlled, and where it takes networks.
const PORTS: (u16, u16) = (6001, 6000);

/// Addresses that are tried.
const MOST_TRIED: u32 = 100;

// === impl Boards ===

impl Boards {
    /// Starts more of them, and gives where they are. An address that another demo has is left to it.
    pub(super) fn start(&mut self, count: u16) -> io::Result<Vec<String>> {
        let first = FIRST.to_bits();
        let mut hosts = (first..first + MOST_TRIED).map(Ipv4Addr::from_bits);
        let mut started = Vec::new();
        while started.len() < count.into() {
            let Some(host) = hosts.next() else { return Err(io::ErrorKind::AddrInUse.into()) };
            let at = |port| SocketAddr::from((host, port));
            match Board::start(&BoardAddresses { control: at(PORTS.0), data: at(PORTS.1) }) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                board => {
                    self.0.push(board?);
                    started.push(host.to_string());
                }
            }
        }
        Ok(started)
    }

    /// What was done to boards since this was last asked, questions about their health aside.
    pub(super) fn take_done(&self) -> Vec<String> {
        let boards = self.0.iter();
        let done = boards.flat_map(|board| {
            let host = board.control().ip();
            let events = board.take_events().into_iter();
            events.filter_map(move |event| Some(format!("{host}: {}", in_words(event)?)))
        });
        done.collect()
    }
}

fn in_words(event: BoardEvent) -> Option<String> {
    match event {
        BoardEvent::Reset => Some("its chip is reset".to_owned()),
        BoardEvent::Frequency(mhz) => Some(format!("its clock is set to {mhz} MHz")),
        BoardEvent::Asked(_) => None,
        other => Some(format!("{other:?}")),
    }
}
