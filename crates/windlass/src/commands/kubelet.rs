//! `windlass kubelet`: the embedded kubelet for any device plugin.

mod folder;
mod pod_argument;
mod session;

use std::{
    io::{self, IsTerminal as _},
    time::Duration,
};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncBufReadExt as _, BufReader, stdin};
use windlass_kubelet_sim::{Config, Event, Kubelet};

use crate::{
    cli::KubeletArgs,
    exit::UsageError,
    screen::{pluralized, print_line},
    stop::StopSignals,
};
use session::{Flow, Session};

/// Time that `--pod` waits for enough devices.
const PLUGIN_WAIT: Duration = Duration::from_secs(30);

pub(crate) async fn run(args: KubeletArgs) -> Result<()> {
    let pods = args.pods.iter().map(|text| pod_argument::parse(text));
    let pods = pods.collect::<Result<Vec<_>>>().map_err(UsageError)?;
    let config = config(&args);
    folder::claim_folder(&config).await?;
    let mut signals = StopSignals::listen()?;
    let kubelet = Kubelet::start(config).context("cannot start the embedded kubelet")?;
    print_line(format!("EMBEDDED kubelet, not a real one, in {}", args.dir.display()))?;
    print_line(format!(
        "plugins register at {}",
        kubelet.config().registration_socket().display()
    ))?;
    print_line(format!(
        "pod resources at    {}",
        kubelet.config().pod_resources_socket().display()
    ))?;
    print_line("type `help` for the commands; `quit`, Ctrl-D or Ctrl-C ends it")?;
    let mut session = Session::new(&kubelet);
    let serving = async {
        for pod in pods {
            session.admit_when_possible(pod, PLUGIN_WAIT).await?;
        }
        read_commands(&mut session).await
    };
    let outcome = tokio::select! {
        outcome = serving => outcome,
        outcome = print_events(&kubelet) => outcome,
        _ = signals.recv() => Ok(()),
    };
    kubelet.shutdown().await;
    outcome
}

/// Executes commands from stdin. Ctrl-D on a terminal ends the kubelet. A closed pipe does not end it, so that it can
/// run in the background.
async fn read_commands(session: &mut Session<'_>) -> Result<()> {
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(text) = lines.next_line().await.context("cannot read stdin")? {
        match session.execute(&text).await? {
            Flow::Continue => {}
            Flow::End => return Ok(()),
        }
    }
    if io::stdin().is_terminal() {
        return Ok(());
    }
    print_line("stdin is closed: the kubelet runs until SIGTERM or Ctrl-C")?;
    std::future::pending().await
}

/// Prints the events of plugins as they happen.
async fn print_events(kubelet: &Kubelet) -> Result<()> {
    let log = kubelet.events();
    let mut printed_count = 0;
    loop {
        let result = log.wait_for(|events| events.len() > printed_count, Duration::MAX).await;
        let events = result.unwrap_or_else(|events| events);
        for text in events[printed_count..].iter().filter_map(event_text) {
            print_line(text)?;
        }
        printed_count = events.len();
    }
}

fn event_text(event: &Event) -> Option<String> {
    Some(match event {
        Event::Registered { resource, endpoint } => {
            format!("+ {resource} registered from {}", endpoint.display())
        }
        Event::RegistrationRefused { resource, message } => {
            format!("! registration of {resource} refused: {message}")
        }
        Event::ListReceived { resource, devices } => {
            let healthy = devices.iter().filter(|device| device.is_healthy()).count();
            format!("+ {resource} lists {}, {healthy} healthy", pluralized(devices.len(), "device"))
        }
        Event::StreamEnded { resource, reason, .. } => {
            format!("- {resource} ended its device list: {reason}")
        }
        Event::PreferredAllocationReceived { resource, call, .. } => format!(
            "? {resource}: {} of {} available requested, prefers {}",
            call.size,
            call.available.len(),
            call.preferred.join(" ")
        ),
        Event::AllocateFailed { pod, resource, message, .. } => {
            format!("! {resource} did not allocate for {pod}: {message}")
        }
        Event::Panicked { message } => {
            format!("! a real kubelet would have crashed here: {message}")
        }
        _ => return None,
    })
}

fn config(args: &KubeletArgs) -> Config {
    let mut config = Config::new(&args.dir);
    config.release = args.release;
    config.plugin_dir_cleanup = args.cleanup;
    config.topology = args.topology_policy;
    config.numa_nodes = (0..8).collect();
    config
}
