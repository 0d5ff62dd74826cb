//! Files of this crate: read strictly, with the line of every mistake.

use serde::de::DeserializeOwned;
use windlass_config::{
    Diagnostic,
    document::{self, UnknownKeys},
};
use windlass_core::selector::nearest;

/// Reads a file into its struct.
///
/// # Errors
///
/// Every mistake of syntax, key and type.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, Vec<Diagnostic>> {
    let root = document::parse(text).map_err(|mistake| vec![mistake])?;
    let reading = document::read::<T>(&root, UnknownKeys::Wrong);
    reading.value.filter(|_| reading.mistakes.is_empty()).ok_or(reading.mistakes)
}

/// ` (is it NAME?)`, where a name is near.
pub(crate) fn suggestion<'a>(
    word: &str,
    names: impl IntoIterator<Item = &'a str>,
) -> Option<String> {
    nearest(word, names).map(|name| format!(" (is it {name:?}?)"))
}
