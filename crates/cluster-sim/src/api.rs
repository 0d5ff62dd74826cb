//! API server for the objects that a DRA driver uses, over HTTP/1 on a loopback port.
//!
//! ```text
//!  client ──HTTP──> http ──> state: verbs, faults, log ──> strategy, gates, validate
//!                     ▲                    │
//!                     └─── watches ── store: objects, versions, history
//!  test ── Objects ────────────────────────┘
//! ```
//!
//! The server responds as the API server of Kubernetes 1.36 does; `tests/script.rs` sends the same requests to both.
//! Not modelled:
//!
//! - authentication and authorisation (a fault can forbid any request)
//! - `dryRun` (refused)
//! - schemas in `OpenAPI`
//! - responses in YAML, protobuf and CBOR (406)
//! - bodies of pods, nodes and namespaces in protobuf (400)
//! - conflicts between an apply and an update
//! - `managedFields`, `v1beta1`, grace periods of pods

mod binding;
mod discovery;
mod eviction;
mod fault;
mod gate;
mod http;
mod kind;
mod list;
mod media;
mod objects;
mod openapi;
mod options;
mod patch;
mod protobuf;
mod refusal;
mod request;
mod response;
mod review;
mod selector;
mod server_state;
mod shape;
mod store;
mod strategy;
mod strict;
mod table;
mod validate;
mod watch;
mod write;

use std::{collections::BTreeSet, fmt, net::SocketAddr};

use tokio::{net::TcpSocket, sync::watch::Sender, task::JoinSet};

pub use self::{
    fault::{Effect, Fault},
    gate::Gate,
    kind::Object,
    objects::{Objects, WaitTimeout},
    refusal::Refusal,
    request::ApiRequest,
};
use self::{server_state::ServerState, store::Store};

/// Settings of a server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Minor version: 36 for Kubernetes 1.36.
    pub minor: u32,
    /// Disabled feature gates.
    pub disabled_gates: BTreeSet<Gate>,
    /// Seed of generated names and ids.
    pub seed: u64,
}

/// API server with its objects. Dropping it stops the server and closes all connections.
pub struct ApiServer {
    state: Sender<ServerState>,
    address: SocketAddr,
    /// Reserves the port while no socket listens on it.
    _port: TcpSocket,
    tasks: JoinSet<()>,
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 64;

// === impl Settings ===

impl Default for Settings {
    fn default() -> Self {
        Self { minor: 36, disabled_gates: Gate::OFF_IN_1_36.into(), seed: 1 }
    }
}

impl Settings {
    /// Settings of a 1.35 server, where most DRA features beyond the core are off.
    pub fn of_1_35() -> Self {
        Self { minor: 35, disabled_gates: Gate::OFF_BEFORE_1_36.into(), ..Self::default() }
    }

    /// Returns the settings with one more gate disabled.
    #[must_use]
    pub fn without_gate(mut self, gate: Gate) -> Self {
        self.disabled_gates.insert(gate);
        self
    }
}

// === impl ApiServer ===

impl ApiServer {
    /// Starts a server of Kubernetes 1.36.
    pub fn start() -> Self {
        Self::start_with(Settings::default())
    }

    /// Starts a server.
    pub fn start_with(settings: Settings) -> Self {
        let mut server = Self::offline(settings);
        server.go_online();
        server
    }

    /// Creates a server that refuses connections until [`ApiServer::go_online`] is called.
    pub fn offline(settings: Settings) -> Self {
        let Settings { minor, disabled_gates, seed } = settings;
        let store = Store::new(seed);
        let (requests, refused_requests, faults) = (Vec::new(), Vec::new(), Vec::new());
        let state =
            ServerState { store, requests, refused_requests, faults, disabled_gates, minor };
        let socket = bind(SocketAddr::from(([127, 0, 0, 1], 0)));
        let address = socket.local_addr().expect("a bound socket has an address");
        let state = Sender::new(state);
        Self { state, address, _port: socket, tasks: JoinSet::new() }
    }

    /// Closes all connections and refuses new ones. The objects are kept.
    pub async fn go_offline(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Accepts connections, always on the same port.
    pub fn go_online(&mut self) {
        if self.tasks.is_empty() {
            let listener = bind(self.address).listen(BACKLOG).expect("a bound socket listens");
            self.tasks.spawn(http::serve(listener, self.state.clone()));
        }
    }

    /// Adds a fault. The first matching fault applies to a request.
    pub fn inject(&self, fault: Fault) {
        self.state.send_modify(|state| state.faults.push(fault));
    }

    /// Removes all faults.
    pub fn clear_faults(&self) {
        self.state.send_modify(|state| state.faults.clear());
    }

    /// Replaces the set of disabled gates, like an upgrade of the cluster.
    pub fn set_disabled_gates(&self, gates: impl IntoIterator<Item = Gate>) {
        self.state.send_modify(|state| state.disabled_gates = gates.into_iter().collect());
    }

    /// Handle to the objects.
    pub fn objects(&self) -> Objects {
        Objects::new(self.state.clone())
    }

    /// URL, such as `http://127.0.0.1:12345`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Text of a kubeconfig file.
    pub fn kubeconfig(&self) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: \"{}\"}}}}]\n\
             users: [{{name: u, user: {{token: t}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u, namespace: default}}}}]\n",
            self.url()
        )
    }
}

impl fmt::Debug for ApiServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApiServer").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Binds a socket. Several sockets may share one address while at most one of them listens.
fn bind(address: SocketAddr) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("the machine has IPv4");
    socket.set_reuseaddr(true).expect("the option is known");
    socket.bind(address).expect("the loopback address has a free port");
    socket
}
