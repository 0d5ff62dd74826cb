//! Messages of the reader, in terms of the file. The messages of serde would name types of the program.

use serde::de::{Expected, Unexpected};
use windlass_core::selector::nearest;

/// Message for a value of a type that the key does not accept.
pub(super) fn wrong_value(value: &Unexpected<'_>, expected: &dyn Expected) -> String {
    let expected = expected_in_words(&expected.to_string());
    match value {
        Unexpected::Unit | Unexpected::Option => {
            format!("nothing is written here: write {expected}")
        }
        value => format!("{} is not valid here: write {expected}", value_in_words(value)),
    }
}

/// Message for a text that is none of the known values.
pub(crate) fn unknown_word(word: &str, known: &[&str]) -> String {
    let advice = match nearest(word, known.iter().copied()) {
        Some(suggestion) => format!("did you mean {suggestion}?"),
        None => format!("write {}", alternatives(known)),
    };
    format!("{} is not a known value: {advice}", shown(word))
}

/// Message for an unknown key. It lists the known keys only if none is similar, because there may be forty.
pub(super) fn unknown_field(name: &str, known: &[&str]) -> String {
    let advice = if let Some(suggestion) = nearest(name, known.iter().copied()) {
        format!("did you mean `{suggestion}`?")
    } else {
        let known: Vec<_> = known.iter().map(|name| format!("`{name}`")).collect();
        format!("there are {}", known.join(", "))
    };
    format!("unknown field `{name}`: {advice}")
}

fn value_in_words(value: &Unexpected<'_>) -> String {
    match value {
        Unexpected::Bool(value) => value.to_string(),
        Unexpected::Unsigned(number) => number.to_string(),
        Unexpected::Signed(number) => number.to_string(),
        Unexpected::Float(number) => number.to_string(),
        Unexpected::Char(character) => shown(&character.to_string()),
        Unexpected::Str(text) => shown(text),
        Unexpected::Seq => "a list".to_owned(),
        Unexpected::Map | Unexpected::StructVariant => "a group of keys".to_owned(),
        Unexpected::Other(text) => (*text).to_owned(),
        _ => "this".to_owned(),
    }
}

/// The expectation of serde or of a type of the standard library, in terms of the file.
fn expected_in_words(expected: &str) -> String {
    let number = |min: &str, max: &str| format!("a number from {min} to {max}");
    match expected {
        "u8" => number("0", &u8::MAX.to_string()),
        "u16" => number("0", &u16::MAX.to_string()),
        "u32" => number("0", &u32::MAX.to_string()),
        "u64" | "usize" => "a whole number, 0 or more".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" | "a borrowed string" | "a character" => "a string".to_owned(),
        "path string" => "a path".to_owned(),
        "a sequence" => "a list".to_owned(),
        "unit" => "nothing".to_owned(),
        "a map" | "newtype variant" => "keys with values".to_owned(),
        other if other.starts_with("struct ") => "keys with values".to_owned(),
        other if other.starts_with("enum ") => "one of its words".to_owned(),
        other if other.starts_with("tuple ") => "a list".to_owned(),
        other => other.to_owned(),
    }
}

/// A text in quotes, shortened: binary data would fill the screen.
fn shown(text: &str) -> String {
    const MAX: usize = 60;
    if text.chars().count() <= MAX {
        return format!("{text:?}");
    }
    let prefix: String = text.chars().take(MAX).collect();
    format!("{:?}", prefix + "...")
}

/// `a`, `a or b`, `a, b or c`.
fn alternatives(words: &[&str]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [word] => (*word).to_owned(),
        [others @ .., last] => format!("{} or {last}", others.join(", ")),
    }
}
