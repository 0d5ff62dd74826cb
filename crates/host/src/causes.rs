//! An error and its causes in one line.

/// Joins an error and its causes to one line. Log formats differ in their treatment of the chain itself.
pub fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.map(ToString::to_string).fold(error.to_string(), |text, cause| {
        // Transparent errors repeat their cause.
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}
