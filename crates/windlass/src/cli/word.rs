//! Parser of enum values on the command line, for enums of other crates.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Parses a value from its word, ignoring case. The help shows each word with its meaning; it hides a word whose
/// meaning is empty.
pub(super) fn enum_parser<T: Copy + Send + Sync + 'static>(
    values: impl IntoIterator<Item = (&'static str, T, &'static str)>,
) -> impl TypedValueParser<Value = T> {
    let values: Vec<_> = values.into_iter().collect();
    let possible_values = values.iter().map(|(word, _, meaning)| {
        let value = PossibleValue::new(*word);
        if meaning.is_empty() { value.hide(true) } else { value.help(*meaning) }
    });
    PossibleValuesParser::new(possible_values.collect::<Vec<_>>()).map(move |text: String| {
        let value = values.iter().find(|(word, ..)| word.eq_ignore_ascii_case(&text));
        value.expect("clap accepts only these words").1
    })
}
