//! Terminal output: tables and colours.

use std::{
    env,
    fmt::Display,
    io::{self, IsTerminal as _, Write as _},
    os::fd::AsFd,
};

use crate::exit::output_error;

/// Colours text if enabled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Paint {
    enabled: bool,
}

/// Meaning of a text, which determines its colour.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Style {
    Heading,
    /// Expected state.
    #[cfg_attr(not(feature = "laboratory"), expect(dead_code, reason = "the demo's tone"))]
    Success,
    /// Failure.
    Error,
    Warning,
    /// Secondary information.
    Muted,
}

/// Table whose columns fit their widest cells.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

/// Maximum line length of prose and small tables: two panes on a wide screen.
pub(crate) const MAX_WIDTH: usize = 120;

/// Blanks between two columns.
const COLUMN_GAP: usize = 2;
/// Minimum width of a truncated column.
const MIN_COLUMN_WIDTH: usize = 6;

/// Width of the terminal in columns. `None` if stdout is no terminal, or the width is unknown.
pub(crate) fn terminal_width() -> Option<usize> {
    let out = io::stdout();
    out.is_terminal().then(|| columns(&out)).flatten()
}

/// Width of a terminal in columns. `None` if it is unknown.
fn columns(terminal: impl AsFd) -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(terminal).ok()?;
    (size.ws_col > 0).then_some(size.ws_col.into())
}

/// Replaces control characters, which a terminal would interpret: names in the text are untrusted.
pub(crate) fn replace_control_chars(text: &str) -> String {
    text.replace(char::is_control, "\u{fffd}")
}

/// Truncates a text to `width` characters. A truncated text ends with an ellipsis.
pub(crate) fn truncated(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let beginning: String = text.chars().take(width.saturating_sub(1)).collect();
    beginning + "\u{2026}"
}

