//! `windlass stage` with the work of pictures and of Darwin3 boards.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    process::{Child, Stdio},
    time::Duration,
};

use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use windlass_machine::{Board, BoardAddresses, BoardEvent};
use windlass_stage::{
    Addresses, End, EndEvent, EndListener, Settings, Source, Stage, StageMetrics,
};

use crate::program::{OutputLines, folder, run, text, windlass};

const LIMIT: Duration = Duration::from_secs(20);

const FRAME: &[u8] = include_bytes!("../../src/commands/stage/picture/samples/colour.jpg");

/// A `windlass stage` between a source and a store, which collects the results.
struct TestPipeline {
    child: Child,
    source: Source,
    listener: EndListener,
    results: UnboundedReceiver<Vec<u8>>,
    /// Task of the store; aborted when dropped.
    _store: JoinSet<()>,
}

// === impl TestPipeline ===

impl TestPipeline {
    async fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let (sender, results) = unbounded_channel();
        let (store, tasks) = store(sender).await;
        let mut command = windlass(&["stage", "--listen", "127.0.0.1:0", "--name", "work"]);
        command.args(["--next", &format!("store={store}")]).args(arguments);
        command.env_remove("DARWIN3_ENDPOINTS").envs(variables.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("windlass runs");
        let first_line =
            OutputLines::from_pipe(child.stdout.take()).next().expect("a line on start");
        let (_, address_and_rest) = first_line.split_once(" listens on ").expect("an address");
        let address: Addresses =
            address_and_rest.split(';').next().unwrap_or_default().parse().expect("an address");
        let metrics = StageMetrics::new();
        let source = Source::connect("camera", "work", address, Settings::default(), metrics);
        let ends = with_timeout(EndListener::listen(store.parse().expect("an address"))).await;
        Self { child, source, listener: ends, results, _store: tasks }
    }

    async fn send(&mut self, payload: &[u8]) {
        with_timeout(self.source.send(payload.to_vec().into(), None)).await;
    }

    async fn next_end(&mut self) -> End {
        match with_timeout(self.listener.next()).await {
            EndEvent::End(end) => end,
            EndEvent::Missed(number) => panic!("missed {number}"),
        }
    }

