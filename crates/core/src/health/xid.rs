//! Which XIDs make a GPU unhealthy, as data with the reason beside each.
//!
//! An XID is an error that NVIDIA's driver writes to the kernel log and reports as an NVML event.
//! Numbers and meanings: NVIDIA, "XID Errors" (docs.nvidia.com/deploy/xid-errors), release 580.

use self::Verdict::{Application, Critical, Informational};

/// What an XID means for the next pod on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The program that ran did wrong; the GPU is fine.
    Application,
    /// Worth knowing; the GPU goes on working.
    Informational,
    /// The GPU cannot be trusted with another pod.
    Critical,
}

/// One row of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XidRule {
    /// The XID.
    pub code: u64,
    /// What it means for the next pod.
    pub verdict: Verdict,
    /// What it says.
    pub meaning: &'static str,
    /// Why it counts or does not.
    pub reason: &'static str,
}

/// An XID that the table does not know counts: a new driver's new error is not waved through.
const UNKNOWN: (Verdict, &str) = (Critical, "not in the XID catalogue");

/// The verdict on an XID, and what it means in words.
pub fn judge(code: u64) -> (Verdict, &'static str) {
    let rule = RULES.iter().find(|rule| rule.code == code);
    rule.map_or(UNKNOWN, |rule| (rule.verdict, rule.meaning))
}

/// The whole policy, ordered by code.
pub fn rules() -> &'static [XidRule] {
    RULES
}

const fn rule(code: u64, verdict: Verdict, meaning: &'static str, reason: &'static str) -> XidRule {
    XidRule { code, verdict, meaning, reason }
}

#[rustfmt::skip]
const RULES: &[XidRule] = &[
    rule(8, Application, "GPU stopped processing", "a kernel ran past the watchdog"),
    rule(13, Application, "graphics engine exception", "an illegal instruction or address of the program"),
    rule(31, Application, "GPU memory page fault", "the program touched memory it does not own"),
    rule(32, Critical, "invalid or corrupted push buffer stream", "usually the bus or the driver, not the program"),
    rule(38, Critical, "driver firmware error", "the driver's own state is in doubt"),
    rule(43, Application, "GPU stopped processing", "the driver ended a faulty program"),
    rule(44, Critical, "graphics engine fault during context switch", "the engine's state is in doubt"),
    rule(45, Application, "preemptive cleanup", "follows another error or a killed program"),
    rule(46, Critical, "GPU stopped processing", "the GPU timed out on its own"),
    rule(48, Critical, "double-bit ECC error", "memory that cannot be corrected; needs a reset"),
    rule(54, Critical, "auxiliary power is not connected", "the board is not powered as it must be"),
    rule(61, Critical, "internal micro-controller breakpoint", "firmware stopped; needs a reset"),
    rule(62, Critical, "internal micro-controller halt", "firmware halted; needs a reset"),
    rule(63, Informational, "ECC page retirement or row remapping recorded", "the bad row is already out of use; takes effect at the next reset"),
    rule(64, Critical, "ECC page retirement or row remapping failed", "the bad row stays in use"),
    rule(68, Application, "video processor exception", "a stream that the decoder could not take"),
    rule(69, Application, "graphics engine class error", "a wrong method or value from the program"),
    rule(74, Critical, "NVLink error", "traffic to peers is broken or slow"),
    rule(78, Critical, "vGPU start error", "the virtual GPU did not come up"),
    rule(79, Critical, "GPU has fallen off the bus", "the device does not answer; needs a reset or a reboot"),
    rule(92, Informational, "high single-bit ECC error rate", "every error was corrected"),
    rule(94, Informational, "contained ECC error", "only the program that hit it was ended"),
    rule(95, Critical, "uncontained ECC error", "other programs may have been hit; needs a reset"),
    rule(109, Application, "context switch timeout", "a program that does not yield"),
    rule(110, Critical, "security fault error", "needs a reset"),
    rule(119, Critical, "GSP RPC timeout", "the GPU's system processor does not answer; needs a reset"),
    rule(120, Critical, "GSP error", "the GPU's system processor failed; needs a reset"),
    rule(121, Informational, "C2C link corrected error", "every error was corrected"),
    rule(136, Critical, "link training failed", "a link is missing since boot"),
    rule(137, Application, "NVLink privilege error", "a program's access to a peer was refused"),
    rule(140, Critical, "unrecovered ECC error", "memory that cannot be corrected; needs a reset"),
    rule(143, Critical, "GPU initialization failed", "the device did not come up"),
    rule(144, Critical, "NVLink error", "fifth generation, system access window"),
    rule(145, Critical, "NVLink error", "fifth generation, receive layer"),
    rule(146, Critical, "NVLink error", "fifth generation, transmit layer"),
    rule(147, Critical, "NVLink error", "fifth generation, transaction exchange"),
    rule(148, Critical, "NVLink error", "fifth generation, power and link control"),
    rule(149, Critical, "NVLink error", "fifth generation, network interface"),
    rule(150, Critical, "NVLink error", "fifth generation, switch or memory engine"),
    rule(154, Informational, "GPU recovery action changed", "the probe asks for the action itself"),
    rule(156, Informational, "resource retirement recorded", "the bad part is out of use, or will be after a reset"),
    rule(157, Critical, "resource retirement failed", "the bad part stays in use"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_ordered_and_every_row_gives_its_reason() {
        assert!(RULES.is_sorted_by(|a, b| a.code < b.code));
        assert!(RULES.iter().all(|rule| !rule.meaning.is_empty() && !rule.reason.is_empty()));
    }

    #[test]
    fn program_errors_pass_and_unknown_codes_count() {
        for (code, expected) in [(13, Application), (63, Informational), (79, Critical)] {
            assert_eq!(judge(code).0, expected, "XID {code}");
        }
        assert_eq!(judge(9_999).0, Critical);
    }
}
