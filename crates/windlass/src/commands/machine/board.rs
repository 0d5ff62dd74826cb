//! `windlass machine board`: a simulated Darwin3 board on local ports.

use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::{signal::ctrl_c, time::sleep};
use windlass_machine::{Board, BoardAddresses, BoardEvent};

use crate::{
    cli::BoardArgs,
    runtime::block_on,
    screen::{pluralized, print_line},
};

const POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) fn run(args: BoardArgs) -> Result<()> {
    let addresses = BoardAddresses { control: args.http, data: args.data };
    let board = Board::start(&addresses).with_context(|| {
        format!(
            "cannot listen on {} and {}: choose others with --http and --data",
            args.http, args.data
        )
    })?;
    print_line("SIMULATED Darwin3 board; Ctrl-C ends it")?;
    print_line(format!("control  http://{}", board.control()))?;
    print_line(format!("data     {}", board.data()))?;
    block_on(async {
        tokio::select! {
            outcome = print_events(&board) => outcome,
            _ = ctrl_c() => Ok(()),
        }
    })
}

async fn print_events(board: &Board) -> Result<()> {
    loop {
        for event in board.take_events() {
            print_line(event_text(&event))?;
        }
        sleep(POLL_INTERVAL).await;
    }
}

fn event_text(event: &BoardEvent) -> String {
    let flits = |number: usize| pluralized(number, "flit");
    match event {
        BoardEvent::Reset => "chip reset".to_owned(),
        BoardEvent::Frequency(mhz) => format!("frequency set to {mhz} MHz"),
        BoardEvent::Get(path) => format!("asked for {path}"),
        BoardEvent::Refused(reason) => format!("refused {reason}"),
        BoardEvent::Deployed(number) => format!("network deployed: {}", flits(*number)),
        BoardEvent::Ran(number) => format!("ran with {}", flits(*number)),
        BoardEvent::State(number) => format!("state: {}", flits(*number)),
        BoardEvent::ProtocolViolation(reason) => {
            format!("invalid message on the data port: {reason}")
        }
        BoardEvent::Blocked => {
            "WEDGED: a client closed the data port without a message; the port is \
                               blocked until a restart"
                .to_owned()
        }
    }
}
