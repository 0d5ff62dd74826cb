//! The stages of a placement as processes, and the links between their boards.

use std::{
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::time::sleep;
use windlass_conformance::process::Process;
use windlass_pipeline::{Fleet, Pipeline, Placement, placement::Replica, quantity::Seconds};

use super::{link::Link, port::Port};

/// Simulated boards with the stages on them.
pub(crate) struct SimulatedBoards<'a> {
    pipeline: &'a Pipeline,
    ports: Vec<Arc<Port>>,
    folder: PathBuf,
    /// By stage and replica.
    stages: Vec<Vec<StageProcess>>,
}

/// A replica of a stage.
struct StageProcess {
    replica: Replica,
    address: SocketAddr,
    process: Process,
    /// Links to the replicas of the next stages on other boards, with the position of those.
    links: Vec<((usize, usize), Link)>,
}

/// The processes start on a machine that may be busy.
const START_LIMIT: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// An even variation by up to `v` has a standard deviation of `v / √3`.
const EVEN: f64 = 1.732_050_807_568_877_2;

// === impl SimulatedBoards ===

impl<'a> SimulatedBoards<'a> {
    /// Starts all stages, the last one first, and waits until they listen.
    pub(crate) async fn start(
        pipeline: &'a Pipeline,
        fleet: &Fleet,
        placement: &Placement,
        folder: &Path,
    ) -> Result<Self> {
        let ports = fleet.nodes.iter().map(|node| Arc::new(Port::new(node.link))).collect();
        let stages = pipeline.stages.iter().map(|_| Vec::new()).collect();
        let mut boards = Self { pipeline, ports, folder: folder.to_owned(), stages };
        for stage in (0..pipeline.stages.len()).rev() {
            for replica in &placement.replicas[stage] {
                let started = boards.start_stage(stage, *replica, free_port()?)?;
                boards.stages[stage].push(started);
            }
        }
        boards.all_listen().await?;
        Ok(boards)
    }

    /// Addresses of a stage's replicas, with commas.
    pub(crate) fn addresses(&self, stage: usize) -> String {
        let addresses = self.stages[stage].iter().map(|one| one.address.to_string());
        addresses.collect::<Vec<_>>().join(",")
    }

    /// Kills every stage on a board, as a power failure does.
    pub(crate) async fn fail(&mut self, node: usize) {
        for stage in self.stages.iter_mut().flatten().filter(|stage| stage.replica.node == node) {
            stage.process.kill().await;
        }
    }

    /// Starts those stages anew that another placement has elsewhere, at their old addresses, as a Service does.
    pub(crate) async fn place_anew(&mut self, placement: &Placement) -> Result<()> {
        for stage in (0..self.stages.len()).rev() {
            let count = self.stages[stage].len();
            ensure!(
                count == placement.replicas[stage].len(),
                "the other placement has another number of replicas"
            );
            for (position, replica) in placement.replicas[stage].iter().enumerate() {
                if self.stages[stage][position].replica.node == replica.node {
                    continue;
                }
                let address = self.stages[stage][position].address;
                self.stages[stage][position].process.kill().await;
                let started = self.start_stage(stage, *replica, address)?;
                self.stages[stage][position] = started;
                self.lead_links_to((stage, position), replica.node);
            }
        }
        self.all_listen().await
    }

    /// Stops all stages; what they have is lost.
    pub(crate) async fn stop(mut self) {
        for stage in self.stages.iter_mut().flatten() {
            stage.process.kill().await;
        }
    }

    fn lead_links_to(&self, receiver: (usize, usize), node: usize) {
        let links = self.stages.iter().flatten().flat_map(|sender| &sender.links);
        for (_, link) in links.filter(|(to, _)| *to == receiver) {
            link.lead_to(Arc::clone(&self.ports[node]));
        }
    }

