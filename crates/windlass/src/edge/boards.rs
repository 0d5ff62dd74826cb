//! Simulated boards: a process for each replica of a stage, and links between the boards.

use std::{
    ffi::OsString,
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use tokio::time::sleep;
use windlass_conformance::process::{Process, free_address};
use windlass_pipeline::{Fleet, Pipeline, Placement, placement::Replica, quantity::Seconds};

use super::{link::Link, port::Port};

/// Simulated boards, one per node of a fleet, with the processes of a placement.
pub(crate) struct SimulatedBoards<'a> {
    pipeline: &'a Pipeline,
    /// Network ports by node.
    ports: Vec<Arc<Port>>,
    folder: PathBuf,
    /// Processes by stage and replica.
    stages: Vec<Vec<StageProcess>>,
}

/// A replica of a stage.
struct StageProcess {
    replica: Replica,
    address: SocketAddr,
    process: Process,
    /// Links to replicas on other boards.
    links: Vec<(ReplicaPosition, Link)>,
}

/// A stage, and the position of one of its replicas.
type ReplicaPosition = (usize, usize);

/// Deadline for all stages to listen. The machine may be busy.
const START_LIMIT: Duration = Duration::from_secs(20);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// √3. A uniform distribution between `-v` and `v` has a standard deviation of `v / √3`: 0.57 for the largest `v`, 1.
const SQRT_3: f64 = 1.732_050_807_568_877_2;

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
                let address = free_address().context("no loopback port is free")?;
                let process = boards.start_stage(stage, *replica, address)?;
                boards.stages[stage].push(process);
            }
        }
        boards.wait_until_listening().await?;
        Ok(boards)
    }

    /// Addresses of a stage's replicas, separated by commas.
    pub(crate) fn addresses(&self, stage: usize) -> String {
        let addresses = self.stages[stage].iter().map(|process| process.address.to_string());
        addresses.collect::<Vec<_>>().join(",")
    }

    /// Kills every stage on the board of a node, as a power failure does.
    pub(crate) async fn fail_board(&mut self, node: usize) {
        for stage in self.stages.iter_mut().flatten().filter(|stage| stage.replica.node == node) {
            stage.process.kill().await;
        }
    }

    /// Restarts the stages whose board differs in the new placement. Their addresses stay, as behind a Service.
    pub(crate) async fn move_stages(&mut self, placement: &Placement) -> Result<()> {
        for stage in (0..self.stages.len()).rev() {
            let count = self.stages[stage].len();
            ensure!(
                count == placement.replicas[stage].len(),
                "the new placement has another number of replicas"
            );
            for (position, replica) in placement.replicas[stage].iter().enumerate() {
                if self.stages[stage][position].replica.node == replica.node {
                    continue;
                }
                let address = self.stages[stage][position].address;
                self.stages[stage][position].process.kill().await;
                let process = self.start_stage(stage, *replica, address)?;
                self.stages[stage][position] = process;
                self.retarget_links((stage, position), replica.node);
            }
        }
        self.wait_until_listening().await
    }

    /// Kills all stages. Their queued items are lost.
    pub(crate) async fn stop(mut self) {
        for stage in self.stages.iter_mut().flatten() {
            stage.process.kill().await;
        }
    }

    /// Sets the new board of a receiver in all links to it.
    fn retarget_links(&self, receiver: ReplicaPosition, node: usize) {
        let links = self.stages.iter().flatten().flat_map(|sender| &sender.links);
        for (_, link) in links.filter(|(to, _)| *to == receiver) {
            link.set_receiver(Arc::clone(&self.ports[node]));
        }
    }

    fn start_stage(
        &self,
        stage: usize,
        replica: Replica,
        address: SocketAddr,
    ) -> Result<StageProcess> {
        let name = &self.pipeline.stages[stage].name;
        let mut arguments = self.arguments(stage, replica, address)?;
        let mut links = Vec::new();
        for link in self.pipeline.links_from(stage) {
            let next = self.next_addresses(link.to, replica.node, &mut links)?;
            arguments.extend([
                "--next".to_owned(),
                format!("{}={next}", self.pipeline.stages[link.to].name),
            ]);
        }
        let program = std::env::current_exe().context("cannot find this program")?;
        let command: Vec<OsString> = std::iter::once(program.into())
            .chain(arguments.into_iter().map(OsString::from))
            .collect();
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
        let spec = &self.pipeline.stages[stage];
        let alternative = replica.alternative(self.pipeline, stage);
        let mut arguments: Vec<String> =
            ["stage", "--log", "warn", "--name", &spec.name].map(str::to_owned).into();
        arguments.extend(["--listen".to_owned(), address.to_string()]);
        // The stage exits with this program, even if this program is killed.
        arguments.extend(["--ends-with".to_owned(), std::process::id().to_string()]);
        arguments.extend(["--sleep".to_owned(), microseconds(alternative.time)]);
        if alternative.batch_time.0 > 0.0 {
            arguments.extend(["--sleep-batch".to_owned(), microseconds(alternative.batch_time)]);
        }
        if alternative.variation > 0.0 {
            let half_width = alternative.variation * SQRT_3;
            ensure!(
                half_width <= 1.0,
                "stage {}: boards are simulated with a variation of at most 0.57",
                spec.name
            );
            arguments.extend(["--variation".to_owned(), half_width.to_string()]);
        }
        if let Some(output) = spec.output {
            arguments.extend(["--output".to_owned(), output.0.to_string()]);
        }
        if spec.batch > 1 {
            arguments.extend(["--batch".to_owned(), spec.batch.to_string()]);
        }
        let senders: Vec<_> = self.pipeline.links_to(stage).map(|link| link.from).collect();
        if senders.len() > 1 {
            let names = senders.into_iter().map(|sender| self.pipeline.stages[sender].name.clone());
            arguments.extend(names.flat_map(|name| ["--from".to_owned(), name]));
        }
        Ok(arguments)
    }

    /// Addresses at which a board reaches the next stage: directly on the same board, else through a link.
    fn next_addresses(
        &self,
        next: usize,
        node: usize,
        links: &mut Vec<(ReplicaPosition, Link)>,
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

    async fn wait_until_listening(&self) -> Result<()> {
        let start = Instant::now();
        for (replicas, spec) in self.stages.iter().zip(&self.pipeline.stages) {
            for replica in replicas {
                while TcpStream::connect(replica.address).is_err() {
                    ensure!(
                        start.elapsed() < START_LIMIT,
                        "stage {} does not listen at {}",
                        spec.name,
                        replica.address
                    );
                    sleep(POLL_INTERVAL).await;
                }
            }
        }
        Ok(())
    }
}

/// Formats a time for the flags of `windlass stage`, in microseconds without rounding.
fn microseconds(time: Seconds) -> String {
    format!("{}us", 1e6 * time.0)
}
