//! Words of the command line that stand for values of other crates.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Parser of a value by its word. The help shows each word with its meaning; a word without a meaning is hidden.
pub(super) fn word<T: Copy + Send + Sync + 'static, const N: usize>(
    known: [(&'static str, T, &'static str); N],
) -> impl TypedValueParser<Value = T> {
    let shown = |(word, _, meaning): (&'static str, T, &'static str)| {
        let value = PossibleValue::new(word);
        if meaning.is_empty() { value.hide(true) } else { value.help(meaning) }
    };
    let value = move |text: String| {
        let found = known.into_iter().find(|(word, ..)| word.eq_ignore_ascii_case(&text));
        found.expect("clap accepts the known words only").1
    };
    PossibleValuesParser::new(known.map(shown)).map(value)
}
