//! README and manifest of a recording.

use jiff::Timestamp;
use serde::Serialize;
use windlass_host::Host;
use windlass_snapshot::{Anonymiser, Omission, Snapshot};

/// Description of a recording.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RecordingManifest<'a> {
    windlass: &'static str,
    recorded: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<String>,
    entries: usize,
    /// True if serial numbers, addresses and unique ids were replaced.
    replaced: bool,
    /// Number of replaced serial numbers and unique ids, without addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    serial_numbers: Option<usize>,
    left_out: &'a [Omission],
}

/// Maximum number of omissions in README.txt; the manifest has all.
const MAX_LISTED: usize = 20;

// === impl RecordingManifest ===

impl<'a> RecordingManifest<'a> {
    pub(super) fn new(
        host: &Host,
        recording: &'a Snapshot,
        anonymiser: Option<&Anonymiser>,
    ) -> Self {
        Self {
            windlass: env!("CARGO_PKG_VERSION"),
            recorded: Timestamp::now(),
            kernel: host.read_text("/proc/sys/kernel/osrelease"),
            simulated: host.simulated(),
            entries: recording.len(),
            replaced: anonymiser.is_some(),
            serial_numbers: anonymiser.map(Anonymiser::secret_count),
            left_out: &recording.omissions,
        }
    }

    /// Time and kernel of the recording, in one line.
    pub(super) fn summary(&self) -> String {
        let kernel = self.kernel.iter().map(|release| format!(", Linux {release}"));
        let time = self.recorded.strftime("%Y-%m-%d %H:%M UTC");
        format!("{time}{}", kernel.collect::<String>())
    }

    /// Contents of README.txt.
    pub(super) fn readme(&self) -> String {
        let notice = if self.replaced { ANONYMISED_NOTICE } else { IDENTIFIERS_NOTICE };
        let omissions = match self.left_out {
            [] => String::new(),
            all => {
                let lines = all.iter().take(MAX_LISTED);
                let lines = lines
                    .map(|omission| format!("  {}: {}\n", omission.path.display(), omission.why));
                let count = all.len().saturating_sub(MAX_LISTED);
                let last = (count > 0).then(|| format!("  and {count} more, in manifest.json\n"));
                format!("\nLeft out:\n{}{}", lines.collect::<String>(), last.unwrap_or_default())
            }
        };
        format!(
            "Snapshot of a host as its kernel reports it, recorded by windlass {} on {}.\n\n\
             {CONTENTS}\n{notice}{omissions}",
            self.windlass,
            self.summary(),
        )
    }
}

const CONTENTS: &str = "  sys, proc       structure of sysfs, and text of files about the identity and health of devices
  dev             names of device nodes; the files are empty
  inventory.json  inventory of the host itself, with NVIDIA's GPUs
  manifest.json   this page, for programs

Use it on any machine:

  windlass devices --host-root .
  windlass topo --host-root .

Not included: names of the host, its users and its network; PCI configuration space; logs; contents of
devices; any file outside the allowlist.
";

const ANONYMISED_NOTICE: &str = "\
Serial numbers, unique ids, addresses and GUIDs of devices, and addresses of routes, were replaced. Each
replacement has the same form and is the same everywhere. Names of network interfaces are unchanged.
";

const IDENTIFIERS_NOTICE: &str = "\
Serial numbers, unique ids, addresses and GUIDs are the host's own: it was recorded --with-serials.
";
