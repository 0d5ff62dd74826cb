//! Binary PPM: a header that says the size, and three bytes for each pixel.

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
            let (least, most) = (allowed.start(), allowed.end());
            let reason = || format!("its {meaning} is no number from {least} to {most}");
            number.ok_or_else(|| PictureError::Ppm { reason: reason() })
        };
        let width = number("width", 1..=PictureSize::LARGEST)?;
        let height = number("height", 1..=PictureSize::LARGEST)?;
        number("greatest value", 255..=255)?;
        let size = PictureSize { width, height };
        // One white space ends the header.
        let begin = header.at + 1;
        let (has, needs) = (file.len().saturating_sub(begin), pixel_bytes(size));
        if has as u64 != needs {
            let reason = format!("{size} pixels are {needs} bytes, and {has} follow its header");
            return Err(PictureError::Ppm { reason });
        }
        Ok(Self { file, size, begin })
    }

    /// Makes a picture whose pixels, row by row, a function writes. Nothing is allocated beyond the limit.
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

    /// Bytes of a picture of this size, if they are no more than the limit.
    pub(super) fn length(size: PictureSize, max_bytes: usize) -> Result<usize, PictureError> {
        let bytes = header(size).len() as u64 + pixel_bytes(size);
        let length = usize::try_from(bytes).ok().filter(|&length| length <= max_bytes);
        length.ok_or_else(|| PictureError::Large {
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

/// The numbers of a header, between white space and comments.
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
