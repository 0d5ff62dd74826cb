//! Name server for headless Services, for a cluster without one. It serves the part of DNS (RFC 1035) that pods need.

use std::{
    collections::BTreeMap,
    io::ErrorKind,
    net::{Ipv4Addr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::cluster::pods::try_kubectl;

/// Answers from the API server's endpoint slices until dropped.
pub(super) struct NameServer {
    is_stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Addresses by name.
type Names = BTreeMap<String, Vec<Ipv4Addr>>;

const PORT: u16 = 53;
/// Maximum age of the cached answer of the API server.
const CACHE_TTL: Duration = Duration::from_millis(500);
/// The header of a message, before its question.
const HEADER: usize = 12;
/// Type of a question for IPv4 addresses.
const A: u16 = 1;
/// Flags of an answer that is authoritative and whose recursion is available.
const ANSWER: u16 = 0x8580;
/// Code of a name that does not exist.
const NO_SUCH_NAME: u16 = 3;

// === impl NameServer ===

impl NameServer {
    pub(super) fn start() -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).expect("port 53 is free");
        socket.set_read_timeout(Some(Duration::from_millis(200))).expect("a limit");
        let is_stopped = Arc::new(AtomicBool::new(false));
        let thread_flag = Arc::clone(&is_stopped);
        let thread = thread::spawn(move || serve(&socket, &thread_flag));
        Self { is_stopped, thread: Some(thread) }
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        let result = self.thread.take().map(JoinHandle::join);
        assert!(thread::panicking() || matches!(result, Some(Ok(()))), "the name server failed");
    }
}

fn serve(socket: &UdpSocket, is_stopped: &AtomicBool) {
    let (mut names, mut fetched_at) = (Names::new(), None);
    let mut question = [0; 512];
    while !is_stopped.load(Ordering::Relaxed) {
        let (size, from) = match socket.recv_from(&mut question) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        if fetched_at.is_none_or(|time: Instant| time.elapsed() > CACHE_TTL) {
            // After a failure, keep the old names: pods retry.
            names = services().unwrap_or(names);
            fetched_at = Some(Instant::now());
        }
        if let Some(answer) = answer(&question[..size], &names) {
            // The pod may be gone.
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// Addresses of the ready pods of each Service.
fn services() -> Option<Names> {
    let list = try_kubectl(&["get", "endpointslices", "-A", "-o", "json"]).ok()?;
    let list: Value = serde_json::from_str(&list).ok()?;
    let mut names = Names::new();
    for slice in list["items"].as_array()? {
        let metadata = &slice["metadata"];
        let service = metadata["labels"]["kubernetes.io/service-name"].as_str();
        let (Some(service), Some(namespace)) = (service, metadata["namespace"].as_str()) else {
            continue;
        };
        let addresses =
            names.entry(format!("{service}.{namespace}.svc.cluster.local")).or_default();
        let endpoints = slice["endpoints"].as_array().into_iter().flatten();
        let ready_endpoints = endpoints.filter(|endpoint| endpoint["conditions"]["ready"] != false);
        let texts = ready_endpoints.filter_map(|endpoint| endpoint["addresses"][0].as_str());
        addresses.extend(texts.filter_map(|text| text.parse::<Ipv4Addr>().ok()));
    }
    Some(names)
}

/// Answer to a question. `None` for an invalid message.
fn answer(message: &[u8], names: &Names) -> Option<Vec<u8>> {
    let (mut position, mut labels) = (HEADER, Vec::new());
    while *message.get(position)? > 0 {
        let end = position + 1 + usize::from(message[position]);
        labels.push(String::from_utf8_lossy(message.get(position + 1..end)?).to_lowercase());
        position = end;
    }
    let question = message.get(HEADER..position + 5)?;
    let record_type = u16::from_be_bytes([message[position + 1], message[position + 2]]);
    let known_addresses = names.get(&labels.join("."));
    let addresses =
        known_addresses.filter(|_| record_type == A).map(Vec::as_slice).unwrap_or_default();
    let flags = if known_addresses.is_some() { ANSWER } else { ANSWER | NO_SUCH_NAME };
    let count = u16::try_from(addresses.len()).ok()?;
    let mut answer = message[..2].to_vec();
    for field in [flags, 1, count, 0, 0] {
        answer.extend(field.to_be_bytes());
    }
    answer.extend(question);
    for address in addresses {
        // The name of the question; class IN; a TTL of zero; four bytes.
        answer.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}
