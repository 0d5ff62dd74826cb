//! XID policy: a table of verdicts, each with its reason.
//!
//! An XID is an error that NVIDIA's driver writes to the kernel log and reports as an NVML event.
//! Numbers, meanings and actions: NVIDIA, "XID Errors" (docs.nvidia.com/deploy/xid-errors), release
//! 580; the actions are the catalogue's column of immediate actions.

use serde::Serialize;

use self::Verdict::{Application, Critical, Informational};
use super::Action::{
    self, CheckBoard, CheckLinks, ContactSupport, Ignore, ResetGpu, RestartMachine, RestartProgram,
    UpdateDriver,
};

/// Consequence of an XID for the next pod on the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Verdict {
    /// The program failed; the GPU is fine.
    Application,
    /// Information only; the GPU keeps working.
    Informational,
    /// The GPU is unsafe for another pod.
    Critical,
}

/// One row of the XID policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct XidRule {
    /// The XID.
    #[serde(rename = "xid")]
    pub code: u64,
    /// Consequence for the next pod.
    pub verdict: Verdict,
    /// Meaning, after the catalogue.
    pub meaning: &'static str,
    /// Immediate action of the catalogue. The action concerns the program that ran and the verdict concerns the next
    /// pod, so they may disagree.
    pub action: Action,
    /// Reason for the verdict.
    pub reason: &'static str,
}

/// Unknown XIDs are critical: a new driver may report new errors.
const UNKNOWN: (Verdict, &str) = (Critical, "not in the XID catalogue");

/// The verdict on an XID and its meaning.
pub fn classify(code: u64) -> (Verdict, &'static str) {
    let rule = RULES.iter().find(|rule| rule.code == code);
    rule.map_or(UNKNOWN, |rule| (rule.verdict, rule.meaning))
}

/// The catalogue's action; `None` for an unknown XID.
pub(super) fn action(code: u64) -> Option<Action> {
    RULES.iter().find(|rule| rule.code == code).map(|rule| rule.action)
}

/// The whole policy, ordered by XID.
pub fn rules() -> &'static [XidRule] {
    RULES
}

const fn rule(
    code: u64,
    verdict: Verdict,
    action: Action,
    meaning: &'static str,
    reason: &'static str,
) -> XidRule {
    XidRule { code, verdict, meaning, action, reason }
}

#[rustfmt::skip]
const RULES: &[XidRule] = &[
    rule(8, Application, RestartProgram, "GPU stopped processing", "a kernel ran past the watchdog"),
    rule(13, Application, RestartProgram, "graphics engine exception", "an illegal instruction or address of the program"),
    rule(31, Application, RestartProgram, "GPU memory page fault", "the program touched memory it does not own"),
    rule(32, Critical, RestartProgram, "invalid or corrupted push buffer stream", "usually the bus or the driver, not the program"),
    rule(38, Critical, Ignore, "driver firmware error", "the driver's own state is in doubt"),
    rule(43, Application, Ignore, "GPU stopped processing", "the driver ended a faulty program"),
    rule(44, Critical, Ignore, "graphics engine fault during context switch", "the engine's state is in doubt"),
    rule(45, Application, Ignore, "preemptive cleanup", "follows another error or a killed program"),
    rule(46, Critical, ResetGpu, "GPU stopped processing", "the GPU timed out on its own"),
    rule(48, Critical, ResetGpu, "double-bit ECC error", "memory that cannot be corrected; needs a reset"),
    rule(54, Critical, CheckBoard, "auxiliary power is not connected", "the board is not powered as it must be"),
    rule(61, Critical, ContactSupport, "internal micro-controller breakpoint", "firmware stopped; needs a reset"),
    rule(62, Critical, ResetGpu, "internal micro-controller halt", "firmware halted; needs a reset"),
    rule(63, Informational, Ignore, "ECC page retirement or row remapping recorded", "the bad memory is out of use already; the next reset completes the change"),
    rule(64, Critical, ResetGpu, "ECC page retirement or row remapping failed", "the bad row stays in use"),
    rule(68, Application, RestartProgram, "video processor exception", "a stream that the decoder could not take"),
    rule(69, Application, RestartProgram, "graphics engine class error", "a wrong method or value from the program"),
    rule(74, Critical, CheckLinks, "NVLink error", "traffic to peers is broken or slow"),
    rule(78, Critical, UpdateDriver, "vGPU start error", "the virtual GPU did not come up"),
    rule(79, Critical, RestartMachine, "GPU has fallen off the bus", "the device does not answer; needs a reset or a reboot"),
    rule(92, Informational, Ignore, "high single-bit ECC error rate", "every error was corrected"),
    rule(94, Informational, RestartProgram, "contained ECC error", "only the program that hit it was ended"),
    rule(95, Critical, ResetGpu, "uncontained ECC error", "other programs may have been hit; needs a reset"),
    rule(109, Application, ResetGpu, "context switch timeout", "a program that does not yield"),
    rule(110, Critical, ResetGpu, "security fault error", "needs a reset"),
    rule(119, Critical, ResetGpu, "GSP RPC timeout", "the GPU's system processor does not answer; needs a reset"),
    rule(120, Critical, ResetGpu, "GSP error", "the GPU's system processor failed; needs a reset"),
    rule(121, Informational, Ignore, "C2C link corrected error", "every error was corrected"),
    rule(136, Critical, ResetGpu, "link training failed", "a link is missing since boot"),
    rule(137, Application, Ignore, "NVLink privilege error", "a program's access to a peer was refused"),
    rule(140, Critical, ResetGpu, "unrecovered ECC error", "memory that cannot be corrected; needs a reset"),
    rule(143, Critical, ResetGpu, "GPU initialization failed", "the device did not come up"),
    rule(144, Critical, CheckLinks, "NVLink error", "fifth generation, system access window"),
    rule(145, Critical, CheckLinks, "NVLink error", "fifth generation, receive layer"),
    rule(146, Critical, CheckLinks, "NVLink error", "fifth generation, transmit layer"),
    rule(147, Critical, CheckLinks, "NVLink error", "fifth generation, transaction exchange"),
    rule(148, Critical, CheckLinks, "NVLink error", "fifth generation, power and link control"),
    rule(149, Critical, CheckLinks, "NVLink error", "fifth generation, network interface"),
    rule(150, Critical, CheckLinks, "NVLink error", "fifth generation, switch or memory engine"),
    rule(154, Informational, Ignore, "GPU recovery action changed", "the health probe reads the new action"),
    rule(156, Informational, ResetGpu, "resource retirement recorded", "the bad part is out of use, or will be after a reset"),
    rule(157, Critical, Ignore, "resource retirement failed", "the bad part stays in use"),
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
    fn program_errors_are_not_critical_and_unknown_codes_are() {
        for (code, expected) in [(13, Application), (63, Informational), (79, Critical)] {
            assert_eq!(classify(code).0, expected, "XID {code}");
        }
        assert_eq!(classify(9_999).0, Critical);
    }

    #[test]
    fn a_code_has_the_catalogues_action_and_an_unknown_one_has_none() {
        for (code, expected) in
            [(79, Some(RestartMachine)), (48, Some(ResetGpu)), (13, Some(RestartProgram))]
        {
            assert_eq!(action(code), expected, "XID {code}");
        }
        assert_eq!(action(9_999), None);
    }
}
