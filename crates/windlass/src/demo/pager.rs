//! Step-by-step output: the terminal shows the next event after Enter. The demo itself does not wait.

use std::{
    io::{self, BufRead as _, IsTerminal as _, Write as _},
    sync::mpsc::{Receiver, Sender, channel},
    thread,
};

use anyhow::{Result, anyhow};
use tokio::sync::oneshot;

use crate::{
    exit::UsageError,
    screen::{Paint, Style, print_line, terminal_height},
};

/// Queue of events for the terminal.
#[derive(Clone, Debug)]
pub(super) struct Pager {
    events: Sender<Vec<String>>,
}

/// Thread that shows events and reads the keyboard. A thread, because the user may take minutes.
#[derive(Debug)]
pub(super) struct PagerThread {
    result: oneshot::Receiver<Result<()>>,
}

/// Prompt between two pages of the output.
const PROMPT: &str = "-- Enter: more, q: stop --";

// === impl Pager ===

impl Pager {
    /// Starts the thread. Fails unless stdin and stdout are terminals.
    pub(super) fn start() -> Result<(Self, PagerThread)> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            let problem = anyhow!("--step waits for a key: run it in a terminal, or leave it out");
            return Err(UsageError(problem).into());
        }
        let (events, receiver) = channel();
        let (result_sender, ended) = oneshot::channel();
        thread::spawn(move || {
            // The receiver is gone after an interrupt.
            let _ = result_sender.send(show_events(&receiver));
        });
        Ok((Self { events }, PagerThread { result: ended }))
    }

    /// Queues the lines of an event. After `q`, discards them.
    pub(super) fn push(&self, event: Vec<String>) {
        let _ = self.events.send(event);
    }
}

// === impl PagerThread ===

impl PagerThread {
    /// Waits until every event was shown, or the user has pressed `q`.
    pub(super) async fn join(self) -> Result<()> {
        self.result.await.unwrap_or(Ok(()))
    }
}

/// Shows events until the queue is closed or the user presses `q`. An event that is higher than the screen has several
/// pages, with a prompt between them.
fn show_events(events: &Receiver<Vec<String>>) -> Result<()> {
    let mut is_first = true;
    while let Ok(event) = events.recv() {
        // The last line of the screen has the prompt.
        for page in split_pages(&event, terminal_height().saturating_sub(1)) {
            if !is_first && !wants_more()? {
                return Ok(());
            }
            is_first = false;
            page.iter().try_for_each(print_line)?;
        }
    }
    Ok(())
}

/// Splits an event into pages of at most `height` lines, before an empty line where possible.
fn split_pages(event: &[String], height: usize) -> Vec<&[String]> {
    let (mut pages, mut remaining) = (Vec::new(), event);
    while remaining.len() > height.max(1) {
        let window = &remaining[..=height.max(1)];
        let end = window.iter().rposition(String::is_empty).filter(|end| *end > 0);
        let (page, after) = remaining.split_at(end.unwrap_or(height.max(1)));
        pages.push(page);
        remaining = after;
    }
    pages.push(remaining);
    pages
}

/// Prompts the user, then erases the prompt. False after `q` or the end of the input.
fn wants_more() -> Result<bool> {
    let mut out = io::stdout().lock();
    write!(out, "{}", Paint::for_stdout().styled(Style::Muted, PROMPT))?;
    out.flush()?;
    let mut answer = String::new();
    let length = io::stdin().lock().read_line(&mut answer)?;
    // Move up over the echo of Enter, and clear the line.
    write!(out, "\x1b[A\r\x1b[K")?;
    Ok(length > 0 && !answer.trim_start().starts_with(['q', 'Q']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_higher_than_the_screen_is_cut_between_its_paragraphs() {
        let event = ["a", "b", "", "c", "d", "e", "f", "g"].map(str::to_owned);
        let heights =
            |height| split_pages(&event, height).iter().map(|page| page.len()).collect::<Vec<_>>();
        assert_eq!(heights(8), [8]);
        assert_eq!(heights(4), [2, 4, 2], "the second paragraph is higher than the screen");
        assert_eq!(heights(0), [1; 8], "the height is unknown");
    }
}
