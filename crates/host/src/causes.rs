//! An error and its causes in one line.

/// Joins an error and its causes: log formats differ in what they keep of a chain.
pub fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.map(ToString::to_string).fold(error.to_string(), |text, cause| {
        // Layers that only pass an error on say the same.
        if text.ends_with(&cause) { text } else { format!("{text}: {cause}") }
    })
}