    fn start_stage(
        &self,
        stage: usize,
        replica: Replica,
        address: SocketAddr,
    ) -> Result<StageProcess> {
        let name = &self.pipeline.stages[stage].name;
        let mut words = self.arguments(stage, replica, address)?;
        let mut links = Vec::new();
        for link in self.pipeline.links_from(stage) {
            let next = self.next_addresses(link.to, replica.node, &mut links)?;
            words.extend([
                "--next".to_owned(),
                format!("{}={next}", self.pipeline.stages[link.to].name),
            ]);
        }
        let program = std::env::current_exe().context("cannot find this program")?;
        let command: Vec<OsString> =
            std::iter::once(program.into()).chain(words.into_iter().map(OsString::from)).collect();
        let process = Process::start(&command, &self.folder)
            .with_context(|| format!("cannot start stage {name}"))?;
        Ok(StageProcess { replica, address, process, links })
    }

    /// Arguments of a stage's program, without the next stages.
    fn arguments(
        &self,
        stage: usize,
        replica: Replica,
        address: SocketAddr,
    ) -> Result<Vec<String>> {
        let of = &self.pipeline.stages[stage];
        let alternative = replica.alternative(self.pipeline, stage);
        let mut words: Vec<String> =
            ["stage", "--log", "warn", "--name", &of.name].map(str::to_owned).into();
        words.extend(["--listen".to_owned(), address.to_string()]);
        // The stage ends with this program, even if that is killed.
        words.extend(["--ends-with".to_owned(), std::process::id().to_string()]);
        words.extend(["--sleep".to_owned(), microseconds(alternative.time)]);
        if alternative.batch_time.0 > 0.0 {
            words.extend(["--sleep-batch".to_owned(), microseconds(alternative.batch_time)]);
        }
        if alternative.variation > 0.0 {
            let part = alternative.variation * EVEN;
            ensure!(
                part <= 1.0,
                "stage {}: boards are simulated with a variation of at most 0.57",
                of.name
            );
            words.extend(["--variation".to_owned(), part.to_string()]);
        }
        if let Some(output) = of.output {
            words.extend(["--output".to_owned(), output.0.to_string()]);
        }
        if of.batch > 1 {
            words.extend(["--batch".to_owned(), of.batch.to_string()]);
        }
        let senders: Vec<_> = self.pipeline.links_to(stage).map(|link| link.from).collect();
        if senders.len() > 1 {
            let names = senders.into_iter().map(|sender| self.pipeline.stages[sender].name.clone());
            words.extend(names.flat_map(|name| ["--from".to_owned(), name]));
        }
        Ok(words)
    }

    /// Addresses of a next stage as a board reaches them: directly on the same board, else by a link.
    fn next_addresses(
        &self,
        next: usize,
        node: usize,
        links: &mut Vec<((usize, usize), Link)>,
    ) -> Result<String> {
        let mut addresses = Vec::new();
        for (position, receiver) in self.stages[next].iter().enumerate() {
            if receiver.replica.node == node {
                addresses.push(receiver.address.to_string());
                continue;
            }
            let ports = [node, receiver.replica.node].map(|node| Arc::clone(&self.ports[node]));
            let [from, to] = ports;
            let link = Link::start(from, to, receiver.address).context("cannot start a link")?;
            addresses.push(link.address().to_string());
            links.push(((next, position), link));
        }
        Ok(addresses.join(","))
    }

    async fn all_listen(&self) -> Result<()> {
        let begun = Instant::now();
        for (stage, of) in self.stages.iter().zip(&self.pipeline.stages) {
            for replica in stage {
                while TcpStream::connect(replica.address).is_err() {
                    ensure!(
                        begun.elapsed() < START_LIMIT,
                        "stage {} does not listen at {}",
                        of.name,
                        replica.address
                    );
                    sleep(LOOK_EVERY).await;
                }
            }
        }
        Ok(())
    }
}

/// A free port, chosen in advance: the neighbours have to know it.
fn free_port() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .context("no port of this machine's own is free")?;
    Ok(listener.local_addr()?)
}

/// A time as the program reads it, without rounding it for people.
fn microseconds(time: Seconds) -> String {
    format!("{}us", 1e6 * time.0)
}
