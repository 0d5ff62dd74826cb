//! What a recording says of itself, to people and to programs.

use jiff::Timestamp;
use serde::Serialize;
use windlass_host::Host;
use windlass_snapshot::{Anonymiser, Omission, Snapshot};

/// What there is to know of a recording.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct About<'a> {
    windlass: &'static str,
    recorded: Timestamp,
    /// The kernel's release, where it tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    kernel: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<String>,
    entries: usize,
    /// Whether serial numbers, addresses and unique ids are not the host's own.
    replaced: bool,
    /// How many serial numbers and unique ids were found, addresses aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    serial_numbers: Option<usize>,
    left_out: &'a [Omission],
}

/// As many are told in the text; all of them are in the manifest.
const ROOM: usize = 20;

// === impl About ===

impl<'a> About<'a> {
    pub(super) fn new(
        host: &Host,
        recording: &'a Snapshot,
        anonymiser: Option<&Anonymiser>,
    ) -> Self {
        Self {
            windlass: env!("CARGO_PKG_VERSION"),
            recorded: Timestamp::now(),
            kernel: host.text("/proc/sys/kernel/osrelease"),
            simulated: host.simulated(),
            entries: recording.len(),
            replaced: anonymiser.is_some(),
            serial_numbers: anonymiser.map(Anonymiser::known),
            left_out: &recording.omissions,
        }
    }

    /// What every look at the recording begins with.
    pub(super) fn mark(&self) -> String {
        let kernel = self.kernel.iter().map(|release| format!(", Linux {release}"));
        let when = self.recorded.strftime("%Y-%m-%d %H:%M UTC");
        format!("{when}{}", kernel.collect::<String>())
    }

    /// The text for people.
    pub(super) fn text(&self) -> String {
        let replaced = if self.replaced { REPLACED } else { KEPT };
        let left_out = match self.left_out {
            [] => String::new(),
            some => {
                let lines = some.iter().take(ROOM);
                let lines = lines.map(|it| format!("  {}: {}\n", it.path.display(), it.why));
                let more = some.len().saturating_sub(ROOM);
                let more = (more > 0).then(|| format!("  and {more} more, in manifest.json\n"));
                format!("\nLeft out:\n{}{}", lines.collect::<String>(), more.unwrap_or_default())
            }
        };
        format!(
            "A host as its kernel shows it, recorded by windlass {} on {}.\n\n\
             {CONTENTS}\n{replaced}{left_out}",
            self.windlass,
            self.mark(),
        )
    }
}

const CONTENTS: &str = "  sys, proc       the shape of sysfs, and the text of files that say what a device is and how it does
  dev             the names of device nodes; the files are empty
  inventory.json  what windlass found on the host itself, NVIDIA's GPUs among it
  manifest.json   this page, for programs

Look at it anywhere:

  windlass devices --host-root .
  windlass topo --host-root .

Not in it: names of the host, its users and its network; PCI configuration space; logs; the content of
any device; any file that is not known to be harmless.
";

const REPLACED: &str = "\
Serial numbers, unique ids, addresses and GUIDs of devices, and addresses of routes, are not the host's
own. Each was replaced by one that looks the same, and is the same wherever it is. Names that people gave
to network interfaces are as they were.
";

const KEPT: &str = "\
Serial numbers, unique ids, addresses and GUIDs are the host's own: it was recorded --with-serials.
";
