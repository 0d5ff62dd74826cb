//! Words of the command line that stand for values of other crates.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Parser of a value by its word. The help shows each word with its meaning; a word without a meaning is hidden.
pub(super) fn word<T: Copy + Send + Sync + 'static>(
    known: impl IntoIterator<Item = (&'static str, T, &'static str)>,
) -> impl TypedValueParser<Value = T> {
    let known: Vec<_> = known.into_iter().collect();
    let shown = known.iter().map(|(word, _, meaning)| {
        let value = PossibleValue::new(*word);
        if meaning.is_empty() { value.hide(true) } else { value.help(*meaning) }
    });
    PossibleValuesParser::new(shown.collect::<Vec<_>>()).map(move |text: String| {
        let found = known.iter().find(|(word, ..)| word.eq_ignore_ascii_case(&text));
        found.expect("clap accepts the known words only").1
    })
}
