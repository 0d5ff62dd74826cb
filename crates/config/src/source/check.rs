//! Checks of a source: errors in discovery, templates and commands, and dangers to the machine.

use std::{
    collections::BTreeMap,
    path::{Component, Path},
};

use windlass_core::device::SourceName;
use windlass_host::{
    glob::is_pattern,
    template::{self, fill_all, placeholder},
};

use super::{
    DiscoveryRule, EditTemplates, Grouping, MountTemplate, NodeTemplate, Probe, ProbeTest,
    SourceRule,
};
use crate::{
    denylist, lint,
    steps::{CleanupSteps, Step, StepAction},
};

/// Findings about a source by itself.
#[derive(Debug, Default)]
pub struct SourceFindings {
    /// Errors.
    pub errors: Vec<String>,
    /// Parts that would expose the machine without `allowDangerous`.
    pub dangers: Vec<String>,
}

/// The errors and dangers of a source.
pub fn check_source(rule: &SourceRule, kubelet_dir: &Path) -> SourceFindings {
    let mut checker = Checker::new(rule, kubelet_dir);
    checker.check_discovery();
    checker.unit();
    checker.expression();
    checker.check_facts();
    checker.check_edits(&rule.give);
    rule.probe.iter().for_each(|probe| checker.probe(probe));
    rule.cleanup.steps().for_each(|step| checker.step(step));
    let name = &rule.name;
    let with_source_name = |texts: Vec<String>| {
        texts.into_iter().map(|text| format!("source {name}: {text}")).collect()
    };
    SourceFindings {
        errors: with_source_name(checker.errors),
        dangers: with_source_name(checker.dangerous),
    }
}

/// The errors in steps on FPGAs, and in the attributes that an FPGA must report after them.
pub fn programming_errors(
    cleanup: &CleanupSteps,
    expect: &BTreeMap<String, String>,
) -> Vec<String> {
    let rule = pci_source(SourceName::FPGA);
    let mut checker = Checker::new(&rule, Path::new("/"));
    cleanup.steps().for_each(|step| checker.step(step));
    for (name, text) in expect {
        checker.text(&placeholder(name));
        checker.text(text);
    }
    if !expect.is_empty() && cleanup.prepare.is_empty() {
        checker.add_error("expect lists attributes after prepare, and there is none");
    }
    checker.errors
}

/// The errors in steps on the devices of a built-in source. All of these devices are on PCI.
pub fn step_errors(source: SourceName, cleanup: &CleanupSteps) -> Vec<String> {
    let rule = pci_source(source);
    let mut checker = Checker::new(&rule, Path::new("/"));
    cleanup.steps().for_each(|step| checker.step(step));
    checker.errors
}

/// A source of PCI devices, which have folders in sysfs.
fn pci_source(source: SourceName) -> SourceRule {
    SourceRule::new(source, DiscoveryRule::Bus("pci".to_owned()))
}

/// Collects the findings about a source.
struct Checker<'a> {
    rule: &'a SourceRule,
    kubelet_dir: &'a Path,
    errors: Vec<String>,
    dangerous: Vec<String>,
}

/// Placeholder for a value that is not known yet.
const UNKNOWN_VALUE: &str = "*";

// === impl Checker ===

impl<'a> Checker<'a> {
    fn new(rule: &'a SourceRule, kubelet_dir: &'a Path) -> Self {
        Self { rule, kubelet_dir, errors: Vec::new(), dangerous: Vec::new() }
    }

    fn add_error(&mut self, text: impl Into<String>) {
        self.errors.push(text.into());
    }

    fn add_danger(&mut self, danger: Option<String>) {
        self.dangerous.extend(danger.filter(|_| !self.rule.allow_dangerous));
    }

    fn check_discovery(&mut self) {
        match &self.rule.find {
            DiscoveryRule::Bus(name) => {
                self.check_name("bus", name);
                if self.rule.expression.is_none() && !self.rule.allow_dangerous {
                    self.add_error(format!(
                        "without match it is every device of the {name} bus: list the intended ones"
                    ));
                }
            }
            DiscoveryRule::Class(name) => {
                self.check_name("class", name);
                self.add_danger(
                    (name == "block")
                        .then(|| format!("class block: {}", denylist::BLOCK_DEVICE_DANGER)),
                );
            }
            DiscoveryRule::Nodes(list) | DiscoveryRule::Endpoints(list) if list.is_empty() => {
                self.add_error("nothing to look for: write a node or an endpoint");
            }
            DiscoveryRule::Nodes(patterns) => {
                for pattern in patterns {
                    self.check_found_nodes(pattern);
                }
            }
            DiscoveryRule::Files(folder) => self.folder(folder),
            DiscoveryRule::Endpoints(endpoints) => self.endpoints(endpoints),
        }
    }