    /// Sends a payload, and returns its result or the reason of its failure.
    async fn result(&mut self, payload: &[u8]) -> Result<Vec<u8>, String> {
        self.send(payload).await;
        match self.next_end().await.failure {
            Some(failure) => Err(failure.reason),
            None => Ok(self.results.try_recv().expect("stored before its end")),
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let kill = std::process::Command::new("kill").args(["-s", name, &pid]).status();
        assert!(kill.expect("kill runs").success());
    }

    /// Waits until the stage exits, without blocking the tasks of source and store.
    async fn exit_code(&mut self) -> Option<i32> {
        let mut poll = tokio::time::interval(Duration::from_millis(5));
        with_timeout(async {
            loop {
                match self.child.try_wait().expect("a child") {
                    Some(status) => return status.code(),
                    None => poll.tick().await,
                };
            }
        })
        .await
    }
}

impl Drop for TestPipeline {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Starts a last stage that sends its payloads to a channel. Returns its address and its task.
async fn store(results: UnboundedSender<Vec<u8>>) -> (String, JoinSet<()>) {
    let stage = Stage::builder("store").listen("127.0.0.1:0".parse().expect("an address"));
    let stage = stage.work(move |payload: bytes::Bytes| {
        drop(results.send(payload.to_vec()));
        async move { Ok::<_, std::io::Error>(payload) }
    });
    let bound_stage = stage.bind().await.expect("a free port");
    let address = bound_stage.address().to_string();
    let mut tasks = JoinSet::new();
    tasks.spawn(async {
        bound_stage.serve(CancellationToken::new()).await.expect("the stage serves");
    });
    (address, tasks)
}

async fn with_timeout<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(LIMIT, future).await.expect("in time")
}

fn board() -> Board {
    Board::start(&BoardAddresses::ephemeral()).expect("free ports")
}

fn flits(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

async fn wait_until(condition: impl Fn() -> bool) {
    let mut poll = tokio::time::interval(Duration::from_millis(5));
    with_timeout(async {
        while !condition() {
            poll.tick().await;
        }
    })
    .await;
}

#[tokio::test]
async fn frames_are_decoded_and_resized_for_a_model() {
    let mut pipeline =
        TestPipeline::start(&["--decode", "--resize", "8x4", "--workers", "2"], &[]).await;
    let picture = pipeline.result(FRAME).await.expect("a picture");
    assert!(picture.starts_with(b"P6\n8 4\n255\n"), "{picture:?}");
    assert_eq!(picture.len(), 11 + 8 * 4 * 3);
    assert_eq!(pipeline.result(&picture).await, Ok(picture), "a second resize changes the picture");
    let result = pipeline.result(&FRAME[..300]).await;
    assert_eq!(result, Err("is not a complete JPEG: its end is missing".to_owned()));
    let result = pipeline.result(b"no picture").await;
    assert_eq!(result, Err("is neither JPEG nor PPM: begins with \"no pictu\"".to_owned()));
    assert!(pipeline.result(FRAME).await.is_ok(), "a failed item ends the stage");
}

#[tokio::test]
async fn spikes_run_on_the_allocated_board() {
    let (board, folder) = (board(), folder());
    let file = |name: &str, words: &[u32]| {
        let path = folder.path().join(name);
        fs::write(&path, flits(words)).expect("a folder of its own");
        path.display().to_string()
    };
    let (network, sync_file) = (file("net.bin", &[1, 2, 3]), file("sync.bin", &[8, 9]));
    let (east_flag, sync_flag) =
        (format!("east={}", file("east.bin", &[4])), format!("east={sync_file}"));
    let arguments =
        ["--network", &network, "--network", &east_flag, "--run-with", &sync_flag, "--darwin3"];
    let data = board.data().to_string();
    let mut pipeline = TestPipeline::start(&arguments, &[("DARWIN3_ENDPOINTS", &data)]).await;
    assert_eq!(board.take_events(), [], "the board was called before the first item");
    let spikes = flits(&[5, 6, 7, u32::MAX]);
    assert_eq!(pipeline.result(&spikes).await, Ok(spikes.clone()));
    let result = pipeline.result(&spikes[1..]).await;
    assert_eq!(result, Err("is 15 bytes, not a multiple of the 4 bytes of a flit".to_owned()));
    let result = pipeline.result(&vec![0; 4 << 20]).await;
    let reason = "makes a message of 4194332 bytes, and a board reads at most 4194304";
    assert_eq!(result, Err(reason.to_owned()));
    assert_eq!(pipeline.result(&spikes).await, Ok(spikes.clone()));
    let expected = [BoardEvent::Deployed(4), BoardEvent::Ran(6), BoardEvent::Ran(6)];
    assert_eq!(board.take_events(), expected);

    // Networks of the vendor may put their results at the east edge.
    let arguments = ["--darwin3", &data, "--run-with", &sync_flag, "--result-edge", "east"];
    let mut pipeline = TestPipeline::start(&arguments, &[]).await;
    assert_eq!(pipeline.result(&spikes).await, Ok(flits(&[8, 9])));
    assert!(!board.is_wedged());
}

/// State of a listening socket in `/proc/net/tcp`. Its queue counts connections, not bytes.
const LISTEN: &str = "0A";

/// Unread bytes in the connections to a port of this machine.
fn unread_bytes(port: u16) -> usize {
    let table = fs::read_to_string("/proc/net/tcp").expect("readable");
    let byte_counts = table.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state, queues) = (fields.next()?, fields.nth(1)?, fields.next()?);
        let is_connection = local.ends_with(&format!(":{port:04X}")) && state != LISTEN;
        let (_, byte_count) = queues.split_once(':').filter(|_| is_connection)?;
        usize::from_str_radix(byte_count, 16).ok()
    });
    byte_counts.sum()
}

/// Does not kill a stage between connect and send: after that kill, no program can send the board a whole message.
#[tokio::test]
async fn a_board_is_not_wedged_by_stages_that_drain_or_are_killed_while_they_wait_for_it() {
    let board = board();
    let data = board.data();
    let spikes = flits(&[7; 100]);
    let length = 20 + spikes.len();
    for name in ["TERM", "KILL"] {
        let mut pipeline = TestPipeline::start(&["--darwin3", &data.to_string()], &[]).await;
        assert_eq!(pipeline.result(&spikes).await, Ok(spikes.clone()));
        // The board waits for the end of another message, and the stage for the board.
        let mut other_connection = TcpStream::connect(data).expect("the board listens");
        let message = flits(&[0x7001, 8, 0, 0, 0, 1, 2]);
        other_connection.write_all(&message[..24]).expect("sent");
        wait_until(|| unread_bytes(data.port()) == 0).await;
        pipeline.send(&spikes).await;
        wait_until(|| unread_bytes(data.port()) == length).await;
        pipeline.signal(name);
        if name == "KILL" {
            assert_eq!(pipeline.exit_code().await, None);
        }
        other_connection.write_all(&message[24..]).expect("sent");
        if name == "TERM" {
            assert_eq!(pipeline.exit_code().await, Some(0));
        }
        wait_until(|| unread_bytes(data.port()) == 0).await;
    }
    let mut pipeline = TestPipeline::start(&["--darwin3", &data.to_string()], &[]).await;
    assert_eq!(pipeline.result(&spikes).await, Ok(spikes));
    assert!(!board.is_wedged());
    let (own_run, other_run) = (BoardEvent::Ran(100), BoardEvent::Ran(2));
    let events = board.take_events();
    let count =
        |event: &BoardEvent| events.iter().filter(|counted_event| *counted_event == event).count();
    assert_eq!((count(&own_run), count(&other_run), events.len()), (5, 2, 7), "{events:?}");
}

