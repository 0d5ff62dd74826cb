//! The configuration file: YAML, strict, with the place of every mistake.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::SignedDuration;
use serde::{Deserialize, Deserializer};
use serde_saphyr::Spanned;
use windlass_core::device::{DeviceId, DeviceKind};

use super::{Config, ResourceRule, Resources, Selector, Sharing, Strategy};

/// The file as written. Every key may be left out; unknown keys are mistakes.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigFile {
    kubelet_dir: Option<PathBuf>,
    host_root: Option<PathBuf>,
    host_root_on_node: Option<PathBuf>,
    nvml_library: Option<PathBuf>,
    cdi_dir: Option<PathBuf>,
    device_list: Option<DeviceListEntry>,
    resources: Option<Vec<ResourceEntry>>,
    #[serde(default)]
    health: HealthEntry,
}

/// A mistake in a configuration file, or a file that cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file says something that cannot be.
    #[error("{}:{line}: {problem}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is wrong, and what to write instead.
        problem: String,
    },
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum DeviceListEntry {
    Cdi,
    Envvar,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ResourceEntry {
    name: Spanned<String>,
    devices: SelectorEntry,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SelectorEntry {
    kind: KindEntry,
    #[serde(default)]
    index: BTreeSet<u32>,
    #[serde(default)]
    ids: BTreeSet<String>,
    #[serde(default)]
    profiles: BTreeSet<String>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindEntry {
    Gpu,
    Mig,
    Nic,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct HealthEntry {
    #[serde(default, deserialize_with = "duration")]
    quiet_period: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    probe_interval: Option<Duration>,
    #[serde(default, deserialize_with = "duration")]
    call_deadline: Option<Duration>,
    #[serde(default)]
    ignored_xids: BTreeSet<u64>,
    #[serde(default)]
    counted_xids: BTreeSet<u64>,
}

/// Shorter ones keep the agent busy, longer ones are a slip of the pen.
const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// A mistake, and the line it is on.
struct Mistake {
    line: u64,
    problem: String,
}

// === impl ConfigFile ===

impl ConfigFile {
    /// Reads a file and applies it to the defaults.
    pub fn load(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(path, &text)
    }

    /// Applies a document to the defaults; `path` is for the messages.
    pub fn parse(path: &Path, text: &str) -> Result<Config, ConfigError> {
        Self::read(text).and_then(Self::into_config).map_err(|Mistake { line, problem }| {
            ConfigError::Invalid { path: path.to_owned(), line, problem }
        })
    }

    fn read(text: &str) -> Result<Self, Mistake> {
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(Self::default());
        }
        serde_saphyr::from_str(text).map_err(|error| Mistake {
            line: error.location().map_or(1, |location| location.line()),
            problem: plain(&error),
        })
    }

    fn into_config(self) -> Result<Config, Mistake> {
        let mut config = Config::default();
        let resources = self.resources.map(rules).transpose()?;
        if let Some(rules) = resources {
            config.policy.resources = Resources::Rules(rules);
        }
        replace(&mut config.kubelet_dir, self.kubelet_dir);
        replace(&mut config.host_root, self.host_root);
        replace(&mut config.host_root_on_node, self.host_root_on_node);
        replace(&mut config.cdi_dir, self.cdi_dir);
        config.driver.nvml_library = self.nvml_library;
        if let Some(strategy) = self.device_list {
            config.policy.delivery.strategies = BTreeSet::from([strategy.into()]);
        }
        replace(&mut config.policy.health.quiet_period, self.health.quiet_period);
        replace(&mut config.policy.health.probe_interval, self.health.probe_interval);
        replace(&mut config.policy.health.call_deadline, self.health.call_deadline);
        config.policy.health.ignored_xids = self.health.ignored_xids;
        config.policy.health.counted_xids = self.health.counted_xids;
        Ok(config)
    }
}

fn replace<T>(value: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *value = given;
    }
}

/// Checks names and overlaps in the order of the file, so that the message names the later line.
fn rules(entries: Vec<ResourceEntry>) -> Result<Vec<ResourceRule>, Mistake> {
    let mut rules: Vec<(u64, ResourceRule)> = Vec::new();
    for entry in entries {
        let line = entry.name.referenced.line();
        let name = entry.name.value.parse();
        let name = name.map_err(|error| Mistake { line, problem: format!("{error}") })?;
        let (devices, sharing) = (entry.devices.into(), Sharing::Exclusive);
        let rule = ResourceRule { name, devices, sharing };
        check(&rule.devices).map_err(|problem| Mistake { line, problem })?;
        if let Some(problem) = rules.iter().find_map(|earlier| conflict(earlier, &rule)) {
            return Err(Mistake { line, problem });
        }
        rules.push((line, rule));
    }
    Ok(rules.into_iter().map(|(_, rule)| rule).collect())
}

/// What no device can be.
fn check(selector: &Selector) -> Result<(), String> {
    if selector.kind != DeviceKind::Mig && !selector.profiles.is_empty() {
        return Err(
            "only MIG instances have profiles; write kind: mig, or leave them out".to_owned()
        );
    }
    let names = selector.ids.iter().map(|id| id.parse::<DeviceId>().map(drop));
    names.collect::<Result<(), _>>().map_err(|error| error.to_string())
}

fn conflict((line, earlier): &(u64, ResourceRule), later: &ResourceRule) -> Option<String> {
    if earlier.name == later.name {
        return Some(format!(
            "resource {} is already on line {line}; write one entry that selects all its devices",
            later.name
        ));
    }
    earlier.devices.covers(&later.devices).then(|| {
        format!(
            "resources {} (line {line}) and {} can claim the same {}; \
             give each its own index or ids, such as index: [0, 1]",
            earlier.name, later.name, later.devices.kind
        )
    })
}

/// The first line of a YAML error, without the place, which stands before it already; the rest is a
/// picture of the document.
fn plain(error: &serde_saphyr::Error) -> String {
    let text = error.without_snippet().to_string();
    let first = text.lines().next().unwrap_or_default();
    first.rsplit_once(" at line ").map_or(first, |(problem, _)| problem).to_owned()
}

fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    use serde::de::Error as _;
    let text = String::deserialize(deserializer)?;
    let expected = "write a duration such as 500ms, 60s or 5m";
    let parsed: SignedDuration = text
        .parse()
        .map_err(|_| D::Error::custom(format!("{text:?} is no duration: {expected}")))?;
    match Duration::try_from(parsed) {
        Ok(within) if (SHORTEST..=LONGEST).contains(&within) => Ok(Some(within)),
        _ => Err(D::Error::custom(format!("{text:?} is not between 10ms and 24h: {expected}"))),
    }
}

impl From<DeviceListEntry> for Strategy {
    fn from(entry: DeviceListEntry) -> Self {
        match entry {
            DeviceListEntry::Cdi => Self::CdiCri,
            DeviceListEntry::Envvar => Self::Envvar,
        }
    }
}

impl From<SelectorEntry> for Selector {
    fn from(entry: SelectorEntry) -> Self {
        let kind = match entry.kind {
            KindEntry::Gpu => DeviceKind::Gpu,
            KindEntry::Mig => DeviceKind::Mig,
            KindEntry::Nic => DeviceKind::Nic,
        };
        let SelectorEntry { index, ids, profiles, .. } = entry;
        Self { kind, index, ids, profiles, expression: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, String> {
        ConfigFile::parse(Path::new("w.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn an_empty_file_is_the_default() {
        assert_eq!(parse(""), Ok(Config::default()));
        assert_eq!(parse("# nothing yet\n\n"), Ok(Config::default()));
    }

    #[test]
    fn every_key_is_taken() {
        let config = parse(
            "kubeletDir: /k\nhostRoot: /h\nhostRootOnNode: /n\nnvmlLibrary: /l\ncdiDir: /c\n\
             deviceList: envvar\nresources:\n- name: a.com/x\n  devices: {kind: gpu, index: [1, 2]}\n\
             - name: a.com/y\n  devices: {kind: mig, profiles: [1g.5gb], ids: [MIG-1]}\n\
             health:\n  quietPeriod: 2m\n  probeInterval: 500ms\n  callDeadline: 1s\n  \
             ignoredXids: [48]\n  countedXids: [13]\n",
        )
        .expect("valid");
        assert_eq!(config.kubelet_dir, Path::new("/k"));
        assert_eq!(config.driver.nvml_library.as_deref(), Some(Path::new("/l")));
        assert_eq!(config.policy.delivery.strategies, BTreeSet::from([Strategy::Envvar]));
        assert_eq!(config.policy.health.quiet_period, Duration::from_secs(120));
        assert_eq!(config.policy.health.probe_interval, Duration::from_millis(500));
        let Resources::Rules(rules) = config.policy.resources else { panic!("rules were given") };
        assert_eq!(rules[0].devices.index, BTreeSet::from([1, 2]));
        assert_eq!(rules[1].devices.profiles.len(), 1);
    }

    #[test]
    fn mistakes_are_refused_with_the_line_and_what_to_write() {
        let gpu = "devices: {kind: gpu";
        for (text, line, expected) in [
            ("kubeletDir: /k\nkubletDir: /x\n".to_owned(), 2, "unknown field `kubletDir`"),
            ("health:\n  quiet: 3s\n".to_owned(), 2, "quietPeriod"),
            ("health:\n  quietPeriod: soon\n".to_owned(), 2, "500ms, 60s or 5m"),
            ("health:\n  quietPeriod: 0s\n".to_owned(), 2, "between 10ms and 24h"),
            ("health:\n  probeInterval: 9999h\n".to_owned(), 2, "between 10ms and 24h"),
            (
                "resources:\n- name: a.com/x\n  devices: {kind: gpu, profiles: [1g.5gb]}\n"
                    .to_owned(),
                2,
                "only MIG instances have profiles",
            ),
            (
                "resources:\n- name: a.com/x\n  devices: {kind: gpu, ids: [a b]}\n".to_owned(),
                2,
                "cannot name a device",
            ),
            ("deviceList: csv\n".to_owned(), 1, "envvar"),
            (format!("resources:\n- name: gpu\n  {gpu}}}\n"), 2, "write it like nvidia.com/gpu"),
            (format!("resources:\n- name: a.com/{}\n  {gpu}}}\n", "x".repeat(64)), 2, "1 to 63"),
            ("resources:\n- name: a.com/x\n  devices: {kind: tpu}\n".to_owned(), 3, "gpu"),
            (
                format!("resources:\n- name: a.com/x\n  {gpu}}}\n- name: a.com/x\n  {gpu}}}\n"),
                4,
                "already on line 2",
            ),
            (
                format!(
                    "resources:\n- name: a.com/x\n  {gpu}}}\n- name: a.com/y\n  {gpu}, index: [0]}}\n"
                ),
                4,
                "(line 2) and a.com/y can claim the same gpu",
            ),
            ("kubeletDir: [\n".to_owned(), 1, "expected string"),
        ] {
            let error = parse(&text).expect_err(&text);
            assert!(error.starts_with(&format!("w.yaml:{line}: ")), "{text}\n{error}");
            assert!(error.contains(expected), "{text}\n{error}");
        }
    }

    #[test]
    fn resources_with_devices_of_their_own_live_together() {
        let text = "resources:\n- name: a.com/x\n  devices: {kind: gpu, index: [0]}\n\
                    - name: a.com/y\n  devices: {kind: gpu, index: [1]}\n\
                    - name: a.com/z\n  devices: {kind: nic}\n";
        assert!(parse(text).is_ok());
    }

    #[test]
    fn an_unreadable_file_is_named() {
        let error = ConfigFile::load(Path::new("/nowhere/w.yaml")).expect_err("absent");
        assert_eq!(error.to_string(), "cannot read configuration /nowhere/w.yaml");
    }
}
