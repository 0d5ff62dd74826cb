//! Strict parser of the crate's files. Unknown keys are errors, and every error has its line.

use serde::de::DeserializeOwned;
use windlass_config::{
    Diagnostic,
    document::{self, UnknownKeys},
};
use windlass_core::selector::nearest;

/// Parses the text of a file into `T`.
///
/// # Errors
///
/// All errors of syntax, keys and types. After a syntax error, only that one.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, Vec<Diagnostic>> {
    let root = document::parse(text).map_err(|error| vec![error])?;
    let reading = document::read::<T>(&root, UnknownKeys::Denied);
    reading.value.filter(|_| reading.errors.is_empty()).ok_or(reading.errors)
}

/// ` (is it NAME?)` for the most similar name; `None` if no name is similar.
pub(crate) fn suggestion<'a>(
    word: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    nearest(word, names).map(|name| format!(" (is it {name:?}?)"))
}
