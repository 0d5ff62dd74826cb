//! Custody of an item: the receipts that its sender gets, and when.
//!
//! ```text
//!  arrived ──(room in the queue)──> taken ──(every next stage took its copy, or the item ended)──> passed
//! ```
//!
//! The sender keeps an item's name until it is passed. A dropped [`Custody`] says nothing, so a stage that dies passes
//! nothing by accident.

use std::{
    collections::HashMap,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::Status;

use crate::wire::{self, receipt::Content};

/// Duty to tell the sender of one item that a copy of its result is in other hands.
#[derive(Clone, Debug)]
pub(crate) struct Custody {
    sequence: u64,
    notes: mpsc::UnboundedSender<Note>,
}

/// A receipt in the making.
#[derive(Debug)]
pub(crate) enum Note {
    Receipt(Content),
    /// One copy of an item's result is in other hands.
    Released(u64),
    /// The item needs no result: another part of it has decided.
    Settled(u64),
}

/// The receipts of one stream. An item is passed when each of its copies was released.
#[derive(Debug)]
pub(crate) struct Receipts {
    notes: mpsc::UnboundedReceiver<Note>,
    /// Copies that are made of each result.
    copies: usize,
    /// Released copies of items that have more.
    released: HashMap<u64, usize>,
}

// === impl Custody ===

impl Custody {
    pub(crate) fn new(sequence: u64, notes: mpsc::UnboundedSender<Note>) -> Self {
        Self { sequence, notes }
    }

    /// One copy is in other hands. A sender that is gone needs no receipt.
    pub(crate) fn release(&self) {
        drop(self.notes.send(Note::Released(self.sequence)));
    }

    /// The item is passed, and no copy of it will be.
    pub(crate) fn settle(&self) {
        drop(self.notes.send(Note::Settled(self.sequence)));
    }
}

// === impl Receipts ===

impl Receipts {
    pub(crate) fn new(notes: mpsc::UnboundedReceiver<Note>, copies: usize) -> Self {
        Self { notes, copies, released: HashMap::new() }
    }

    /// True with the last copy.
    fn is_passed(&mut self, sequence: u64) -> bool {
        if self.copies <= 1 {
            return true;
        }
        let released = self.released.entry(sequence).or_default();
        *released += 1;
        let is_last = *released == self.copies;
        if is_last {
            self.released.remove(&sequence);
        }
        is_last
    }
}

impl Stream for Receipts {
    type Item = Result<wire::Receipt, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let content = match ready!(self.notes.poll_recv(cx)) {
                None => return Poll::Ready(None),
                Some(Note::Receipt(content)) => content,
                Some(Note::Released(sequence)) if self.is_passed(sequence) => {
                    Content::Passed(wire::Passed { sequence })
                }
                Some(Note::Settled(sequence)) => Content::Passed(wire::Passed { sequence }),
                Some(Note::Released(_)) => continue,
            };
            return Poll::Ready(Some(Ok(wire::Receipt { content: Some(content) })));
        }
    }
}
