//! A browser that a test drives by the `DevTools` protocol, over a pipe: JSON, each message ended by a zero byte.
//!
//! A page is read after a condition of the test holds in it and its document no longer changes. No clock decides, so a
//! slow machine only takes longer.

use std::{
    env, fs,
    io::{BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
    process::{self, Child, ChildStdin, Command, Stdio},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::dom::{self, Element};

/// A browser without a window and without requests of its own. The sandbox does not start in a container, nor for root;
/// the pages are this test's own.
const FLAGS: [&str; 12] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,800",
    "--enable-logging=stderr",
    "--remote-debugging-pipe",
];

/// The browser reads requests from descriptor 3 and writes answers to 4.
const START: &str = r#"exec "$0" "$@" 3<&0 4>&1 1>&2"#;

/// Limit of one answer. A start takes 2 s, on a busy machine 10.
const TIMEOUT: Duration = Duration::from_secs(90);

/// Waits for READY, then until five frames in a row leave the document as it is: the page spreads its work over frames.
const WAIT_UNTIL_RENDERED: &str = "(async () => {
    const frame = () => new Promise(requestAnimationFrame);
    while (!(READY)) await frame();
    let unchanged = 0;
    const all = { subtree: true, childList: true, attributes: true, characterData: true };
    new MutationObserver(() => { unchanged = 0; }).observe(document, all);
    while (unchanged++ < 5) await frame();
    return document.documentElement.outerHTML;
})()";

/// A running browser. Dropping it kills the browser and removes its profile.
pub(crate) struct Browser {
    child: Child,
    profile: PathBuf,
    requests: ChildStdin,
    answers: mpsc::Receiver<Value>,
    log: mpsc::Receiver<String>,
    /// Number of the latest request.
    latest: u64,
}

impl Browser {
    pub(crate) fn start(program: &Path) -> Self {
        static STARTS: AtomicUsize = AtomicUsize::new(0);
        let number = STARTS.fetch_add(1, Ordering::Relaxed);
        let profile = env::temp_dir().join(format!("windlass-page-{}-{number}", process::id()));
        let mut command = Command::new("sh");
        command.args(["-c", START]).arg(program).args(FLAGS);
        command.arg(format!("--user-data-dir={}", profile.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let requests = child.stdin.take().expect("piped");
        let answers = messages(child.stdout.take().expect("piped"));
        let log = text(child.stderr.take().expect("piped"));
        Self { child, profile, requests, answers, log, latest: 0 }
    }

    /// The document at `url`, once the expression `ready` holds in it and it is drawn.
    pub(crate) fn page(&mut self, url: &str, ready: &str) -> Element {
        let target = self.call("Target.createTarget", &json!({ "url": "about:blank" }), None);
        let target = &target["targetId"];
        let attach = json!({ "targetId": target, "flatten": true });
        let attached = self.call("Target.attachToTarget", &attach, None);
        let session = Some(&attached["sessionId"]);
        self.call("Page.navigate", &json!({ "url": url }), session);
        let expression = WAIT_UNTIL_RENDERED.replace("READY", ready);
        let evaluate =
            json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let evaluated = self.call("Runtime.evaluate", &evaluate, session);
        self.call("Target.closeTarget", &json!({ "targetId": target }), None);
        let document = evaluated["result"]["value"].as_str();
        dom::parse(document.unwrap_or_else(|| panic!("{url}: {evaluated}")))
    }

    /// Ends the browser. Panics if a page wrote an error to the console: an uncaught one, or the refusal of a resource
    /// by the security policy.
    pub(crate) fn end(mut self) {
        self.child.kill().expect("chromium runs until it is ended");
        let log = self.log.recv_timeout(TIMEOUT).expect("chromium ends");
        let errors: Vec<_> = log.lines().filter(|line| line.contains(":CONSOLE")).collect();
        assert_eq!(errors, [""; 0]);
    }

    /// Sends a request to the browser, or to the page of a session, and waits for the answer.
    fn call(&mut self, method: &str, params: &Value, session: Option<&Value>) -> Value {
        self.latest += 1;
        let mut request = json!({ "id": self.latest, "method": method, "params": params });
        if let Some(session) = session {
            request["sessionId"] = session.clone();
        }
        let sent = write!(self.requests, "{request}\0").and_then(|()| self.requests.flush());
        sent.expect("chromium takes requests");
        loop {
            let answer = self.answers.recv_timeout(TIMEOUT);
            let mut answer = answer.unwrap_or_else(|error| panic!("{method}: {error}: {params}"));
            // Other messages are events.
            if answer["id"] == self.latest {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].take();
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // All three fail if the browser has ended by itself.
        self.child.kill().ok();
        self.child.wait().ok();
        fs::remove_dir_all(&self.profile).ok();
    }
}

/// Messages of a pipe, read by a thread of its own.
fn messages(pipe: impl Read + Send + 'static) -> mpsc::Receiver<Value> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // An error ends the messages where it occurs; the receiver may be gone.
        for message in BufReader::new(pipe).split(0).map_while(Result::ok) {
            let message = serde_json::from_slice(&message).expect("chromium writes JSON");
            if sender.send(message).is_err() {
                return;
            }
        }
    });
    receiver
}

/// All text of a pipe, read by a thread of its own.
fn text(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).ok();
        sender.send(String::from_utf8_lossy(&bytes).into_owned()).ok();
    });
    receiver
}
