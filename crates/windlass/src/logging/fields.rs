//! Event fields as text: `key=value`, with quotes around values of several words.
//!
//! tracing-subscriber's own formatter writes displayed values without quotes, so programs cannot find their end.

use std::fmt::{self, Debug};

use tracing::field::Field;
use tracing_subscriber::{
    field::MakeExt as _,
    fmt::format::{FormatFields, Writer, debug_fn},
};

pub(super) fn as_text() -> impl for<'w> FormatFields<'w> + 'static {
    debug_fn(write).delimited(" ")
}

fn write(out: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> fmt::Result {
    let text = format!("{value:?}");
    if field.name() == "message" {
        return out.write_str(&text);
    }
    let name = field.name().trim_start_matches("r#");
    let (italic, dim, plain) =
        if out.has_ansi_escapes() { ("\x1b[3m", "\x1b[2m", "\x1b[0m") } else { ("", "", "") };
    write!(out, "{italic}{name}{plain}{dim}={plain}")?;
    if is_one_word(&text) || is_quoted(&text) {
        out.write_str(&text)
    } else {
        write!(out, "{text:?}")
    }
}

/// True for a text without separators.
fn is_one_word(text: &str) -> bool {
    let is_separator =
        |letter: char| letter.is_whitespace() || letter.is_control() || "\"=".contains(letter);
    !text.is_empty() && !text.contains(is_separator)
}

/// True for a quoted text with escaped inner quotes.
fn is_quoted(text: &str) -> bool {
    let inner = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let mut letters = inner.into_iter().flat_map(str::chars);
    let mut is_valid = inner.is_some();
    while let Some(letter) = letters.next() {
        is_valid &= match letter {
            '"' => false,
            '\\' => letters.next().is_some(),
            _ => true,
        };
    }
    is_valid
}

#[cfg(test)]
mod tests {
    use std::{
        io,
        sync::{Arc, Mutex},
    };

    use tracing_subscriber::{fmt, layer::SubscriberExt as _};

    use super::*;

    /// Captured log.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no thread panicked").write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(event: impl FnOnce()) -> String {
        let log = Log::default();
        let out = log.clone();
        let layer = fmt::layer().with_writer(move || out.clone()).with_ansi(false).without_time();
        let layer = layer.with_target(false).with_level(false).fmt_fields(as_text());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), event);
        String::from_utf8(log.0.lock().expect("no thread panicked").clone()).expect("text")
    }

    #[test]
    fn values_with_separators_are_quoted() {
        let (why, device) = ("XID 79, GPU has fallen off the bus", "GPU0");
        let quoted = logged(|| tracing::info!(%device, %why, count = 8, "health changed"));
        let expected =
            "health changed device=GPU0 why=\"XID 79, GPU has fallen off the bus\" count=8";
        assert_eq!(quoted.trim_end(), expected);
        let escaped = logged(
            || tracing::info!(a = %"x=y", b = "p q", c = %"", d = ?["e f"], e = %"say \"no\"", "m"),
        );
        let expected = r#"m a="x=y" b="p q" c="" d="[\"e f\"]" e="say \"no\"""#;
        assert_eq!(escaped.trim_end(), expected);
        let lines = logged(|| tracing::warn!(error = %"one\ntwo", "m"));
        assert_eq!(lines.trim_end(), r#"m error="one\ntwo""#, "an event is one line");
    }
}