/// Formats a number with its noun: `1 device`, `8 devices`.
pub(crate) fn pluralized(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Height of the terminal in rows; 24 if stdout is no terminal, or the height is unknown.
#[cfg(feature = "laboratory")]
pub(crate) fn terminal_height() -> usize {
    let rows = rustix::termios::tcgetwinsize(io::stdout()).map_or(0, |size| size.ws_row);
    if rows == 0 { 24 } else { rows.into() }
}

/// Maximum length of a line of prose, in characters.
fn prose_width() -> usize {
    terminal_width().map_or(MAX_WIDTH, |width| width.min(MAX_WIDTH))
}

/// Wraps words after `lead`; continuation lines are indented to its width.
pub(crate) fn wrapped(lead: &str, words: impl IntoIterator<Item = impl Display>) -> Vec<String> {
    let width = prose_width();
    let (mut lines, mut line, mut gap) = (Vec::new(), lead.to_owned(), "");
    for word in words.into_iter().map(|word| word.to_string()) {
        let fits = line.chars().count() + gap.len() + word.chars().count() <= width;
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
pub(crate) fn print_line(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(|error| output_error(&error))
}

/// Quotes a path for a shell where necessary.
pub(crate) fn shell_word(path: &std::path::Path) -> String {
    let text = path.display().to_string();
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+=:,@%".contains(letter);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Progress line, if stderr is a terminal. Drop erases the line.
#[cfg(any(feature = "cluster", feature = "laboratory"))]
#[derive(Debug)]
pub(crate) struct Progress {
    is_shown: bool,
}

/// Full-screen output that is redrawn in place.
#[derive(Debug)]
pub(crate) struct FullScreen {
    is_clear: bool,
}

// === impl FullScreen ===

impl FullScreen {
    /// `None` if stdout is no terminal.
    pub(crate) fn new() -> Option<Self> {
        io::stdout().is_terminal().then_some(Self { is_clear: false })
    }

    /// Replaces the output. Omits lines below the end of the screen.
    pub(crate) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let mut out = io::stdout().lock();
        let begin = if self.is_clear { "\x1b[H" } else { "\x1b[2J\x1b[H" };
        self.is_clear = true;
        let rows = rustix::termios::tcgetwinsize(&out).map_or(0, |size| size.ws_row);
        let height = if rows == 0 { usize::MAX } else { rows.into() };
        let visible: Vec<_> =
            lines.iter().take(height.max(2) - 1).map(|line| format!("{line}\x1b[K")).collect();
        write!(out, "{begin}{}\n\x1b[J", visible.join("\n"))
            .and_then(|()| out.flush())
            .map_err(|error| output_error(&error))
    }
}

// === impl Progress ===

#[cfg(any(feature = "cluster", feature = "laboratory"))]
impl Progress {
    pub(crate) fn new() -> Self {
        Self { is_shown: io::stderr().is_terminal() }
    }

    /// Replaces the line by a text, truncated to the width of the terminal.
    pub(crate) fn show(&self, text: &str) {
        if self.is_shown {
            // A lost progress line is harmless.
            let mut out = io::stderr().lock();
            let width = columns(&out).unwrap_or(MAX_WIDTH);
            let text: String = replace_control_chars(text).chars().take(width - 1).collect();
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
        let is_disabled = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { enabled: io::stdout().is_terminal() && !is_disabled }
    }

    /// Disables colours.
    pub(crate) fn plain() -> Self {
        Self { enabled: false }
    }

    pub(crate) fn styled(self, style: Style, text: impl Display) -> String {
        let code = match style {
            Style::Heading => "1",
            Style::Success => "32",
            Style::Error => "31",
            Style::Warning => "33",
            Style::Muted => "2",
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

    pub(crate) fn add_row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.into());
    }

    /// Lines after `indent`, truncated to the width of the terminal. Files and pipes get whole lines.
    pub(crate) fn lines(&self, indent: &str) -> Vec<String> {
        let room = terminal_width().map_or(usize::MAX, |width| width.saturating_sub(indent.len()));
        self.formatted(indent, &self.widths_within(room))
    }

    /// Lines, truncated to `width` characters as far as the minimum width of columns allows.
    pub(crate) fn lines_within(&self, width: usize) -> Vec<String> {
        self.formatted("", &self.widths_within(width))
    }

    /// Column widths of a table of at most `width` characters. The widest columns are truncated first.
    fn widths_within(&self, width: usize) -> Vec<usize> {
        let mut widths = self.widths();
        let total = |widths: &[usize]| {
            widths.iter().sum::<usize>() + COLUMN_GAP * widths.len().max(1) - COLUMN_GAP
        };
        while total(&widths) > width {
            match widths.iter_mut().max().filter(|widest| **widest > MIN_COLUMN_WIDTH) {
                Some(widest) => *widest -= 1,
                None => break,
            }
        }
        widths
    }

    /// Prints the table.
    pub(crate) fn print(&self) -> io::Result<()> {
        self.lines("").into_iter().try_for_each(print_line)
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        (0..columns).map(|column| self.width_of(column)).collect()
    }

    fn formatted(&self, indent: &str, widths: &[usize]) -> Vec<String> {
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(widths).map(|(cell, width)| {
                let cell = replace_control_chars(&truncated(cell, *width));
                format!("{cell:<width$}")
            });
            format!("{indent}{}", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        self.rows.iter().map(line).collect()
    }

    /// Width of the widest line.
    pub(crate) fn width(&self) -> usize {
        let lines = self.formatted("", &self.widths());
        lines.iter().map(|line| line.chars().count()).max().unwrap_or(0)
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

    #[test]
    fn a_quoted_path_is_one_word_for_a_shell() {
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
        assert_eq!(pluralized(1, "device"), "1 device");
        assert_eq!(pluralized(0, "device"), "0 devices");
    }

    #[test]
    fn a_table_that_is_too_wide_loses_ends_of_its_widest_cells() {
        let mut table = Table::new(["ID", "HELD BY"]);
        table.add_row(["GPU-0123456789".into(), "default/trainer".into()]);
        assert_eq!(table.lines_within(40), table.lines(""));
        assert_eq!(table.lines_within(22), ["ID          HELD BY", "GPU-01234…  default/t…"]);
        assert_eq!(
            table.lines_within(1),
            ["ID      HELD …", "GPU-0…  defau…"],
            "columns have a minimum width"
        );
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["A", "LONG"]);
        table.add_row(["wide".into(), "x".into()]);
        assert_eq!(table.lines("  "), ["  A     LONG", "  wide  x"]);
    }
}