#[tokio::test]
async fn two_boards_are_two_workers_and_each_serves_one_run_at_a_time() {
    let boards = [board(), board()];
    let addresses = format!("{},{}", boards[0].data(), boards[1].data());
    let mut pipeline = TestPipeline::start(&["--darwin3", &addresses], &[]).await;
    let spikes = flits(&vec![7; 100_000]);
    for _ in 0..20 {
        pipeline.send(&spikes).await;
    }
    for _ in 0..20 {
        assert_eq!(pipeline.next_end().await.failure, None);
    }
    let run_counts = boards.each_ref().map(|board| board.take_events().len());
    assert_eq!(run_counts[0] + run_counts[1], 20);
    assert!(run_counts.iter().all(|&runs| runs > 0), "{run_counts:?}");
}

#[tokio::test]
async fn a_wedged_and_a_missing_board_are_reported_by_address_and_recover() {
    let (mut board, folder) = (board(), folder());
    let data = board.data();
    let network = folder.path().join("net.bin");
    fs::write(&network, flits(&[1, 2])).expect("a folder of its own");
    let network = network.display().to_string();
    let address = data.to_string();
    let arguments = ["--darwin3", &address, "--network", &network, "--work-timeout", "1s"];
    let mut pipeline = TestPipeline::start(&arguments, &[]).await;
    let spikes = flits(&[5]);
    assert_eq!(pipeline.result(&spikes).await, Ok(spikes.clone()));

    drop(TcpStream::connect(data).expect("the board listens"));
    wait_until(|| board.is_wedged()).await;
    let failure = pipeline.result(&spikes).await.expect_err("the board is wedged");
    let reason = format!(
        "the Darwin3 board at {data} did not answer within 900ms; if it never answers, \
         its data port is blocked: restart its server"
    );
    assert_eq!(failure, reason);
    board.take_events();
    board.restart();
    assert_eq!(pipeline.result(&spikes).await, Ok(spikes.clone()));
    let events = board.take_events();
    assert!(events.ends_with(&[BoardEvent::Deployed(2), BoardEvent::Ran(1)]), "{events:?}");

    let control = board.control();
    drop(board);
    let failure = pipeline.result(&spikes).await.expect_err("the board is gone");
    let reason =
        format!("cannot connect to the Darwin3 board at {data}: check that its server runs");
    assert!(failure.starts_with(&reason), "{failure}");
    board = Board::start(&BoardAddresses { control, data }).expect("its old ports");
    assert_eq!(pipeline.result(&spikes).await, Ok(spikes));
    assert_eq!(board.take_events(), [BoardEvent::Deployed(2), BoardEvent::Ran(1)]);
}

#[test]
fn wrong_flags_of_pictures_and_boards_are_refused_before_anything_listens() {
    let folder = folder();
    let file = |name: &str, bytes: &[u8]| {
        fs::write(folder.path().join(name), bytes).expect("a folder of its own");
        folder.path().join(name).display().to_string()
    };
    let (odd_file, valid_file) = (file("odd.bin", &[0; 6]), file("whole.bin", &[0; 8]));
    let missing_file = folder.path().join("none.bin").display().to_string();
    let (west_flag, east_flag) = (format!("west={valid_file}"), format!("east={valid_file}"));
    for (flags, reason) in [
        (&["--resize", "320"][..], "write WIDTHxHEIGHT, such as 320x320, of 1 to 16384 pixels"),
        (&["--resize", "3x0"], "write WIDTHxHEIGHT"),
        (&["--resize", "3x3", "--exec", "cat"], "cannot be used with"),
        (&["--decode", "--sleep", "1ms"], "cannot be used with"),
        (
            &["--darwin3"],
            "write HOST:PORT, or run in a container with a board: DARWIN3_ENDPOINTS is not set",
        ),
        (&["--darwin3", "10.0.0.21"], "\"10.0.0.21\" is not a data port: write HOST:PORT"),
        (&["--network", &valid_file], "--darwin3"),
        (&["--darwin3", "h:1", "--network", &odd_file], "--network: is 6 bytes, not a multiple"),
        (&["--darwin3", "h:1", "--network", &missing_file], "--network: cannot read "),
        (
            &["--darwin3", "h:1", "--network", &valid_file, "--network", &west_flag],
            "an edge has two files",
        ),
        (&["--darwin3", "h:1", "--run-with", &west_flag], "payloads enter at the west edge"),
        (&["--darwin3", "h:1", "--result-edge", "east"], "give some with --run-with"),
        (&["--darwin3", "h:1", "--run-with", &east_flag, "--workers", "2"], "is one worker"),
    ] {
        let base = ["stage", "--name", "work", "--listen", "127.0.0.1:0"];
        let output = run(&[&base[..], flags].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), super::USAGE, "{flags:?}: {stderr}");
        assert!(stderr.contains(reason), "{flags:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{flags:?}");
    }
}
