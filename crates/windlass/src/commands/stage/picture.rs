//! Work on pictures: JPEG or PPM becomes RGB, of another size where one is asked for.

mod jpeg;
mod ppm;
mod resize;

use bytes::Bytes;
use windlass_pipeline::quantity;

use self::ppm::Ppm;
use crate::cli::{PictureSize, WorkArgs};

/// The work, and its limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pictures {
    size: Option<PictureSize>,
    max_bytes: usize,
}

/// A payload that does not become a picture.
#[derive(Debug, thiserror::Error)]
pub(super) enum PictureError {
    #[error("is no JPEG and no PPM: begins with \"{begin}\"")]
    Unknown { begin: String },
    #[error("is no whole JPEG")]
    Jpeg(#[source] Box<dyn std::error::Error + Send + Sync>),
    #[error("is a JPEG of {components} colours; grey and the three of cameras are read")]
    Colours { components: u8 },
    #[error("is no whole PPM: {reason}")]
    Ppm { reason: String },
    #[error("has {size} pixels, which are {} of RGB; the limit is {} (--max-payload)", .bytes, .limit)]
    Large { size: PictureSize, bytes: quantity::Bytes, limit: quantity::Bytes },
}

/// Bytes of an unknown payload that an error shows: as long as the magic numbers of formats.
const SHOWN: usize = 8;

// === impl Pictures ===

impl Pictures {
    pub(super) fn of(args: &WorkArgs, max_payload: usize) -> Option<Self> {
        let size = args.resize;
        (args.decode || size.is_some()).then_some(Self { size, max_bytes: max_payload })
    }

    /// The payload as PPM. One that is a PPM of the right size passes unchanged.
    pub(super) fn work(self, payload: Bytes) -> Result<Bytes, PictureError> {
        let picture = match &payload[..] {
            [0xff, 0xd8, ..] => jpeg::decode(&payload, self.max_bytes)?,
            [b'P', b'6', ..] => Ppm::read(payload)?,
            other => {
                let begin = other[..other.len().min(SHOWN)].escape_ascii().to_string();
                return Err(PictureError::Unknown { begin });
            }
        };
        let picture = match self.size {
            Some(size) if size != picture.size() => {
                // Rows are resized first: the picture between has the old height.
                let between = PictureSize { width: size.width, ..picture.size() };
                Ppm::length(between, self.max_bytes)?;
                Ppm::write(size, self.max_bytes, |pixels| {
                    resize::resize(picture.pixels(), picture.size(), size, pixels);
                    Ok(())
                })?
            }
            _ => picture,
        };
        Ok(picture.into_bytes())
    }
}

#[cfg(test)]
mod tests;
