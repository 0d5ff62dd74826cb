//! `windlass stage` as processes: their work, their drain, and crashes.

use std::{
    collections::{BTreeMap, BTreeSet},
    process::{Child, Command, Stdio},
    time::Duration,
};

use windlass_stage::{
    Addresses, End, EndEvent, EndListener, FailureKind, Settings, Source, StageMetrics,
};

use crate::program::{OutputLines, folder, run, text, windlass};

/// A running `windlass stage`; killed when dropped.
struct Process {
    child: Child,
    address: String,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut command = windlass(&["stage", "--listen", "127.0.0.1:0"]);
        command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("windlass runs");
        let first_line =
            OutputLines::from_pipe(child.stdout.take()).next().expect("a line on start");
        let (_, address_and_rest) = first_line.split_once(" listens on ").expect("an address");
        let address = address_and_rest.split(';').next().unwrap_or_default().to_owned();
        Self { child, address }
    }

    /// Value of `--next` for a stage before this one.
    fn next_flag(&self) -> String {
        format!("store={}", self.address)
    }

    fn addresses(&self) -> Addresses {
        self.address.parse().expect("an address")
    }

    /// Terminates the process, as the deletion of a pod does. Returns its exit code. Meanwhile the sources of the test
    /// run: one that is frozen for ten seconds loses its connections.
    async fn terminate(&mut self) -> Option<i32> {
        self.signal("TERM");
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-s", name, &pid]).status().expect("kill runs");
        assert!(status.success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn source(stage: &str, addresses: Addresses) -> Source {
    Source::connect("camera", stage, addresses, Settings::default(), StageMetrics::new())
}

async fn with_timeout<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("in time")
}

async fn wait_for_ends(listener: &mut EndListener, count: usize) -> BTreeMap<u64, End> {
    let mut ends = BTreeMap::new();
    while ends.len() < count {
        let EndEvent::End(end) = with_timeout(listener.next()).await else {
            panic!("an end was missed")
        };
        assert!(ends.insert(end.id, end).is_none(), "an item ended twice");
    }
    ends
}

/// Sends a payload, and returns its end.
async fn end_of(source: &mut Source, listener: &mut EndListener, payload: &'static [u8]) -> End {
    with_timeout(source.send(payload.into(), None)).await;
    wait_for_ends(listener, 1).await.into_values().next().expect("one end")
}

#[tokio::test]
async fn a_stage_runs_a_program_or_calls_a_grpc_method() {
    let mut store = Process::start(&["--name", "store"]);
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let script = "read word; if [ $word = bad ]; then echo first >&2; echo no such frame >&2; exit 3; fi; echo $word$word";
    let shell = ["--name", "shell", "--next", &store.next_flag(), "--exec", "sh", "-c", script];
    let mut shell = Process::start(&shell);
    let mut shell_source = source("shell", shell.addresses());
    let end = end_of(&mut shell_source, &mut listener, b"abc\n").await;
    assert_eq!((end.failure, end.payload_bytes), (None, 7));
    let failure =
        end_of(&mut shell_source, &mut listener, b"bad\n").await.failure.expect("a failure");
    assert_eq!(failure.kind, FailureKind::Work);
    assert_eq!(failure.reason, "sh ended with exit status: 3: no such frame");

    // Any unary method serves for the test.
    let method = format!("http://{}/windlass.stage.v1.Stage/Describe", store.address);
    let mut caller =
        Process::start(&["--name", "caller", "--next", &store.next_flag(), "--call", &method]);
    let mut caller_source = source("caller", caller.addresses());
    let end = end_of(&mut caller_source, &mut listener, b"").await;
    assert_eq!(end.failure, None);
    assert!(end.payload_bytes > "store".len() as u64);
    let failure =
        end_of(&mut caller_source, &mut listener, b"\xff").await.failure.expect("no message");
    assert!(failure.reason.starts_with("/windlass.stage.v1.Stage/Describe at http://127.0.0.1:"));

    with_timeout(shell_source.finish()).await;
    with_timeout(caller_source.finish()).await;
    drop(listener);
    for process in [&mut shell, &mut caller, &mut store] {
        assert_eq!(with_timeout(process.terminate()).await, Some(0));
    }
}

#[tokio::test]
async fn every_item_of_killed_and_drained_processes_ends() {
    let store = Process::start(&["--name", "store"]);
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let next_flag = store.next_flag();
    let arguments =
        ["--name", "detect", "--next", &next_flag, "--sleep", "2ms", "--variation", "0.5"];
    let [killed_replica, mut drained_replica, other_replica] = ["killed", "drained", "other"]
        .map(|name| Process::start(&[&arguments[..], &["--replica", name]].concat()));
    let addresses = [&killed_replica.address, &drained_replica.address, &other_replica.address]
        .map(String::as_str);
    let mut source = source("detect", addresses.join(",").parse().expect("addresses"));
    let send_items = async {
        for _ in 0..600 {
            with_timeout(source.send(vec![0; 1000].into(), None)).await;
        }
        with_timeout(source.finish()).await;
    };
    let collect_ends = async {
        let mut ends = wait_for_ends(&mut listener, 150).await;
        drop(killed_replica);
        ends.append(&mut wait_for_ends(&mut listener, 150).await);
        assert_eq!(with_timeout(drained_replica.terminate()).await, Some(0));
        ends.append(&mut wait_for_ends(&mut listener, 300).await);
        ends
    };
    let ((), ends) = tokio::join!(send_items, collect_ends);
    let failures: Vec<_> = ends.values().filter_map(|end| end.failure.as_ref()).collect();
    let causes: BTreeSet<_> =
        failures.iter().map(|failure| (&*failure.replica, failure.kind)).collect();
    assert_eq!(causes, [("killed", FailureKind::Stopped)].into(), "{failures:?}");
    // A window from the source, the queue, one in work, two that wait, and a window to the store.
    assert!((1..=8 + 4 + 1 + 2 + 8).contains(&failures.len()), "{}: {failures:?}", failures.len());
}

/// Takes ten seconds: the connection ends after two unanswered keep-alive pings, of five seconds each.
#[tokio::test]
async fn a_hanging_process_is_abandoned_and_its_items_fail() {
    let store = Process::start(&["--name", "store"]);
    let mut listener = with_timeout(EndListener::listen(store.addresses())).await;
    let next_flag = store.next_flag();
    let [hanging_replica, other_replica] = [(); 2]
        .map(|()| Process::start(&["--name", "detect", "--next", &next_flag, "--sleep", "1ms"]));
    let addresses = [hanging_replica.address.as_str(), &other_replica.address].join(",");
    let mut source = source("detect", addresses.parse().expect("addresses"));
    with_timeout(source.send(vec![0; 10].into(), None)).await;
    wait_for_ends(&mut listener, 1).await;
    hanging_replica.signal("STOP");
    for _ in 0..60 {
        with_timeout(source.send(vec![0; 10].into(), None)).await;
    }
    let ends = wait_for_ends(&mut listener, 60).await;
    let failure_count = ends.values().filter(|end| end.failure.is_some()).count();
    assert!(
        (1..=8).contains(&failure_count),
        "more failures than a window of items: {failure_count}"
    );
}

#[test]
fn wrong_flags_are_refused_and_nothing_listens() {
    let folder = folder();
    let socket = format!("unix:{}/detect.sock", folder.path().display());
    for (flags, reason) in [
        (&["--next", "store"][..], "write NAME=ADDRESS"),
        (&["--next", "store=store"], "\"store\" has no port: write host:port, or unix:/path"),
        (&["--sleep", "12"], "\"12\" is not a duration: write 200us, 12ms or 1.5s"),
        (&["--sleep", "1ms", "--compute", "1ms"], "cannot be used with"),
        (&["--output", "2KiB"], "--variation and --output require --sleep or --compute"),
        (&["--from", "a", "--from", "a"], "--from: a stage is named twice"),
        (&["--workers", "0"], "write a number from 1 to 4096"),
    ] {
        let base = ["stage", "--name", "detect", "--listen", &socket];
        let output = run(&[&base[..], flags].concat());
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), super::USAGE, "{flags:?}: {stderr}");
        assert!(stderr.contains(reason), "{flags:?}: {stderr}");
    }
    assert_eq!(folder.path().read_dir().expect("a folder").count(), 0);
}