    fn check_name(&mut self, kind: &str, name: &str) {
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.:".contains(letter);
        if name.is_empty() || !name.chars().all(is_allowed) || name.starts_with('.') {
            self.add_error(format!(
                "{name:?} is not a {kind}: write a name from /sys/{kind}, such as usb"
            ));
        }
    }

    /// Checks a pattern of nodes. A pattern of a source with `match` is not checked for dangers: `match` may exclude
    /// dangerous nodes, and discovery checks every node that it finds.
    fn check_found_nodes(&mut self, pattern: &str) {
        match denylist::node_path_error(pattern) {
            Some(error) => self.add_error(error),
            None if is_pattern(pattern) && self.rule.expression.is_some() => {}
            None => self.add_danger(denylist::node_danger(pattern)),
        }
    }

    fn nodes(&mut self, pattern: &str) {
        match denylist::node_path_error(pattern) {
            Some(error) => self.add_error(error),
            None => self.add_danger(denylist::node_danger(pattern)),
        }
    }

    fn folder(&mut self, folder: &Path) {
        match denylist::plain_path_error(&folder.display().to_string()) {
            Some(error) => self.add_error(error),
            None => self.add_danger(denylist::mount_danger(folder, self.kubelet_dir)),
        }
    }

    fn endpoints(&mut self, endpoints: &[String]) {
        for (index, endpoint) in endpoints.iter().enumerate() {
            let is_allowed =
                |character: char| character.is_ascii_alphanumeric() || "-_.:[]".contains(character);
            if endpoint.is_empty() || !endpoint.chars().all(is_allowed) {
                self.add_error(format!(
                    "{endpoint:?} is not an endpoint: write a host, or host:port"
                ));
            }
            if endpoints[..index].contains(endpoint) {
                self.add_error(format!("endpoint {endpoint} is there twice"));
            }
        }
    }

    fn unit(&mut self) {
        let patterns = match &self.rule.find {
            DiscoveryRule::Nodes(patterns) => patterns.len(),
            _ => 0,
        };
        if self.rule.unit == Grouping::Zipped && patterns < 2 {
            self.add_error(
                "unit: zipped puts matches of several patterns together: write them in nodes",
            );
        }
    }

    /// Lints the expression with a sample device, so that its errors are reported before discovery.
    fn expression(&mut self) {
        let Some(expression) = &self.rule.expression else { return };
        self.errors.extend(lint::check(expression, &self.rule.sample()));
    }

    fn check_facts(&mut self) {
        let has_folder = self.has_folder();
        for (name, file) in &self.rule.attributes {
            if !has_folder {
                self.errors.push(format!("attribute {}: {NO_FOLDER}", name.name()));
            }
            self.errors.extend(no_file_inside(file));
        }
    }

    /// True if the source's devices have folders in sysfs.
    fn has_folder(&self) -> bool {
        !matches!(self.rule.find, DiscoveryRule::Files(_) | DiscoveryRule::Endpoints(_))
    }

    fn text(&mut self, text: &str) {
        if let Err(unknown) = template::check(text) {
            self.add_error(format!("{text:?}: {unknown}"));
        }
    }

    fn check_edits(&mut self, edits: &EditTemplates) {
        edits.nodes.iter().for_each(|node| self.check_node(node));
        edits.mounts.iter().for_each(|mount| self.check_mount(mount));
        for (name, value) in &edits.env {
            if name.is_empty() || name.contains(['=', '\0']) {
                self.add_error(format!("{name:?} cannot name a variable"));
            }
            self.text(name);
            self.text(value);
        }
        edits.cdi.iter().for_each(|name| self.text(name));
    }

    fn check_node(&mut self, node: &NodeTemplate) {
        self.text(&node.path);
        let pattern = fill_all(&node.path, UNKNOWN_VALUE);
        // A path that begins with a placeholder is checked when the device is known.
        if !pattern.starts_with(UNKNOWN_VALUE) {
            self.nodes(&pattern);
        }
        let Some(container_path) = &node.inside else { return };
        self.text(container_path);
        self.errors.extend(denylist::plain_path_error(container_path));
        if is_pattern(&node.path) && !container_path.ends_with('/') {
            self.add_error(format!(
                "{} may be several nodes, and as: {container_path} is one path: end it with /",
                node.path
            ));
        }
    }

