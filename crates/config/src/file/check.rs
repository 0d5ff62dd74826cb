//! Checks that need several keys, with the line of each error.

use windlass_core::{
    device::{DeviceKind, MemoryLimiter, SourceName},
    enforcement::Enforcement,
};

use crate::{
    Config,
    document::{Diagnostic, Spanned, YamlNode},
    lint,
    policy::{Policy, Resources},
    rules,
    sample_device::SampleDevice,
    selector::Selector,
    sharing::{
        DMEM_OF_OTHERS, DRIVER_OF_OTHERS, MPS_OF_OTHERS, Sharing, SharingMethod, mps_clients_error,
    },
    source::SourceRule,
};

/// Errors that the types of a configuration do not exclude. `read_errors` are those of the reader.
pub(super) fn validate(
    config: &Config,
    root: &YamlNode,
    read_errors: &[Diagnostic],
) -> Vec<Diagnostic> {
    let policy = &config.policy;
    let sources = spanned(&policy.sources, root.list("sources"), |node| node.line_of("name"));
    let mut checker = Checker { sources, read_errors, errors: Vec::new() };
    checker.sources(config);
    checker.resources(policy, root);
    checker.dra(policy, root);
    checker.section(root, "health", policy.health.validate());
    checker.section(root, "nics", policy.nics.validate());
    checker.section(root, "watchdog", policy.watchdog.validate());
    let errors = policy.memory_limits.validate(policy.watchdog.action);
    checker.section(root, "memoryLimits", errors);
    checker.section(root, "nvFractions", config.nv_fractions.validate());
    checker.section(root, "shares", policy.shares.validate(&policy.device_resource_names()));
    checker.section(root, "gpu", policy.families.validate_gpu());
    checker.section(root, "fpga", policy.families.fpga.validate());
    if policy.delivery.strategies.is_empty() {
        checker.add_error(root.line_of("deviceList"), NO_DEVICE_LIST);
    }
    checker.errors.extend(rules::overwrite_under_mps_error(root.line_of("gpu"), policy));
    checker.errors
}

/// Collects errors.
struct Checker<'c> {
    sources: Vec<Spanned<SourceRule>>,
    read_errors: &'c [Diagnostic],
    errors: Vec<Diagnostic>,
}

const UNMATCHED_ALONE: &str = "unmatched is about devices that no rule takes, and there are no \
    rules: leave it out, or write resources";

const METHOD_WITHOUT_HOOK: &str =
    "methods driver and dmem need the hook: name its path in memoryLimits.hook";

const NO_DEVICE_LIST: &str = "no way to name devices: write one of cdi-cri, cdi-annotations, \
    envvar, volume-mounts";

/// Values with the lines of their nodes.
fn spanned<T: Clone>(
    values: &[T],
    nodes: &[YamlNode],
    line: impl Fn(&YamlNode) -> u64,
) -> Vec<Spanned<T>> {
    let pairs = values.iter().zip(nodes);
    pairs.map(|(value, node)| Spanned { line: line(node), value: value.clone() }).collect()
}

// === impl Checker ===

