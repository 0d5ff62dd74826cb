//! Terminal output: tables and colours.

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
};

use crate::exit::unwritten;

/// Colours text if enabled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    enabled: bool,
}

/// Meaning of a text, which determines its colour.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tone {
    /// Heading.
    Strong,
    /// Expected state.
    #[cfg_attr(not(feature = "laboratory"), expect(dead_code, reason = "the demo's tone"))]
    Good,
    /// Failure.
    Bad,
    /// Warning.
    Notable,
    /// Secondary information.
    Quiet,
}

/// Table whose columns fit their widest cells.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

/// Maximum line length of prose and small tables: two panes on a wide screen.
pub(crate) const WIDTH: usize = 120;

/// Formats a number with its noun: `1 device`, `8 devices`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Wraps words after `lead`; continuation lines are indented to its width.
pub(crate) fn wrapped(lead: &str, words: impl IntoIterator<Item = impl Display>) -> Vec<String> {
    let (mut lines, mut line, mut gap) = (Vec::new(), lead.to_owned(), "");
    for word in words.into_iter().map(|word| word.to_string()) {
        let fits = line.chars().count() + gap.len() + word.chars().count() <= WIDTH;
        if !fits && !gap.is_empty() {
            let next = " ".repeat(lead.chars().count());
            lines.push(std::mem::replace(&mut line, next));
            gap = "";
        }
        line.push_str(gap);
        line.push_str(&word);
        gap = " ";
    }
    lines.push(line);
    lines
}

/// Prints a line to stdout.
pub(crate) fn line(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| unwritten(&error))
}

/// Quotes a path for a shell where necessary.
#[cfg(feature = "laboratory")]
pub(crate) fn shell_word(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+=:,@%".contains(letter);
    if !text.is_empty() && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A line of progress, where stderr is a terminal. The line goes when this is dropped.
#[cfg(any(feature = "cluster", feature = "laboratory"))]
#[derive(Debug)]
pub(crate) struct Progress {
    is_shown: bool,
}

// === impl Progress ===

#[cfg(any(feature = "cluster", feature = "laboratory"))]
impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_shown: io::stderr().is_terminal() }
    }

    /// Replaces the line.
    pub(crate) fn show(&self, text: &str) {
        if self.is_shown {
            // A lost progress line is harmless.
            let mut out = io::stderr().lock();
            let _ = write!(out, "\r\x1b[K{text}").and_then(|()| out.flush());
        }
    }
}

#[cfg(any(feature = "cluster", feature = "laboratory"))]
impl Drop for Progress {
    fn drop(&mut self) {
        self.show("");
    }
}

// === impl Paint ===

impl Paint {
    /// Colours on a terminal, unless <https://no-color.org> disables them.
    pub(crate) fn for_stdout() -> Self {
        let refused = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { enabled: io::stdout().is_terminal() && !refused }
    }

    /// Leaves all text plain.
    pub(crate) fn plain() -> Self {
        Self { enabled: false }
    }

    pub(crate) fn text(self, tone: Tone, text: impl Display) -> String {
        let code = match tone {
            Tone::Strong => "1",
            Tone::Good => "32",
            Tone::Bad => "31",
            Tone::Notable => "33",
            Tone::Quiet => "2",
        };
        if self.enabled { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

// === impl Table ===

impl Table {
    pub(crate) fn new<const N: usize>(headings: [&str; N]) -> Self {
        Self { rows: vec![headings.map(str::to_owned).to_vec()] }
    }

    /// Creates a table whose first row is its heading.
    pub(crate) fn from_rows(rows: Vec<Vec<String>>) -> Self {
        Self { rows }
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Formats the lines, each after `indent`.
    pub(crate) fn lines(&self, indent: &str) -> Vec<String> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<_> = (0..columns).map(|column| self.width_of(column)).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            format!("{indent}{}", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        self.rows.iter().map(line).collect()
    }

    pub(crate) fn print(&self) -> io::Result<()> {
        self.lines("").into_iter().try_for_each(line)
    }

    /// Width of the widest line.
    pub(crate) fn width(&self) -> usize {
        self.lines("").iter().map(|line| line.chars().count()).max().unwrap_or(0)
    }

    fn width_of(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_broken_between_words() {
        let words = ["x".repeat(60), "y".repeat(60), "z".to_owned()];
        let lines = wrapped("  gets  ", &words);
        assert_eq!(lines, [format!("  gets  {}", words[0]), format!("        {} z", words[1])]);
        assert_eq!(wrapped("  gets  ", ["x".repeat(200)]).len(), 1, "a word is not broken");
    }

    #[cfg(feature = "laboratory")]
    #[test]
    fn a_shell_takes_every_path_as_one_word() {
        for (path, expected) in [
            ("/tmp/m-1.2_x", "/tmp/m-1.2_x"),
            ("/tmp/ü ñ/x", "'/tmp/ü ñ/x'"),
            ("/tmp/it's", r"'/tmp/it'\''s'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(std::path::Path::new(path)), expected);
        }
    }

    #[test]
    fn one_is_singular() {
        assert_eq!(count(1, "device"), "1 device");
        assert_eq!(count(0, "device"), "0 devices");
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["A", "LONG"]);
        table.row(["wide".into(), "x".into()]);
        assert_eq!(table.lines("  "), ["  A     LONG", "  wide  x"]);
    }
}