    fn check_mount(&mut self, mount: &MountTemplate) {
        for path in std::iter::once(&mount.host).chain(&mount.container) {
            self.text(path);
            self.errors.extend(denylist::plain_path_error(path));
        }
        // A path with placeholders is checked when the device is known.
        if fill_all(&mount.host, UNKNOWN_VALUE) == mount.host {
            let path = Path::new(&mount.host);
            self.add_danger(self.rule.mount_refusal(mount, path, self.kubelet_dir));
        }
    }

    fn probe(&mut self, probe: &Probe) {
        match &probe.test {
            ProbeTest::Nodes => {}
            ProbeTest::Attribute { file, equals } => {
                if !self.has_folder() {
                    self.add_error(format!("probe {}: {NO_FOLDER}", file.display()));
                }
                self.errors.extend(no_file_inside(file));
                for text in equals {
                    self.text(text);
                }
            }
            ProbeTest::Http(url) => self.url(url),
            ProbeTest::Tcp(address) => {
                self.text(address);
                let filled_address = fill_all(address, "host:1");
                if filled_address
                    .rsplit_once(':')
                    .is_none_or(|(_, port)| port.parse::<u16>().is_err())
                {
                    self.add_error(format!("{address:?} is not an address: write host:port"));
                }
            }
            ProbeTest::Command(words) => self.command(words),
        }
    }

    fn step(&mut self, step: &Step) {
        let has_nvml = self.rule.name.family().has_nvml;
        match &step.action {
            StepAction::Http(url) => self.url(url),
            StepAction::Command(words) => self.command(words),
            StepAction::Processes(_) if !has_nvml => {
                self.add_error(
                    "processes: only NVIDIA's driver lists processes: write it under gpu",
                );
            }
            StepAction::Memory { .. } | StepAction::Overwrite | StepAction::Reset(_)
                if !has_nvml =>
            {
                self.add_error("memory and reset are for NVIDIA's GPUs: write them under gpu");
            }
            StepAction::Link(_) if self.rule.name != SourceName::NICS => {
                self.add_error("link: only an interface has one: write it under nics");
            }
            StepAction::Processes(_)
            | StepAction::Memory { .. }
            | StepAction::Overwrite
            | StepAction::Reset(_)
            | StepAction::Link(_) => {}
            StepAction::Write { file, text } => {
                if !self.has_folder() {
                    self.add_error(format!("write {}: {NO_FOLDER}", file.display()));
                }
                self.errors.extend(no_file_inside(file));
                self.text(text);
            }
        }
    }

    fn url(&mut self, url: &str) {
        self.text(url);
        if !url.starts_with("http://") {
            self.add_error(format!(
                "{url:?}: write http://host:port/path; only plain HTTP is supported"
            ));
        }
    }

    fn command(&mut self, words: &[String]) {
        for word in words {
            self.text(word);
        }
        match words.first() {
            Some(program) if Path::new(program).is_absolute() => {}
            Some(program) => {
                self.add_error(format!(
                    "{program:?} is not an absolute path: no shell looks for programs"
                ));
            }
            None => self.add_error("a command is empty: write a program with its arguments"),
        }
    }
}

const NO_FOLDER: &str = "files and endpoints have no folder in sysfs";

/// Error message for a path that is not a file in a device's folder.
fn no_file_inside(file: &Path) -> Option<String> {
    let is_plain = file.components().all(|component| matches!(component, Component::Normal(_)));
    let is_file = is_plain && !file.as_os_str().is_empty();
    (!is_file).then(|| {
        let file = file.display();
        format!("\"{file}\" is not a file in the device's folder: write it without / first and ..")
    })
}

/// Sources whose sharing of a resource differs from an earlier source's, with the message.
pub fn sharing_conflicts(sources: &[&SourceRule]) -> Vec<(SourceName, String)> {
    let conflict = |(index, later): (usize, &&SourceRule)| {
        let text = sharing_conflict(later, sources[..index].iter().copied())?;
        Some((later.name.clone(), text))
    };
    sources.iter().enumerate().filter_map(conflict).collect()
}

/// Error message for a source whose sharing of a resource differs from an earlier source's.
pub fn sharing_conflict<'a>(
    later: &SourceRule,
    mut earlier: impl Iterator<Item = &'a SourceRule>,
) -> Option<String> {
    let resource = later.resource.as_ref()?;
    let is_other = |rule: &&SourceRule| {
        rule.resource.as_ref() == Some(resource) && rule.sharing != later.sharing
    };
    let earlier = earlier.find(is_other)?;
    Some(format!(
        "source {}: resource {resource} is shared in another way by source {}: a pod cannot tell \
         which it gets",
        later.name, earlier.name
    ))
}
