//! Output of the demo's events: text for people, or JSON.

use std::{
    collections::BTreeMap,
    fmt::Display,
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde::Serialize;
use windlass_core::inventory::Inventory;

use super::{
    event::{Alternative, Arrival, Container, Event, Failure, ResolvedGrant, ResourceCounts},
    pager::Pager,
};
use crate::{
    commands::{DeviceStatus, Topology, Width, device_tables, source_lines},
    screen::{Paint, Style, pluralized, print_line, wrapped},
};

/// Folder of DRM device nodes.
const DRI_DIR: &str = "/dev/dri";

/// Output of events.
#[derive(Clone, Debug)]
pub(super) enum Reporter {
    Text(Paint),
    Json,
    /// Text, shown event by event on the user's request.
    Paged(Pager),
}

/// Event that can be printed.
pub(super) trait Render: Serialize {
    fn lines(&self, render: Renderer) -> Vec<String>;
}

impl Render for Event {
    fn lines(&self, render: Renderer) -> Vec<String> {
        render.lines(self)
    }
}

/// Formats events as lines.
#[derive(Clone, Copy)]
pub(super) struct Renderer(Paint);

// === impl Reporter ===

impl Reporter {
    pub(super) fn report(&self, event: &impl Render) -> Result<()> {
        match self {
            Self::Json => print_line(serde_json::to_string(event)?)?,
            Self::Text(paint) => {
                event.lines(Renderer(*paint)).into_iter().try_for_each(print_line)?;
            }
            Self::Paged(pager) => pager.push(event.lines(Renderer(Paint::for_stdout()))),
        }
        Ok(())
    }
}

// === impl Renderer ===

impl Renderer {
    fn lines(self, event: &Event) -> Vec<String> {
        match event {
            Event::Started { machine, description, dir, simulated: _ } => {
                self.started(machine, description, dir)
            }
            Event::Discovered { inventory, took_ms } => self.discovered(inventory, *took_ms),
            Event::Topology(topology) => self.topology(topology),
            Event::Registered { resources } => self.registered(resources),
            Event::PodAdmitted { pod, containers, took_ms } => {
                self.pod_admitted(pod, containers, *took_ms)
            }
            Event::PodRefused { pod, reason, message } => self.pod_refused(pod, reason, message),
            Event::HandedOver { done, .. } => listed("done  ", done),
            Event::Deleted { pod } => self.deleted(pod),
            Event::CleanedUp { pod, done, took_ms } => self.cleaned_up(pod, done, *took_ms),
            Event::Fault { fault, .. } => self.fault(fault),
            Event::NoFault { device } => {
                vec![String::new(), self.muted(format!("No fault is simulated for {device}"))]
            }
            Event::Unhealthy(failure) => self.unhealthy(failure),
            Event::Waiting { device, end, quiet_ms } => waiting(device, end, *quiet_ms / 1000.0),
            Event::Recovered { device, counts, took_ms } => {
                self.recovered(device, counts, *took_ms)
            }
            Event::KubeletRestarted { resources, pods, devices_held, took_ms } => {
                self.kubelet_restarted(*resources, *pods, *devices_held, *took_ms)
            }
            Event::Finished { steps, pods, took_ms } => self.finished(*steps, *pods, *took_ms),
            Event::Kept { paths, commands } => self.paths_and_commands(paths, commands),
        }
    }

    fn started(self, machine: &str, description: &str, dir: &Path) -> Vec<String> {
        let notice = "The machine is SIMULATED; the agent, its gRPC and its driver calls are real.";
        vec![
            self.bold(format!("Windlass demo on {machine}: {description}")),
            self.0.styled(Style::Warning, notice),
            self.muted(format!("in {}", dir.display())),
        ]
    }

    fn discovered(self, inventory: &Inventory, took_ms: f64) -> Vec<String> {
        let heading = format!("{} {}", self.bold("Discovered"), self.elapsed(took_ms));
        let mut lines = vec![String::new(), heading];
        lines.extend(source_lines(inventory, self.0).iter().map(|text| format!("  {text}")));
        let empty_status = DeviceStatus { offers: &BTreeMap::new(), owners: &BTreeMap::new() };
        for table in device_tables(inventory, empty_status, None, Width::Normal) {
            lines.push(String::new());
            lines.extend(table.lines("  "));
        }
        lines
    }

    fn topology(self, topology: &Topology) -> Vec<String> {
        let mut lines = self.heading("Topology");
        for table in topology.gpu_tables() {
            lines.extend(table.lines("  "));
            lines.push(String::new());
        }
        let legend = wrapped("  ", topology.legend().split_whitespace());
        lines.extend(legend.into_iter().map(|text| self.muted(text)));
        lines
    }

    fn registered(self, resources: &[Arrival]) -> Vec<String> {
        let mut lines = self.heading("Registered with the kubelet");
        for Arrival { counts: ResourceCounts { resource, capacity, allocatable }, took_ms } in
            resources
        {
            let devices = pluralized(*capacity, "device");
            lines.push(format!(
                "  {} {resource}: {devices}, {allocatable} allocatable {}",
                self.ok(),
                self.muted(format!("({took_ms:.1} ms after the agent started)"))
            ));
        }
        lines
    }

    fn pod_admitted(self, pod: &str, containers: &[Container], took_ms: f64) -> Vec<String> {
        let (pod, elapsed) = (self.bold(pod), self.elapsed(took_ms));
        let mut lines =
            vec![String::new(), format!("  {} pod {pod} admitted {elapsed}", self.ok())];
        lines.extend(containers.iter().flat_map(|container| self.container(container)));
        lines
    }

    fn container(self, container: &Container) -> Vec<String> {
        let Container { name, resource, devices, why, alternative, .. } = container;
        let label = format!("       {name}: {} x {resource} = ", devices.len());
        let mut lines = wrapped(&label, devices);
        lines.extend(wrapped("         why   ", why.split_whitespace()));
        if let Some(Alternative { devices, why_not }) = alternative {
            let text = format!("{}: {why_not}", devices.join(" "));
            lines.extend(wrapped("         not   ", text.split_whitespace()));
        }
        lines.extend(wrapped("         gets  ", grant_items(&container.grant)));
        lines.extend(cdi_kinds(&container.grant.cdi_devices).into_iter().map(|(kind, names)| {
            self.muted(format!("         by    {} of {kind}", pluralized(names, "CDI name")))
        }));
        lines
    }

    fn pod_refused(self, pod: &str, reason: &str, message: &str) -> Vec<String> {
        let (ok, pod) = (self.ok(), self.bold(pod));
        let headline = format!("  {ok} pod {pod} is refused, as expected: {reason}");
        let message = wrapped("       ", message.split_whitespace());
        let message = message.into_iter().map(|text| self.muted(text));
        [String::new(), headline].into_iter().chain(message).collect()
    }

    fn cleaned_up(self, pod: &str, done: &[String], took_ms: f64) -> Vec<String> {
        let (ok, pod, elapsed) = (self.ok(), self.bold(pod), self.elapsed(took_ms));
        let headline = format!("  {ok} the devices of {pod} are clean {elapsed}");
        std::iter::once(headline).chain(listed("done  ", done)).collect()
    }

    fn deleted(self, pod: &str) -> Vec<String> {
        let mut lines = self.heading("A device changes hands");
        lines.push(format!("  .. pod {pod} is deleted; the kubelet reports it when next asked"));
        lines
    }

    fn fault(self, fault: &str) -> Vec<String> {
        let mut lines = self.heading("A device fails");
        let mark = self.0.styled(Style::Warning, "!!");
        lines.push(format!("  {mark} {fault}"));
        lines
    }

    fn unhealthy(self, failure: &Failure) -> Vec<String> {
        let Failure { device, why, counts, held_by, took_ms } = failure;
        let (why, elapsed) = (self.0.styled(Style::Error, why), self.elapsed(*took_ms));
        let counts = allocatable(counts);
        vec![
            format!("  {} {device} is {why} {elapsed}", self.ok()),
            format!("       {counts}; pod {held_by} keeps running and shows it in its status"),
        ]
    }

    fn recovered(self, device: &str, counts: &ResourceCounts, took_ms: f64) -> Vec<String> {
        let (healthy, elapsed) = (self.0.styled(Style::Success, "Healthy"), self.elapsed(took_ms));
        vec![
            format!("  {} {device} is {healthy} again {elapsed}", self.ok()),
            format!("       {}", allocatable(counts)),
        ]
    }

    fn kubelet_restarted(
        self,
        resources: usize,
        pods: usize,
        devices: usize,
        took_ms: f64,
    ) -> Vec<String> {
        let mut lines = self.heading("The kubelet restarts and deletes every socket");
        lines.push(format!(
            "  {} {} registered again; {} with {} as before {}",
            self.ok(),
            pluralized(resources, "resource"),
            pluralized(pods, "pod"),
            pluralized(devices, "device"),
            self.elapsed(took_ms)
        ));
        lines
    }

    pub(super) fn finished(self, steps: usize, pods: usize, took_ms: f64) -> Vec<String> {
        let (pods, seconds) = (pluralized(pods, "pod"), took_ms / 1000.0);
        self.heading(&format!("All {steps} steps passed, {pods} served, in {seconds:.1} s."))
    }

    fn paths_and_commands(
        self,
        paths: &BTreeMap<&str, PathBuf>,
        commands: &[String],
    ) -> Vec<String> {
        let mut lines = self.heading("Everything keeps running until Ctrl-C");
        lines.extend(paths.iter().map(|(name, path)| format!("  {name:<15} {}", path.display())));
        lines.push(String::new());
        lines.extend(commands.iter().map(|command| format!("  {command}")));
        lines
    }

    /// Heading after an empty line.
    pub(super) fn heading(self, text: &str) -> Vec<String> {
        vec![String::new(), self.bold(text)]
    }

    pub(super) fn ok(self) -> String {
        self.0.styled(Style::Success, "ok")
    }

    pub(super) fn styled(self, style: Style, text: impl Display) -> String {
        self.0.styled(style, text)
    }

    pub(super) fn bold(self, text: impl Display) -> String {
        self.0.styled(Style::Heading, text)
    }

    pub(super) fn muted(self, text: impl Display) -> String {
        self.0.styled(Style::Muted, text)
    }

    pub(super) fn elapsed(self, ms: f64) -> String {
        self.muted(format!("({ms:.1} ms)"))
    }
}

pub(super) fn waiting(device: &str, end: &str, quiet_s: f64) -> Vec<String> {
    let rule = format!("must pass its probe after {quiet_s:.1} s without a fault");
    vec![format!("  .. {end}; {device} {rule}")]
}

/// One line per item, with a label before the first.
fn listed(label: &str, items: &[String]) -> Vec<String> {
    let mut labels = std::iter::once(label).chain(std::iter::repeat("      "));
    let line = |item| format!("         {}{item}", labels.next().unwrap_or_default());
    items.iter().map(line).collect()
}

fn allocatable(counts: &ResourceCounts) -> String {
    let ResourceCounts { resource, capacity, allocatable } = counts;
    format!("{resource}: {allocatable} of {capacity} allocatable")
}

/// Items of a grant: device nodes by path, DRM nodes (two per GPU) and files by number; else the environment.
pub(super) fn grant_items(grant: &ResolvedGrant) -> Vec<String> {
    let nodes = grant.device_nodes.iter();
    let (dri_nodes, nodes): (Vec<_>, Vec<_>) = nodes.partition(|path| path.starts_with(DRI_DIR));
    let mut items: Vec<_> = nodes.into_iter().cloned().collect();
    let dri_nodes = Some(dri_nodes.len()).filter(|number| *number > 0);
    let dri_nodes = dri_nodes.map(|number| format!("{} in {DRI_DIR}", pluralized(number, "node")));
    let files = grant.files.iter().map(|(noun, number)| many(*number, noun));
    let counts: Vec<_> = dri_nodes.into_iter().chain(files).collect();
    if !counts.is_empty() {
        items.push(counts.join(", "));
    }
    if items.is_empty() {
        items.clone_from(&grant.env);
    }
    items
}

/// Pluralizes nouns that end in `y`.
fn many(number: usize, noun: &str) -> String {
    match noun.strip_suffix('y') {
        Some(stem) if number != 1 => format!("{number} {stem}ies"),
        _ => pluralized(number, noun),
    }
}

pub(super) fn cdi_kinds(names: &[String]) -> BTreeMap<&str, usize> {
    let mut kinds = BTreeMap::new();
    for (kind, _) in names.iter().filter_map(|name| name.split_once('=')) {
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}