impl Checker<'_> {
    fn add_error(&mut self, line: u64, text: impl Into<String>) {
        self.errors.push(Diagnostic::new(line, text));
    }

    fn section(&mut self, root: &YamlNode, name: &str, errors: Vec<String>) {
        let line = root.line_of(name);
        self.errors.extend(errors.into_iter().map(|text| Diagnostic::new(line, text)));
    }

    fn sources(&mut self, config: &Config) {
        let has_both =
            |rule: &SourceRule| rule.resource.is_some() && rule.resource_domain.is_some();
        for source in self.sources.iter().filter(|source| has_both(&source.value)) {
            let text = "write resource or resourceDomain, not both";
            self.errors.push(Diagnostic::new(source.line, text));
        }
        self.errors.extend(rules::repeated_sources(&self.sources));
        self.errors.extend(rules::source_errors(&self.sources, &config.places.kubelet_dir));
    }

    fn resources(&mut self, policy: &Policy, root: &YamlNode) {
        let excluded = root.list("exclude");
        for (selector, node) in policy.exclude.iter().zip(excluded) {
            self.selector(selector, node);
        }
        let Resources::Rules(rules) = &policy.resources else {
            if let Some(unmatched) = root.child("unmatched").filter(|node| !node.is_null()) {
                self.add_error(unmatched.line, UNMATCHED_ALONE);
            }
            return;
        };
        let nodes = root.list("resources");
        let has_hook = policy.memory_limits.hook.is_some();
        for (rule, node) in rules.iter().zip(nodes) {
            if let Some(devices) = node.child("devices") {
                self.selector(&rule.devices, devices);
            }
            if let Some(problem) = sharing_error(rule.sharing, &rule.devices) {
                self.add_error(node.line_of("sharing"), problem);
            }
            if rule.sharing.required_enforcement() > Enforcement::None && !has_hook {
                self.add_error(node.line_of("sharing"), METHOD_WITHOUT_HOOK);
            }
        }
        let rules = spanned(rules, nodes, |node| node.line_of("name"));
        let excluded = spanned(&policy.exclude, excluded, |node| node.line);
        self.errors.extend(rules::contradictions(&rules, &excluded, policy.unmatched));
    }

    fn dra(&mut self, policy: &Policy, root: &YamlNode) {
        let Some(node) = root.child("dra") else { return };
        for (selector, node) in policy.dra.devices.iter().zip(node.list("devices")) {
            self.selector(selector, node);
        }
        for (rule, node) in policy.dra.shares.iter().zip(node.list("shares")) {
            if let Some(devices) = node.child("devices") {
                self.selector(&rule.devices, devices);
            }
            let (method, family) =
                (rule.manner.method, rule.devices.source().map(SourceName::family));
            if let Some(problem) = family.and_then(|family| method.unsupported_reason(family)) {
                self.add_error(node.line_of("devices"), problem);
            }
            if method.required_enforcement() > Enforcement::None
                && policy.memory_limits.hook.is_none()
            {
                self.add_error(node.line_of("method"), METHOD_WITHOUT_HOOK);
            }
        }
        if let Some(problem) = policy.dra.validate_mig_mode() {
            self.add_error(node.line_of("migMode"), problem);
        }
    }

    fn selector(&mut self, selector: &Selector, node: &YamlNode) {
        let line = node.line;
        // The reader has reported a kind that it could not read.
        let is_reported = self.read_errors.iter().any(|error| error.line >= line);
        if selector.kind.is_none() && selector.source.is_none() && !is_reported {
            self.add_error(line, "which devices? write kind, source, or both");
        }
        let is_instance = selector.kind.is_some_and(DeviceKind::is_mig_instance);
        if !is_instance && !selector.mig_profiles.is_empty() {
            let text = "only MIG instances have profiles; write kind: mig, or leave them out";
            self.add_error(line, text);
        }
        if let Some((expression, sample)) = selector.expression.as_ref().zip(self.sample(selector))
        {
            let errors = lint::check(expression, &sample);
            self.errors.extend(errors.into_iter().map(|text| Diagnostic::new(line, text)));
        }
    }

    /// A sample of the selected devices, if their source is built in or configured.
    fn sample(&self, selector: &Selector) -> Option<SampleDevice> {
        let source = selector.source().or_else(|| selector.kind?.facts().only_source.as_ref())?;
        let configured = self.sources.iter().find(|configured| configured.value.name == *source);
        match configured {
            Some(configured) => Some(configured.value.sample()),
            None => SampleDevice::built_in(source),
        }
    }
}

/// Error message for a sharing method that the devices do not support.
fn sharing_error(sharing: Sharing, devices: &Selector) -> Option<String> {
    let Sharing::Shared(shared) = sharing else { return None };
    let family = devices.source().map(SourceName::family);
    let has_nvml = family.is_some_and(|family| family.has_nvml);
    let limiter = family.and_then(|family| family.memory_limiter);
    match (shared.method, devices.kind) {
        (SharingMethod::Mps, _) if has_nvml => mps_clients_error(shared.replicas),
        (SharingMethod::Mps, _) => Some(MPS_OF_OTHERS.to_owned()),
        (SharingMethod::Driver, _) if limiter != Some(MemoryLimiter::Driver) => {
            Some(DRIVER_OF_OTHERS.to_owned())
        }
        (SharingMethod::Dmem, _) if limiter != Some(MemoryLimiter::Kernel) => {
            Some(DMEM_OF_OTHERS.to_owned())
        }
        (SharingMethod::TimeSlicing, Some(kind)) if !kind.is_gpu() => {
            Some(format!("a {kind} has no time slices; write method: shared"))
        }
        (_, Some(kind)) if kind.is_mig_instance() && shared.memory_mib.is_some() => {
            Some("only mps gives parts of a MIG instance's memory; leave memory out".to_owned())
        }
        (
            SharingMethod::TimeSlicing
            | SharingMethod::Driver
            | SharingMethod::Dmem
            | SharingMethod::Shared,
            _,
        ) => None,
    }
}
