//! Binary PPM: a header with the size, then three bytes for each pixel.

use std::ops::RangeInclusive;

use bytes::Bytes;
use windlass_pipeline::quantity;

use super::PictureError;
use crate::cli::PictureSize;

/// A picture of 8 bits per colour.
#[derive(Clone, Debug)]
pub(super) struct Ppm {
    file: Bytes,
    size: PictureSize,
    /// First byte of the pixels.
    begin: usize,
}

/// Bytes of a pixel: red, green, blue.
pub(super) const COLOURS: usize = 3;

// === impl Ppm ===

impl Ppm {
    /// Reads a file, which ends with its last pixel.
    pub(super) fn read(file: Bytes) -> Result<Self, PictureError> {
        let mut header = Header { file: &file, at: 2 };
        let mut number = |meaning: &str, allowed: RangeInclusive<u32>| {
            let number = header.number().filter(|number| allowed.contains(number));
            let (min, max) = (allowed.start(), allowed.end());
            let reason = || format!("its {meaning} is not a number from {min} to {max}");
            number.ok_or_else(|| PictureError::Ppm { reason: reason() })
        };
        let width = number("width", 1..=PictureSize::MAX_SIDE)?;
        let height = number("height", 1..=PictureSize::MAX_SIDE)?;
        number("maximum value", 255..=255)?;
        let size = PictureSize { width, height };
        // One white-space character ends the header.
        let begin = header.at + 1;
        let (actual_bytes, expected_bytes) = (file.len().saturating_sub(begin), pixel_bytes(size));
        if actual_bytes as u64 != expected_bytes {
            let reason = format!(
                "{size} pixels need {expected_bytes} bytes, and {actual_bytes} follow its header"
            );
            return Err(PictureError::Ppm { reason });
        }
        Ok(Self { file, size, begin })
    }

    /// Creates a picture; `draw` writes its pixels row by row. Fails before it allocates more than `max_bytes`.
    pub(super) fn write(
        size: PictureSize,
        max_bytes: usize,
        draw: impl FnOnce(&mut [u8]) -> Result<(), PictureError>,
    ) -> Result<Self, PictureError> {
        let length = Self::length(size, max_bytes)?;
        let mut file = header(size).into_bytes();
        let begin = file.len();
        file.resize(length, 0);
        draw(&mut file[begin..])?;
        Ok(Self { file: file.into(), size, begin })
    }

    /// Size of the file in bytes. Fails if it exceeds `max_bytes`.
    pub(super) fn length(size: PictureSize, max_bytes: usize) -> Result<usize, PictureError> {
        let bytes = header(size).len() as u64 + pixel_bytes(size);
        let length = usize::try_from(bytes).ok().filter(|&length| length <= max_bytes);
        length.ok_or_else(|| PictureError::TooLarge {
            size,
            bytes: quantity::Bytes(bytes),
            limit: quantity::Bytes(max_bytes as u64),
        })
    }

    pub(super) fn size(&self) -> PictureSize {
        self.size
    }

    pub(super) fn pixels(&self) -> &[u8] {
        &self.file[self.begin..]
    }

    pub(super) fn into_bytes(self) -> Bytes {
        self.file
    }
}

fn header(size: PictureSize) -> String {
    format!("P6\n{} {}\n255\n", size.width, size.height)
}

fn pixel_bytes(size: PictureSize) -> u64 {
    u64::from(size.width) * u64::from(size.height) * COLOURS as u64
}

/// Reader of the numbers of a header. It skips white space and comments.
struct Header<'a> {
    file: &'a [u8],
    at: usize,
}

// === impl Header ===

impl Header<'_> {
    fn number(&mut self) -> Option<u32> {
        let mut is_comment = false;
        while let Some(byte) = self.file.get(self.at) {
            match byte {
                b'\n' | b'\r' => is_comment = false,
                b'#' => is_comment = true,
                _ if is_comment || byte.is_ascii_whitespace() => {}
                _ => break,
            }
            self.at += 1;
        }
        let rest = &self.file[self.at..];
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += digits;
        std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
    }
}
