//! HTTP control port of the simulated Darwin3 board: four GET requests, two of which change state.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
};

use super::{BoardEvent, BoardFault, Chip};

/// Maximum size of a request with its headers. The server ignores the bytes beyond it.
const MAX_REQUEST_BYTES: u64 = 8192;

/// Serves one request.
pub(super) fn serve(mut stream: TcpStream, chip: &Chip) {
    let Some(target) = read_target(&stream) else { return };
    let fault = chip.model().fault;
    let (status, body) = match fault {
        BoardFault::Hangs => return wait_for_end(&mut stream),
        BoardFault::Refuses => ("500 Internal Server Error", "simulated fault\n".to_owned()),
        BoardFault::None => match answer(&target, chip) {
            Ok(body) => ("200 OK", body),
            Err(message) => {
                chip.record(BoardEvent::Refused(format!("{target}: {message}")));
                ("400 Bad Request", format!("{message}\n"))
            }
        },
    };
    // The `Server` header marks every answer as simulated.
    let head = format!(
        "HTTP/1.1 {status}\r\nServer: simulated-darwin3\r\nContent-Type: text/plain\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    // The server does not wait for a client that closes early.
    let _ = stream.write_all(format!("{head}{body}").as_bytes());
}

/// Target of the request. `None` for any method except GET.
fn read_target(stream: &TcpStream) -> Option<String> {
    let mut lines = BufReader::new(stream.take(MAX_REQUEST_BYTES));
    let mut request = String::new();
    lines.read_line(&mut request).ok()?;
    let mut header = String::new();
    while lines.read_line(&mut header).ok()? > 2 {
        header.clear();
    }
    let mut words = request.split_whitespace();
    (words.next()? == "GET").then(|| words.next().map(str::to_owned))?
}

fn answer(target: &str, chip: &Chip) -> Result<String, String> {
    match target.split_once('?').unwrap_or((target, "")) {
        ("/chip_reset", _) => {
            chip.reset();
            Ok("reset\n".to_owned())
        }
        ("/set_frequency", query) => {
            let freq = query.split('&').find_map(|pair| pair.strip_prefix("freq="));
            let freq = freq.and_then(|freq| freq.parse().ok());
            let mhz = freq.ok_or("freq is missing: write freq=333, in MHz")?;
            chip.set_frequency(mhz)?;
            Ok(format!("{mhz}\n"))
        }
        (path @ ("/last_running_time" | "/last_tcp_time"), _) => {
            chip.record(BoardEvent::Get(path.to_owned()));
            let model = chip.model();
            let time =
                if path == "/last_tcp_time" { model.transfer_time } else { model.running_time };
            // The real board's unit is unknown; microseconds are an assumption.
            Ok(format!("{}\n", time.as_micros()))
        }
        (path, _) => Err(format!("unknown path {path}")),
    }
}

/// Blocks silently until the client gives up or the board stops.
fn wait_for_end(stream: &mut TcpStream) {
    let _ = stream.read(&mut [0]);
}
