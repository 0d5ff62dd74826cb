//! Size of a picture, the value of `--resize`.

use std::{fmt, str::FromStr};

/// Width and height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PictureSize {
    pub(crate) width: u32,
    pub(crate) height: u32,
}

// === impl PictureSize ===

impl PictureSize {
    /// Maximum of each side, in pixels.
    pub(crate) const MAX_SIDE: u32 = 16_384;
}

impl FromStr for PictureSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let side = |side: &str| match side.parse() {
            Ok(pixels @ 1..=Self::MAX_SIDE) => Some(pixels),
            _ => None,
        };
        let size = text
            .split_once('x')
            .and_then(|(width, height)| Some(Self { width: side(width)?, height: side(height)? }));
        size.ok_or_else(|| {
            format!("write WIDTHxHEIGHT, such as 320x320, of 1 to {} pixels", Self::MAX_SIDE)
        })
    }
}

impl fmt::Display for PictureSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.width, self.height)
    }
}
