//! Client-side tests of the simulated Darwin3 board.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use super::*;

/// Time limit of every wait in these tests.
const LIMIT: Duration = Duration::from_secs(10);

fn board() -> Board {
    Board::start(&BoardAddresses::ephemeral()).expect("free ports")
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(LIMIT)).expect("a read timeout");
    stream
}

fn get(board: &Board, target: &str) -> String {
    let mut stream = connect(board.control());
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: b\r\n\r\n").as_bytes()).expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("answered");
    response.lines().next().unwrap_or_default().to_owned()
}

/// Sends a message to the data port: a type (`0x7000` deploys, `0x7001` runs), four lengths in bytes, and flits.
fn send(stream: &mut TcpStream, words: &[u32]) {
    let bytes: Vec<u8> = words.iter().copied().flat_map(u32::to_le_bytes).collect();
    stream.write_all(&bytes).expect("sent");
}

fn receive(stream: &mut TcpStream, words: usize) -> Vec<u32> {
    let mut word = [0; 4];
    let mut next = || {
        stream.read_exact(&mut word).expect("answered");
        u32::from_le_bytes(word)
    };
    (0..words).map(|_| next()).collect()
}

#[test]
fn a_network_is_deployed_and_run_and_cleared_by_a_reset() {
    let board = board();
    let mut client = connect(board.data());
    send(&mut client, &[0x7000, 8, 0, 0, 4, 10, 11, 12]);
    assert_eq!(receive(&mut client, 4), [0, 0, 0, 0]);
    let mut client = connect(board.data());
    send(&mut client, &[0x7001, 4, 8, 0, 0, 7, 8, 9]);
    assert_eq!(receive(&mut client, 7), [4, 8, 0, 0, 7, 8, 9]);
    assert_eq!(client.read(&mut [0; 4]).expect("closed"), 0, "one message per connection");
    drop(client);
    assert!(board.is_deployed());
    assert_eq!(get(&board, "/set_frequency?freq=200"), "HTTP/1.1 200 OK");
    assert_eq!(board.frequency_mhz(), 200);
    assert_eq!(get(&board, "/chip_reset"), "HTTP/1.1 200 OK");
    assert!(!board.is_deployed());
    assert_eq!(
        board.take_events(),
        [
            BoardEvent::Deployed(3),
            BoardEvent::Ran(3),
            BoardEvent::Frequency(200),
            BoardEvent::Reset
        ]
    );
}

#[test]
fn invalid_requests_are_refused() {
    let board = board();
    for (target, status) in [
        ("/last_running_time", "HTTP/1.1 200 OK"),
        ("/last_tcp_time", "HTTP/1.1 200 OK"),
        ("/set_frequency", "HTTP/1.1 400 Bad Request"),
        ("/set_frequency?freq=334", "HTTP/1.1 400 Bad Request"),
        ("/format_disk", "HTTP/1.1 400 Bad Request"),
    ] {
        assert_eq!(get(&board, target), status, "{target}");
    }
    board.take_events();
    let mut client = connect(board.data());
    send(&mut client, &[0x1234, 0, 0, 0, 0]);
    assert_eq!(client.read(&mut [0; 4]).expect("closed"), 0);
    let mut client = connect(board.data());
    send(&mut client, &[0x7000, u32::MAX, 0, 0, 0]);
    assert_eq!(client.read(&mut [0; 4]).expect("closed"), 0);
    let mut client = connect(board.data());
    send(&mut client, &[0x7001, 7, 0, 0, 0, 1, 2]);
    // The server closes with unread flits, which may reset the connection.
    assert_eq!(client.read(&mut [0; 4]).unwrap_or(0), 0);
    let events = board.take_events();
    assert_eq!(events.len(), 3, "{events:?}");
    assert!(
        events.iter().all(|event| matches!(event, BoardEvent::ProtocolViolation(_))),
        "{events:?}"
    );
}

#[test]
fn a_client_without_a_message_wedges_the_data_port_until_a_restart() {
    let board = board();
    drop(connect(board.data()));
    let deadline = Instant::now() + LIMIT;
    while !board.is_wedged() {
        assert!(Instant::now() < deadline, "the board is not wedged in time");
        std::thread::yield_now();
    }
    assert_eq!(get(&board, "/chip_reset"), "HTTP/1.1 200 OK");
    assert_eq!(board.take_events(), [BoardEvent::Blocked, BoardEvent::Reset]);
    let mut client = connect(board.data());
    send(&mut client, &[0x7001, 0, 0, 0, 0]);
    client.set_read_timeout(Some(Duration::from_millis(200))).expect("a read timeout");
    assert!(client.read(&mut [0; 4]).is_err(), "the wedged port serves a client");
    drop(client);
    board.restart();
    let mut client = connect(board.data());
    send(&mut client, &[0x7001, 0, 0, 0, 0]);
    assert_eq!(receive(&mut client, 4), [0; 4]);

    let mut client = connect(board.data());
    client.write_all(&[0x01, 0x70, 0, 0]).expect("sent");
    assert_eq!(client.read(&mut [0; 4]).expect("closed"), 0);
    assert!(board.is_wedged(), "a partial header must wedge the port");
}

#[test]
fn a_hanging_board_sends_nothing_and_a_dropped_board_frees_its_ports() {
    let board = board();
    board.inject(BoardFault::Hangs);
    let mut stream = connect(board.control());
    stream.write_all(b"GET /chip_reset HTTP/1.1\r\n\r\n").expect("sent");
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a read timeout");
    assert!(stream.read(&mut [0; 4]).is_err());
    let (control, data) = (board.control(), board.data());
    drop(board);
    assert!(TcpStream::connect_timeout(&control, LIMIT).is_err());
    assert!(TcpStream::connect_timeout(&data, LIMIT).is_err());
}

#[test]
fn a_refusing_board_recovers_when_the_fault_is_cleared() {
    let board = board();
    board.inject(BoardFault::Refuses);
    assert_eq!(get(&board, "/chip_reset"), "HTTP/1.1 500 Internal Server Error");
    board.inject(BoardFault::None);
    assert_eq!(get(&board, "/chip_reset"), "HTTP/1.1 200 OK");
}
